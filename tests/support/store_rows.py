"""Rows of sequences, and calls that tests of stores often make."""

from types import MappingProxyType
from typing import Any

from idalloc_server.domain.sequences.sequence import Ordering, Reset, Sequence, name_of_period
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Grant, Row

MIN_BIGINT = -(2**63) + 1  # the lowest BIGINT that CrateDB stores

YEARLY = Sequence(start=10, step=5, reset=Reset.YEARLY)
PERIOD = name_of_period("orders", "2026")
# No setting has its default.
ALL_SETTINGS = Sequence(
    start=7,
    step=5,
    min_value=2,
    max_value=900,
    ordering=Ordering.RISING,
    min_lease_size=3,
    max_lease_size=8,
    format='INV-{year}-{value:06d}"\\$1',
    reset=Reset.YEARLY,
    time_zone="Europe/Vienna",
    labels=MappingProxyType({"team": "Büro", "": "'"}),
    description="für\nalle 日本",
)


def new_row(name: str, sequence: Sequence | None = None, **more: Any) -> Row:
    """Return the row of a sequence that has issued nothing, with the values in ``more``."""
    sequence = sequence or Sequence()
    return Row(name, sequence.before_start, sequence)._replace(**more)


def requested_row(name: str, sequence: Sequence | None = None, last_value: int | None = None) -> Row:
    """Return the row of a sequence as a create request makes it, with a change key."""
    sequence = sequence or Sequence()
    return Row(name, sequence.before_start if last_value is None else last_value, sequence, revised_by=f"{name}:0")


def ids_of(grant: Grant | None) -> range:
    """Return the ids of a grant."""
    assert grant is not None
    return range(grant.value_before + grant.step, grant.last_value + grant.step, grant.step)


async def grant(store: Store, name: str, wanted: int, lease_ms: int = 1000) -> Grant:
    """Grant ids of an existing sequence."""
    granted = await store.grant(name, wanted, lease_ms)
    assert granted is not None
    return granted


async def read_row(store: Store, name: str) -> Row:
    """Read an existing row."""
    row = await store.get(name)
    assert row is not None
    return row
