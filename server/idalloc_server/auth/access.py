"""Who may do what: identities, their roles, and for which sequences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Literal

from idalloc_server.domain.sequences.patterns import ANY, Patterns

# What a call is for. No Enum: looking one up in a dict costs a call several times as much.
Role = Literal["allocate", "read", "admin"]
ALLOCATE: Final = "allocate"
READ: Final = "read"
ADMIN: Final = "admin"
ROLES: tuple[Role, ...] = (ALLOCATE, READ, ADMIN)


@dataclass(frozen=True)
class Identity:
    """Somebody who calls.

    Attributes:
        name: The name, for people and logs.
        tokens: SHA-256 of each token. They are random and long, so that nobody can try all: a hash that is slow on
            purpose, as for passwords, would cost each call and protect nothing more.
        certificates: Names in client certificates (SANs) with their types, such as ``dns:billing.example.org``.
        roles: For which sequences it has each role.
        ids_per_second: How many ids it may take, None for any number.
        calls_per_second: How many calls it may make.
        streams: How many streams it may have at a time.
    """

    name: str
    tokens: tuple[bytes, ...] = ()
    certificates: tuple[str, ...] = ()
    roles: Mapping[Role, Patterns] = field(default_factory=dict)
    ids_per_second: int | None = None
    calls_per_second: int | None = None
    streams: int | None = None

    def may(self, role: Role, sequence: str | None) -> bool:
        """Tells whether it has a role.

        Args:
            role: The role.
            sequence: For which sequence; None for what belongs to none, as document ids: for any one, then.
        """
        patterns = self.roles[role]
        return bool(patterns) if sequence is None else patterns.match(sequence)


# Who calls where nobody is asked.
ANONYMOUS = Identity("anonymous", roles=dict.fromkeys(ROLES, Patterns([ANY])))


@dataclass(frozen=True)
class SequenceQuota:
    """What all callers together may take of each sequence whose name matches.

    Attributes:
        sequence: The pattern.
        ids_per_second: How many ids, None for any number.
        calls_per_second: How many calls.
    """

    sequence: Patterns
    ids_per_second: int | None = None
    calls_per_second: int | None = None


class AccessPolicy:
    """All identities and quotas, as they are at the moment. Nothing in it changes.

    Args:
        identities: Those who may call; no two have a name, a token or a certificate in common.
        quotas: Quotas of sequences; the first one that matches counts.
    """

    def __init__(self, identities: Iterable[Identity] = (), quotas: Iterable[SequenceQuota] = ()) -> None:
        self.identities = tuple(identities)
        self.quotas = tuple(quotas)
        self._by_token = {digest: (digest, each) for each in self.identities for digest in each.tokens}
        self._by_certificate = {name: each for each in self.identities for name in each.certificates}

    @property
    def is_empty(self) -> bool:
        """Whether it has neither an identity nor a quota, as an access file without entries."""
        return not self.identities and not self.quotas

    def by_token(self, token: str) -> Identity | None:
        """Returns whose token it is.

        How long this takes tells nothing of the tokens: what is looked up is a digest, of which nobody who guesses can
        choose a part, and then it is compared in constant time.
        """
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = self._by_token.get(digest)
        return found[1] if found is not None and compare_digest(found[0], digest) else None

    def by_certificate(self, names: Iterable[str]) -> Identity | None:
        """Returns whose certificate has these names, types included; None where several identities share them."""
        found = {id(each): each for name in names if (each := self._by_certificate.get(name)) is not None}
        return found.popitem()[1] if len(found) == 1 else None
