"""The indices of the stand-in: documents with versions, mappings, blocks, and searches of what was
refreshed.
"""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.opensearch.refusals import Refusal, UnknownRequest

_LONG = range(-(2**63), 2**63)
# The mapping types that the stand-in checks, and what their fields accept.
_TYPES = ("long", "keyword", "boolean", "text")
_BLOCKS = {
    "write": (403, "FORBIDDEN/8/index write (api)"),
    "read_only": (403, "FORBIDDEN/5/index read-only (api)"),
    "read_only_allow_delete": (
        429,
        "TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block",
    ),
}
# The defaults that idalloc looks at.
_DEFAULTS = {
    "index.translog.durability": "REQUEST",
    "index.write.wait_for_active_shards": "1",
    "index.blocks.read_only": "false",
    "index.blocks.read_only_allow_delete": "false",
    "index.blocks.write": "false",
    "index.blocks.read": "false",
    "index.blocks.metadata": "false",
    "index.max_result_window": "10000",
}


@dataclass
class Document:
    """A document and its version."""

    source: dict[str, Any]
    version: int
    seq_no: int
    term: int


@dataclass
class Index:
    """An index of one shard."""

    name: str
    uuid: str
    settings: dict[str, str]
    mappings: dict[str, Any]
    aliases: dict[str, dict[str, Any]]
    documents: dict[str, Document] = field(default_factory=dict)
    is_closed: bool = False
    term: int = 1

    def __post_init__(self) -> None:
        self._searchable: dict[str, Document] = {}
        self._deleted: dict[str, int] = {}
        self._next = itertools.count()

    def where(self) -> dict[str, Any]:
        """Return how an error of a document names its index."""
        return {"index": self.name, "shard": "0", "index_uuid": self.uuid}

    def check_writable(self) -> None:
        """Refuse a write that a block forbids."""
        blocks = [(403, "FORBIDDEN/4/index closed")] if self.is_closed else []
        blocks += [kind for name, kind in _BLOCKS.items() if self.settings.get(f"index.blocks.{name}") == "true"]
        for status, text in blocks[:1]:
            raise Refusal(status, "cluster_block_exception", f"index [{self.name}] blocked by: [{text}];")

    def check_readable(self) -> None:
        """Refuse a read of a closed index."""
        if self.is_closed:
            raise Refusal(400, "index_closed_exception", "closed", index=self.name, index_uuid=self.uuid)

    def check_version(self, key: str, seq_no: int | None, term: int | None) -> None:
        """Refuse a compare-and-set on another version."""
        if seq_no is None:
            return
        found = self.documents.get(key)
        if found is None or (found.seq_no, found.term) != (seq_no, term):
            state = (
                f"current document has seqNo [{found.seq_no}] and primary term [{found.term}]"
                if found
                else "but no document was found"
            )
            reason = f"[{key}]: version conflict, required seqNo [{seq_no}], primary term [{term}]. {state}"
            raise Refusal(409, "version_conflict_engine_exception", reason, **self.where())

    def put(self, key: str, source: dict[str, Any]) -> dict[str, Any]:
        """Write a document, and return the answer."""
        self._check_mapping(key, source)
        found = self.documents.get(key)
        version = (found.version if found else self._deleted.pop(key, 0)) + 1
        self.documents.pop(key, None)  # the latest write last, as in a scan of the index
        self.documents[key] = Document(copy.deepcopy(source), version, next(self._next), self.term)
        return self._answer(key, "updated" if found else "created", self.documents[key])

    def delete(self, key: str) -> dict[str, Any]:
        """Delete a document, and return the answer."""
        found = self.documents.pop(key, None)
        version = (found.version if found else self._deleted.get(key, 0)) + 1
        self._deleted[key] = version
        tombstone = Document({}, version, next(self._next), self.term)
        return self._answer(key, "deleted" if found else "not_found", tombstone)

    def _answer(self, key: str, result: str, found: Document) -> dict[str, Any]:
        named = {"_index": self.name, "_id": key, "_version": found.version, "result": result}
        shards = {"total": 1 + int(self.settings["index.number_of_replicas"]), "successful": 1, "failed": 0}
        return {**named, "_shards": shards, "_seq_no": found.seq_no, "_primary_term": found.term}

    def refresh(self) -> None:
        """Show all writes to searches."""
        self._searchable = dict(self.documents)

    def describe(self, *, is_flat: bool, defaults: bool) -> dict[str, Any]:
        """Return the answer to ``GET /index``."""
        settings: dict[str, Any] = dict(self.settings)
        described = {"aliases": self.aliases, "mappings": self.mappings}
        if not is_flat:
            if defaults:
                raise UnknownRequest("include_defaults without flat_settings")
            settings = nested(self.settings)
        described["settings"] = settings
        if defaults:
            described["defaults"] = {name: value for name, value in _DEFAULTS.items() if name not in self.settings}
        return described

    def add_fields(self, fields: dict[str, dict[str, Any]]) -> None:
        """Add fields to the mapping."""
        properties = self.mappings.setdefault("properties", {})
        for name, mapped in fields.items():
            old = properties.get(name, mapped)["type"]
            if old != mapped["type"]:
                reason = f"mapper [{name}] cannot be changed from type [{old}] to [{mapped['type']}]"
                raise Refusal(400, "illegal_argument_exception", reason)
            properties[name] = mapped

    def _check_mapping(self, key: str, source: dict[str, Any]) -> None:
        properties = self.mappings.get("properties", {})
        for name, value in source.items():
            if (mapped := properties.get(name)) is None:
                if self.mappings.get("dynamic") == "strict":
                    reason = f"mapping set to strict, dynamic introduction of [{name}] within [_doc] is not allowed"
                    raise Refusal(400, "strict_dynamic_mapping_exception", reason)
                continue
            if mapped["type"] not in _TYPES:
                raise UnknownRequest(f"a field of type {mapped['type']}")
            if value is None or (mapped["type"] in ("keyword", "text") and not isinstance(value, dict)):
                continue
            if mapped["type"] == "boolean" and value in (True, False, "true", "false"):
                continue
            # Without coercion a number without a fraction is accepted in either form.
            if mapped["type"] == "long" and type(value) in (int, float) and value == int(value) and int(value) in _LONG:
                continue
            if mapped["type"] == "long" and mapped.get("coerce") is not False:
                raise UnknownRequest("a field of type long with coercion")
            shown = f"in document with id '{key}'. Preview of field's value: '{value}'"
            reason = f"failed to parse field [{name}] of type [{mapped['type']}] {shown}"
            cause = {"type": "illegal_argument_exception", "reason": ""}
            raise Refusal(400, "mapper_parsing_exception", reason, cause)

    def searchable(self) -> Iterator[tuple[str, Document]]:
        """Yield what a search finds."""
        yield from self._searchable.items()


def nested(flat: dict[str, str]) -> dict[str, Any]:
    """Return settings as nested objects."""
    result: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, last = name.split(".")
        inner = result
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = value
    return result


def flattened(settings: dict[str, Any], prefix: str = "") -> dict[str, str | None]:
    """Return nested settings with dotted names, and their values as texts."""
    result: dict[str, str | None] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            result |= flattened(value, f"{prefix}{name}.")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            result[prefix + name] = None if value is None else text
    return result
