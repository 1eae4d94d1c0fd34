"""Reserves and advances the sequences of a store that lost a part, by what is known elsewhere."""

from collections import defaultdict
from typing import NamedTuple
from uuid import uuid4

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.generations import generation_after, next_generation
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Sequence, name_of_period
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.name_holds import reserved_row
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.comparison import marks
from idalloc_server.domain.witness.marks import START, Witness


class Repaired(NamedTuple):
    """A sequence, or one of its periods, that the store lost or that was behind a known id."""

    sequence: str
    period: str
    last_id: int  # the last id that is known
    state: str  # reserved, advanced, or behind, which a period stays


async def repair(store: Store, witness: Witness | None, clock: Clock) -> list[Repaired]:
    """Reserve names that the store lost, and advance its sequences past the ids that are known.

    The witness and the recorded answers know ids. A repeat finds nothing more to do, unless an
    older export was imported meanwhile.

    Raises:
        StoreFailure: The store or the witness failed.
    """
    known: dict[str, set[int]] = defaultdict(set)  # the last ids that are known, by the name of the row
    for end in await store.recorded_ends():
        row_name = name_of_period(end.sequence, end.period) if end.period else end.sequence
        known[row_name].add(end.last_id)
    if witness is not None:
        async for name, mark in marks(witness):
            known[name].add(mark.value)
    known.pop(IDENTITY, None)
    found: list[Repaired] = []
    by = f"repair:{uuid4()}"
    for name, ids in sorted(known.items()):
        if name.startswith(START):
            await store.raise_start(int(name.removeprefix(START)), max(ids))
            continue
        row = await store.get(name)
        last_id = max(ids) if row is None or row.sequence.step > 0 else min(ids)
        sequence, _, period = name.partition(PERIOD_SEPARATOR)
        if row is not None:
            is_behind = row.last_value is None or row.sequence.is_past(last_id, row.last_value)
            if row.deleted or not is_behind:
                continue
        state = "behind"
        if row is None and not period:
            state = "reserved"
            why = f"lost by the store, and its last known id is {last_id}"
            generation = generation_after(Sequence(), 0, clock)
            await store.create(reserved_row(name, why, by=by, generation=generation, at=clock.wall()))
        elif row is not None and not period:
            state = "advanced"
            await store.revise(name, row.revision, next_generation(row, clock, by)._replace(at_least=last_id))
        found.append(Repaired(sequence, period, last_id, state))
    return found
