"""The rows of sequences in OpenSearch: from and to the fields of a document."""

from collections.abc import Collection, Mapping
from typing import Any

from idalloc_server.domain.errors import NULL_LAST_VALUE, SequenceDeleted, SequenceInvalid, StoreOutcomeUnknown
from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.records import Grant, Row
from idalloc_server.store import packed_settings
from idalloc_server.store.bounds import ids_left
from idalloc_server.store.opensearch.answers import CHECK_PROXY
from idalloc_server.store.opensearch.results import Source, Written
from idalloc_server.store.packed_settings import DEFAULT_GENERATION, DELETED

_INTEGERS = ("last_value", "step", "min_value", "max_value", "generation", "lease_ms", "writes", "rev")
_TIMES = ("created_at", "changed_at")


def settings_fields(name: str, sequence: Sequence, deleted: bool) -> Source:
    """Returns the fields of a sequence's settings. ``mode`` is None for an ordinary counter."""
    return {
        "step": sequence.step,
        "min_value": sequence.min_value,
        "max_value": sequence.max_value,
        "settings": packed_settings.pack(sequence),
        "mode": packed_settings.mode(name, sequence, deleted),
    }


def row_fields(row: Row) -> Source:
    """Returns the document of a new row."""
    fields = {
        "name": row.name,
        "last_value": row.last_value,
        **settings_fields(row.name, row.sequence, row.deleted),
        "period": True if PERIOD_SEPARATOR in row.name else None,
        "generation": row.generation,
        "lease_ms": row.lease_ms,
        "rev": row.revision,
        "rev_by": row.revised_by,
        "created_at": milliseconds(row.created_at),
        "changed_at": milliseconds(row.changed_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


def parse_row(name: str, source: Mapping[str, Any]) -> Row:
    """Returns the row of a document.

    Raises:
        SequenceInvalid: A field has another type, or the settings cannot be decoded.
    """
    _check_types(name, source)
    return Row(
        name=name,
        last_value=source.get("last_value"),
        sequence=_sequence(name, source),
        generation=_generation(source),
        lease_ms=source.get("lease_ms") or 0,
        revision=source.get("rev") or 0,
        revised_by=source.get("rev_by") or "",
        created_at=packed_settings.stored_time(name, "created_at", source.get("created_at"), 1000),
        changed_at=packed_settings.stored_time(name, "changed_at", source.get("changed_at"), 1000),
        deleted=source.get("mode") == DELETED,
    )


def parse_grant(name: str, written: Written | None, modes: Collection[str | None]) -> Grant | None:
    """Returns the grant of an answer. A row of another mode has nothing left to grant.

    Raises:
        SequenceDeleted: The row is a tombstone.
        SequenceInvalid: The row has no last_value, or a field of another type.
    """
    if written is None:
        return None
    source = written.source
    _check_types(name, source)
    if source.get("mode") == DELETED:
        raise SequenceDeleted(name)
    if source.get("last_value") is None:
        raise SequenceInvalid(name, NULL_LAST_VALUE)
    sequence = _sequence(name, source)
    generation = _generation(source)
    last_value = source["last_value"]
    left = ids_left(last_value, sequence.step, source.get("min_value"), source.get("max_value"))
    return Grant(
        last_value=last_value,
        granted=written_number(source, "granted"),
        sequence=sequence,
        remaining=left if source.get("mode") in modes else 0,
        generation=generation,
        version=(written.seq_no, written.term, generation),
        writes=written_number(source, "writes"),
        demand=packed_settings.unpack_demand(source.get("demand")),
    )


def written_number(source: Mapping[str, Any], field: str) -> int:
    """Returns a number that a script has just written into the row.

    Raises:
        StoreOutcomeUnknown: The answer has no such number.
    """
    if type(value := source.get(field)) is not int:
        raise StoreOutcomeUnknown(f"OpenSearch answered a write with {field} = {value!r}; {CHECK_PROXY}")
    return value


def milliseconds(seconds: float | None) -> int | None:
    """Returns a time as it is stored."""
    return None if seconds is None else round(seconds * 1000)


def _check_types(name: str, source: Mapping[str, Any]) -> None:
    for field in (*_INTEGERS, *_TIMES):
        if not isinstance(source.get(field), int | None) or isinstance(source.get(field), bool):
            raise SequenceInvalid(name, f"its field {field} must be an integer, not {source[field]!r}; write one")


def _sequence(name: str, source: Mapping[str, Any]) -> Sequence:
    columns = (source.get(field) for field in ("step", "min_value", "max_value", "settings"))
    return packed_settings.unpack(name, *columns)


def _generation(source: Mapping[str, Any]) -> int:
    found = source.get("generation")
    return DEFAULT_GENERATION if found is None else int(found)
