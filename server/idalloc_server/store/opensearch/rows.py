"""The rows of sequences in OpenSearch: from and to the fields of a document."""

from collections.abc import Collection, Mapping
from typing import Any

from idalloc_server.domain.errors import SequenceInvalid, StoreOutcomeUnknown
from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.records import Grant, Row
from idalloc_server.store import packed_settings
from idalloc_server.store.cluster import rows
from idalloc_server.store.cluster.rows import milliseconds
from idalloc_server.store.opensearch.answers import CHECK_PROXY
from idalloc_server.store.opensearch.results import Source, Written

_INTEGERS = ("last_value", "step", "min_value", "max_value", "generation", "lease_ms", "writes", "rev")
_TIMES = ("created_at", "changed_at")


def settings_fields(name: str, sequence: Sequence, deleted: bool) -> Source:
    """Return the fields of a sequence's settings. ``mode`` is None for an ordinary counter."""
    return {
        "step": sequence.step,
        "min_value": sequence.min_value,
        "max_value": sequence.max_value,
        "settings": packed_settings.pack(sequence),
        "mode": packed_settings.mode(name, sequence, deleted),
    }


def row_fields(row: Row) -> Source:
    """Return the document of a new row."""
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
    """Return the row of a document.

    Raises:
        SequenceInvalid: A field has another type, or the settings cannot be decoded.
    """
    _check_types(name, source)
    return rows.parse_row(name, source)


def parse_grant(name: str, written: Written | None, modes: Collection[str | None]) -> Grant | None:
    """Return the grant of an answer. A row of another mode has nothing left to grant.

    Raises:
        SequenceDeleted: The row is a tombstone.
        SequenceInvalid: The row has no last_value, or a field of another type.
    """
    if written is None:
        return None
    _check_types(name, written.source)
    return rows.parse_grant(name, written.source, (written.seq_no, written.term), modes, written_number)


def written_number(source: Mapping[str, Any], field: str) -> int:
    """Return a number that a script has just written into the row.

    Raises:
        StoreOutcomeUnknown: The answer has no such number.
    """
    if type(value := source.get(field)) is not int:
        raise StoreOutcomeUnknown(f"OpenSearch answered a write with {field} = {value!r}; {CHECK_PROXY}")
    return value


def _check_types(name: str, source: Mapping[str, Any]) -> None:
    for field in (*_INTEGERS, *_TIMES):
        if not isinstance(source.get(field), int | None) or isinstance(source.get(field), bool):
            raise SequenceInvalid(name, f"its field {field} must be an integer, not {source[field]!r}; write one")
