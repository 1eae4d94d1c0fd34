"""Roles on documents: which patterns cover a schema or a collection, and who may see it.

A pattern is matched against ``SCHEMA`` or ``SCHEMA.COLLECTION``. A name that has a dot itself is
covered by the pattern ``*`` alone: ``shop.*`` would cover the schema ``shop.orders``, which is
another one than ``shop``. So each text that is matched has one dot at most, between the schema and
the collection.
"""

from functools import lru_cache

from idalloc_server.auth.sessions import ROLES, Identity, Role
from idalloc_server.domain.sequences.patterns import ANY, Patterns

_DOT = "."


def has_role(identity: Identity, role: Role, schema: str, collection: str = "") -> bool:
    """Return whether an identity has a role on a collection, or on a schema itself without one."""
    return _cover(identity.roles[role], schema, collection)


def may_see(identity: Identity, schema: str, collection: str = "") -> bool:
    """Return whether an identity has any role on a collection, or on a schema or anything in it."""
    if collection:
        return any(_cover(identity.roles[role], schema, collection) for role in ROLES)
    if _DOT in schema:
        return any(identity.roles[role].any_name for role in ROLES)
    return any(_of_schemas(identity.roles[role]).match(schema) for role in ROLES)


def _cover(patterns: Patterns, schema: str, collection: str) -> bool:
    if _DOT in schema or _DOT in collection:
        return patterns.any_name
    return patterns.match(f"{schema}{_DOT}{collection}" if collection else schema)


@lru_cache(1_000)
def _of_schemas(patterns: Patterns) -> Patterns:
    """Return the patterns of schemas that patterns cover, or of which they could cover a part."""
    return Patterns(found for pattern in patterns.patterns if (found := _of_schema(pattern)) is not None)


def _of_schema(pattern: str) -> str | None:
    """Return the pattern of the schemas that a pattern reaches; None if there are none."""
    of_schema, dot, of_collection = pattern.partition(_DOT)
    if not dot:
        # Without a dot, its first star may stand for the rest of the schema, the dot, and a part of
        # the collection.
        before, star, _ = pattern.partition(ANY)
        return before + star
    return of_schema if of_collection and _DOT not in of_collection else None
