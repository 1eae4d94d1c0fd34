"""Those who call in the tests of the door."""

from hashlib import sha256

from idalloc_server.auth.access import ROLES, AccessPolicy, Identity
from idalloc_server.domain.sequences.patterns import Patterns

TOKENS = {name: f"idalloc_{name}-{'x' * 40}" for name in ("allocate", "read", "admin", "lower", "narrow", "scattered")}


def known(name: str, **roles: list[str]) -> Identity:
    digest = sha256(TOKENS[name].encode()).digest()
    return Identity(name, (digest,), roles={role: Patterns(roles.get(role, [])) for role in ROLES})


ACCESS = AccessPolicy(
    [
        known("allocate", allocate=["*"]),
        known("read", read=["*"]),
        known("admin", admin=["*"]),
        known("narrow", allocate=["m*"], read=["m*"], admin=["m*"]),
        known("scattered", read=["a1*", "*5"]),
        known("lower", allocate=["other"], read=["other"], admin=["other"]),
    ]
)


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {TOKENS[name]}"),)
