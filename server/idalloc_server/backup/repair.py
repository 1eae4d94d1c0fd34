"""Continues the sequences of a store that lost them, from what is known elsewhere."""

from collections.abc import Iterable
from typing import NamedTuple

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.witness.comparison import marks
from idalloc_server.domain.witness.marks import START, Witness

_BY = "store repair"


class Known(NamedTuple):
    """The last id of a sequence that is known without its row."""

    name: str  # of the row
    last_id: int
    step: int
    source: str  # where it is known from, for people


async def known_ids(store: Store, witness: Witness | None) -> list[Known]:
    """Return the last ids that the witness, or else the recorded answers, know of each row.

    Raises:
        StoreFailure: The store or the witness failed.
    """
    known = {
        end.row_name: Known(end.row_name, end.last_id, end.step, "recorded answers")
        for end in await store.recorded_ends()
    }
    if witness is not None:
        async for name, mark in marks(witness):
            known[name] = Known(name, mark.value, mark.step, "witness")
    return [known[name] for name in sorted(known)]


async def continue_lost(store: Store, known: Iterable[Known], clock: Clock) -> list[Known]:
    """Create the sequences that the store lacks after their known ids, and raise start timestamps.

    Returns:
        What was created. A sequence with periods is not: its settings are unknown.

    Raises:
        StoreFailure: The store failed.
    """
    created = []
    for each in known:
        if each.name.startswith(START):
            await store.raise_start(int(each.name.removeprefix(START)), each.last_id)
        elif PERIOD_SEPARATOR not in each.name and await store.get(each.name) is None:
            sequence = Sequence(start=each.last_id + each.step, step=each.step)
            generation, now = generation_after(sequence, 0, clock), clock.wall()
            await store.create(Row(each.name, each.last_id, sequence, generation, 0, 1, _BY, now, now))
            created.append(each)
    return created
