"""The access policy: identities, their roles on sequences, and quotas."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Literal

from idalloc_server.domain.sequences.patterns import ANY, Patterns

# Not an Enum: it costs several times as much as a dict key.
Role = Literal["allocate", "read", "admin"]
ALLOCATE: Final = "allocate"
READ: Final = "read"
ADMIN: Final = "admin"
ROLES: tuple[Role, ...] = (ALLOCATE, READ, ADMIN)


@dataclass(frozen=True)
class Identity:
    """A caller that the access file names. A limit that is None does not apply."""

    name: str  # for errors and the audit log
    # The SHA-256 of each token. Tokens are long and random, so a slow password hash would add no
    # protection.
    tokens: tuple[bytes, ...] = ()
    # Names in client certificates (SANs) with their types, such as ``dns:billing.example.org``.
    certificates: tuple[str, ...] = ()
    roles: Mapping[Role, Patterns] = field(default_factory=dict)  # the sequences for each role
    ids_per_second: int | None = None
    calls_per_second: int | None = None
    streams: int | None = None  # the most open streams

    def has_role(self, role: Role, sequence: str | None) -> bool:
        """Return whether the identity has a role on a sequence, or on any one if that is None."""
        patterns = self.roles[role]
        return bool(patterns) if sequence is None else patterns.match(sequence)


# Every caller, if authentication is not required.
ANONYMOUS = Identity("anonymous", roles=dict.fromkeys(ROLES, Patterns([ANY])))


@dataclass(frozen=True)
class SequenceQuota:
    """The quota that all callers share on each matching sequence. None is no limit."""

    sequence: Patterns  # the pattern of the sequences' names
    ids_per_second: int | None = None
    calls_per_second: int | None = None


class AccessPolicy:
    """All identities and quotas. Immutable: a reload makes another policy.

    Args:
        identities: The identities. No two share a name, a token or a certificate.
        quotas: The quotas of sequences. The first matching one applies.
    """

    def __init__(self, identities: Iterable[Identity] = (), quotas: Iterable[SequenceQuota] = ()) -> None:
        self.identities = tuple(identities)
        self.quotas = tuple(quotas)
        self.is_empty = not self.identities and not self.quotas
        self._by_token = {digest: (digest, each) for each in self.identities for digest in each.tokens}
        self._by_certificate = {name: each for each in self.identities for name in each.certificates}

    def find_by_token(self, token: str) -> Identity | None:
        """Return the identity that has a token.

        The duration reveals nothing about the tokens: an attacker cannot choose any part of the
        digest that is the lookup key, and digests are compared in constant time.
        """
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = self._by_token.get(digest)
        return found[1] if found is not None and compare_digest(found[0], digest) else None

    def find_by_certificate(self, names: Iterable[str]) -> Identity | None:
        """Return the identity with any of these typed names; None if there is not exactly one."""
        found = {id(each): each for name in names if (each := self._by_certificate.get(name)) is not None}
        return found.popitem()[1] if len(found) == 1 else None
