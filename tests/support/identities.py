"""Identities with tokens, for tests of access control."""

from hashlib import sha256

from idalloc_server.auth.access import ROLES, AccessPolicy, Identity
from idalloc_server.domain.sequences.patterns import Patterns

TOKENS = {name: f"idalloc_{name}-{'x' * 40}" for name in ("allocate", "read", "admin", "lower", "narrow", "scattered")}


def identity_with_token(name: str, **roles: list[str]) -> Identity:
    """Return an identity with its token of ``TOKENS``, and with patterns by role."""
    digest = sha256(TOKENS[name].encode()).digest()
    return Identity(name, (digest,), roles={role: Patterns(roles.get(role, [])) for role in ROLES})


ACCESS = AccessPolicy(
    [
        identity_with_token("allocate", allocate=["*"]),
        identity_with_token("read", read=["*"]),
        identity_with_token("admin", admin=["*"]),
        identity_with_token("narrow", allocate=["m*"], read=["m*"], admin=["m*"]),
        identity_with_token("scattered", read=["a1*", "*5"]),
        identity_with_token("lower", allocate=["other"], read=["other"], admin=["other"]),
    ]
)


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call by an identity."""
    return (("authorization", f"Bearer {TOKENS[name]}"),)
