"""Rows of sequences by the names of their columns or fields."""

from collections.abc import Callable, Collection, Mapping
from operator import getitem
from typing import Any

from idalloc_server.domain.errors import NULL_LAST_VALUE, SequenceDeleted, SequenceInvalid
from idalloc_server.domain.store.records import Grant, Row, ids_left
from idalloc_server.store import packed_settings
from idalloc_server.store.packed_settings import DEFAULT_GENERATION, DELETED

Source = Mapping[str, Any]


def parse_row(name: str, source: Source) -> Row:
    """Return the row of a sequence.

    Raises:
        SequenceInvalid: The settings cannot be decoded.
    """
    return Row(
        name=name,
        last_value=source.get("last_value"),
        sequence=packed_settings.unpack(name, source),
        generation=generation_of(source),
        lease_ms=source.get("lease_ms") or 0,
        revision=source.get("rev") or 0,
        revised_by=source.get("rev_by") or "",
        created_at=packed_settings.stored_time(name, "created_at", source.get("created_at"), 1000),
        changed_at=packed_settings.stored_time(name, "changed_at", source.get("changed_at"), 1000),
        deleted=source.get("mode") == DELETED,
    )


def parse_grant(
    name: str,
    source: Source,
    version: tuple[int, int],
    modes: Collection[str | None],
    written: Callable[[Source, str], int] = getitem,
) -> Grant:
    """Return the grant of an answer. A row of another mode has nothing left to grant.

    ``source`` is the row after the write, ``version`` its sequence number and primary term.
    ``written`` reads a number that the write has put into the row.

    Raises:
        SequenceDeleted: The row is a tombstone.
        SequenceInvalid: The row has no last_value.
    """
    if source.get("mode") == DELETED:
        raise SequenceDeleted(name)
    if source.get("last_value") is None:
        raise SequenceInvalid(name, NULL_LAST_VALUE)
    sequence = packed_settings.unpack(name, source)
    generation = generation_of(source)
    last_value = source["last_value"]
    left = ids_left(last_value, sequence.step, source.get("min_value"), source.get("max_value"))
    return Grant(
        last_value=last_value,
        granted=written(source, "granted"),
        sequence=sequence,
        remaining=left if source.get("mode") in modes else 0,
        generation=generation,
        version=(*version, generation),
        writes=written(source, "writes"),
        demand=packed_settings.unpack_demand(source.get("demand")),
    )


def columns_of(row: Row) -> dict[str, int | str | None]:
    """Return the columns of a new row; None for those without a value."""
    return {
        "name": row.name,
        "last_value": row.last_value,
        **packed_settings.columns(row.name, row.sequence, deleted=row.deleted),
        "generation": row.generation,
        "lease_ms": row.lease_ms,
        "rev": row.revision,
        "rev_by": row.revised_by,
        "created_at": milliseconds(row.created_at),
        "changed_at": milliseconds(row.changed_at),
    }


def generation_of(source: Source) -> int:
    """Return the generation of a row; an adopted row has none yet."""
    found = source.get("generation")
    return DEFAULT_GENERATION if found is None else int(found)


def milliseconds(seconds: float | None) -> int | None:
    """Return a time as it is stored."""
    return None if seconds is None else round(seconds * 1000)
