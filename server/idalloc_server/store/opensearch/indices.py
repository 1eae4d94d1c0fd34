"""The definitions of idalloc's indices in OpenSearch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from idalloc_server.domain.store import identity

# Not indexed: only scripts and `_source` have them. Without `coerce: false` 1.5 or "12" would stay.
_NUMBER = {"type": "long", "index": False, "doc_values": False, "coerce": False}
_TEXT = {"type": "keyword", "index": False, "doc_values": False}
_INDEXED_NUMBER = {"type": "long", "coerce": False}
_INDEXED_TEXT = {"type": "keyword"}
_INDEXED_BOOLEAN = {"type": "boolean"}

# GET by id and updates need no refresh, lists make one. A template's pipeline could change rows.
_SETTINGS = {
    "number_of_shards": 1,
    "auto_expand_replicas": "0-2",
    "translog.durability": "request",
    "refresh_interval": "-1",
    "default_pipeline": "_none",
    "final_pipeline": "_none",
}


# Without the privilege to add it to an older index, answers are not compared with it.
_NONCE = {"nonce": _TEXT}


@dataclass(frozen=True)
class Index:
    """The definition of an index. idalloc uses it by its alias only."""

    suffix: str  # the end of the alias, after the prefix of the URL
    part: str  # the part of the store that it is; empty for a witness
    fields: Mapping[str, Mapping[str, Any]]  # the mapping of each field
    # The mapping of each field that a server can do without, if its user may not add it.
    optional: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NONCE)

    def alias(self, prefix: str) -> str:
        """Return the name of the alias."""
        return f"{prefix}-{self.suffix}"

    def new_name(self, prefix: str) -> str:
        """Return a new index's name. No policy rolls it over: that needs a number at the end."""
        return f"{self.alias(prefix)}-data"

    def definition(self, prefix: str, store: str = "") -> dict[str, Any]:
        """Return the body of the request that creates the index of a store, and its alias."""
        named = {"_meta": {"store": store}} if store else {}
        return {
            "settings": {"index": _SETTINGS},
            "aliases": {self.alias(prefix): {}},
            "mappings": {"dynamic": "strict", **named, "properties": {**self.fields, **self.optional}},
        }


SEQUENCES = Index(
    "sequences",
    identity.SEQUENCES,
    {
        "name": _INDEXED_TEXT,
        "period": _INDEXED_BOOLEAN,
        "mode": _INDEXED_TEXT,
        **dict.fromkeys(("last_value", "step", "min_value", "max_value", "generation", "lease_ms"), _NUMBER),
        **dict.fromkeys(("granted", "writes", "rev", "created_at", "changed_at"), _NUMBER),
        **dict.fromkeys(("settings", "rev_by"), _TEXT),
    },
    {**_NONCE, "demand": _TEXT},
)
START_TIMESTAMPS = Index(
    "starts",
    identity.START_TIMESTAMPS,
    {"prefix": _INDEXED_NUMBER, "last_start": _NUMBER, "holder": _TEXT, "seen_at": _NUMBER},
)
ALLOCATIONS = Index(
    "allocations",
    identity.ALLOCATIONS,
    {
        "written_at": _INDEXED_NUMBER,
        **dict.fromkeys(("first_id", "id_count", "step", "generation", "prefix", "window_ms", "again"), _NUMBER),
        **dict.fromkeys(("request_id", "sequence", "period", "node"), _TEXT),
    },
)
WITNESS = Index(
    "witness",
    "",
    {"name": _INDEXED_TEXT, "generation": _NUMBER, "value": _NUMBER, "step": _NUMBER, "token": _TEXT, "gaps": _TEXT},
)
# The parts of a store, in the order of their creation.
INDICES = {index.part: index for index in (SEQUENCES, START_TIMESTAMPS, ALLOCATIONS)}
