"""Refuses an index in OpenSearch on which idalloc's writes would fail or lose ids.

Each error names the next step.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.opensearch.indices import Index

_log = structlog.get_logger(__name__)

_BLOCKS = ("read", "write", "read_only", "read_only_allow_delete", "metadata")


@dataclass(frozen=True)
class StoredIndex:
    """An index of the cluster."""

    name: str
    uuid: str  # its UUID, which no other index has
    fields: Mapping[str, Mapping[str, Any]]  # the mapping of each field
    settings: Mapping[str, Any]  # its settings, with defaults, by their full names
    # The options of ``_source`` and ``_routing`` in its mapping; empty for the default.
    meta_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aliases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the options of each alias
    meta: Mapping[str, Any] = field(default_factory=dict)  # the ``_meta`` of its mapping

    @property
    def store(self) -> str:
        """The name of the store that it belongs to; empty without one."""
        return str(self.meta.get("store", ""))

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting in lower case, by its name without ``index.``."""
        return str(self.settings.get(f"index.{name}", default)).lower()


def check(alias: str, index: Index, found: StoredIndex, nodes: int | None) -> None:
    """Check an existing index.

    If the cluster has several nodes, an index without replicas logs a warning.

    Raises:
        StartRefused: The index cannot be used.
    """
    _check_alias(alias, found)
    _check_settings(alias, found)
    _warn_of_rollover(alias, found)
    if nodes is not None and nodes > 1:
        _warn_without_replica(alias, found)
    _check_meta_fields(found)
    for name, mapping in index.fields.items():
        existing = found.fields.get(name, mapping)
        for option in ("type", "coerce"):
            if option in mapping and existing.get(option) != mapping[option]:
                raise _refused(
                    found,
                    f"its field {name} must have {option} {_shown(mapping[option])}, not "
                    f"{_shown(existing.get(option))}; choose another prefix (?prefix=…)",
                )


def _check_alias(alias: str, found: StoredIndex) -> None:
    """Refuse an alias whose searches leave out rows: lists and exports would lack them."""
    for option in ("filter", "search_routing"):
        if option in found.aliases.get(alias, {}):
            plain = {"actions": [{"add": {"index": found.name, "alias": alias}}]}
            raise _refused(
                found,
                f"its alias {alias} has a {option}, which hides rows; replace the alias by one without it: "
                f"POST /_aliases {json.dumps(plain)}",
            )


def _check_settings(alias: str, found: StoredIndex) -> None:
    if found.setting("translog.durability", "request") != "request":
        raise _refused(
            found,
            "a crash loses acknowledged writes, as its translog.durability is async; run "
            f'PUT /{alias}/_settings {{"index.translog.durability": "request"}}',
        )
    for block in _BLOCKS:
        if found.setting(f"blocks.{block}", "false") == "true":
            raise _refused(
                found,
                f"its block {block} is set; free the disk if it is full, then run "
                f'PUT /{alias}/_settings {{"index.blocks.{block}": null}}',
            )
    if found.setting("replication.type") == "segment":
        raise _refused(
            found,
            "its replication.type is SEGMENT, whose replicas lag behind the primary; reindex it into an index with "
            "replication.type DOCUMENT, and move the alias",
        )
    if found.setting("number_of_shards", "1") != "1":
        raise _refused(found, "it must have one shard; reindex it into an index with one, and move the alias")
    for pipeline in ("default_pipeline", "final_pipeline"):
        if found.setting(pipeline, "_none") != "_none":
            raise _refused(
                found,
                f'its {pipeline} could change rows; run PUT /{alias}/_settings {{"index.{pipeline}": "_none"}}',
            )


def _warn_of_rollover(alias: str, found: StoredIndex) -> None:
    if re.search(r"-\d+$", found.name):
        moved = f"{alias}-data"
        swap = [{"remove": {"index": found.name, "alias": alias}}, {"add": {"index": moved, "alias": alias}}]
        _log.warning(
            "index_can_roll_over",
            why="after a rollover of its alias every call is refused, since sequences would begin again",
            index=found.name,
            next_step=f'stop all servers, then send PUT /{found.name}/_settings {{"index.blocks.write": true}}, '
            f'POST /{found.name}/_clone/{moved} {{"settings": {{"index.blocks.write": null}}}} and '
            f"POST /_aliases {json.dumps({'actions': swap})}",
        )


def _warn_without_replica(alias: str, found: StoredIndex) -> None:
    if found.setting("number_of_replicas") == "0" and found.setting("auto_expand_replicas", "false") == "false":
        _log.warning(
            "index_without_replica",
            why="its rows are lost with its node",
            index=found.name,
            next_step=f'PUT /{alias}/_settings {{"index.auto_expand_replicas": "0-2"}}',
        )


def _check_meta_fields(found: StoredIndex) -> None:
    """Refuse a mapping (of an index template) that loses fields, or needs more than a row's key."""
    source, routing = (found.meta_fields.get(field, {}) for field in ("_source", "_routing"))
    loses_fields = source.get("enabled") is False or source.get("includes") or source.get("excludes")
    for name, meta, is_wrong in (("_source", source, loses_fields), ("_routing", routing, routing.get("required"))):
        if is_wrong:
            raise _refused(
                found,
                f"the {name} of its mapping, {json.dumps(meta)}, loses or hides rows; remove it from the index "
                "template, then delete the index if it has no documents, or choose another prefix (?prefix=…)",
            )


def _shown(value: object) -> str:
    return "its default" if value is None else str(value).lower()


def _refused(found: StoredIndex, message: str) -> StartRefused:
    return StartRefused("store", f"the index {found.name}: {message}")
