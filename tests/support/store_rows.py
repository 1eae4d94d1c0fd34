"""What tests of stores say and ask often."""

from typing import Any

from idalloc_server.domain.records import Grant, Row
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.domain.store import Store

LOWEST = -(2**63) + 1  # that CrateDB stores


def made(name: str, sequence: Sequence | None = None, **more: Any) -> Row:
    """Returns the row of a sequence that has issued nothing, unless ``more`` says otherwise."""
    sequence = sequence or Sequence()
    return Row(name, sequence.before_start, sequence)._replace(**more)


def row(name: str, sequence: Sequence | None = None, last_value: int | None = None) -> Row:
    """Returns the row of a sequence as a request made it that is named after it."""
    sequence = sequence or Sequence()
    return Row(name, sequence.before_start if last_value is None else last_value, sequence, revised_by=f"{name}:0")


def ids_of(grant: Grant | None) -> range:
    """Returns the ids that were granted."""
    assert grant is not None
    return range(grant.value_before + grant.step, grant.last_value + grant.step, grant.step)


async def grant(store: Store, name: str, wanted: int, lease_ms: int = 1000) -> Grant:
    """Takes ids of a sequence that is there."""
    granted = await store.grant(name, wanted, lease_ms)
    assert granted is not None
    return granted


async def row_of(store: Store, name: str) -> Row:
    """Reads a row that is there."""
    row = await store.get(name)
    assert row is not None
    return row
