"""Generations: a change of a sequence starts a new one, which ends all earlier leases (P5)."""

from collections.abc import Awaitable, Callable

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Reset, Sequence
from idalloc_server.domain.sequences.validation import changed_bound
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row, RowChange

# Added to the TTL of a lease: during it, the clocks of two machines may drift apart by this much.
MARGIN_SECONDS = 1.0
# How often a row is read and changed before the change fails.
_ATTEMPTS = 10


def generation_after(sequence: Sequence, generation: int, clock: Clock) -> int:
    """Return the generation of a new sequence, or of a changed one.

    It is larger than ``generation`` and at least the milliseconds since 1970. A store restored from
    a backup therefore does not repeat the generations that it lost; otherwise a node could renew a
    lease from before the restore. A repeat needs two changes in the same millisecond, or a clock
    that was ahead by exactly the time between them.

    A sequence with a reset has odd generations. Even ones belong to period counters that are being
    advanced; no id is issued in them.

    Args:
        sequence: The new settings.
        generation: The newest known generation; 0 for a new sequence.
        clock: Its wall clock is the lower limit.
    """
    newer = max(generation + 1, int(clock.wall() * 1000))
    return newer if sequence.reset == Reset.NEVER else newer | 1


def next_generation(row: Row, clock: Clock, by: str, *, sequence: Sequence | None = None, newest: int = 0) -> RowChange:
    """Return the change that ends the leases of a row; its counter stays.

    Args:
        row: The row before the change.
        clock: As for ``generation_after``.
        by: The change key.
        sequence: The new settings; those of the row by default.
        newest: The newest known generation besides the row's own.
    """
    after = sequence or row.sequence
    generation = generation_after(after, max(row.generation, newest), clock)
    limit = changed_bound(row.sequence, after)  # a node may move the counter past a new bound meanwhile
    return RowChange(after, after.before_start, by, clock.wall(), generation=generation, limit=limit)


async def repeat_until_held(store: Store, name: str, attempt: Callable[[Row | None], Awaitable[bool]]) -> None:
    """Read a row and change it, until ``attempt`` returns that the row is as wanted.

    Used where other processes may change the row meanwhile: by ``advance_period``, ``retire``,
    ``unretire`` and ``Importer``. ``SequenceService`` answers its callers with another error.

    Raises:
        StoreUnavailable: The store did not answer, or concurrent changes won every attempt.
    """
    for _ in range(_ATTEMPTS):
        if await attempt(await store.get(name)):
            return
    sequence, _, period = name.partition(PERIOD_SEPARATOR)
    if not sequence:
        raise StoreUnavailable(f"the retirement was changed during each of {_ATTEMPTS} attempts: try again")
    what = f"period {period} of sequence {sequence!r}" if period else f"sequence {sequence!r}"
    raise StoreUnavailable(f"{what} was changed during each of {_ATTEMPTS} attempts: try again")


async def advance_period(
    store: Store, clock: Clock, counter: str, sequence: Sequence, at_least: int, generation: int
) -> int:
    """Advance the counter of a period and end its leases. Idempotent, and safe under concurrency.

    The counter is written before its sequence: once the sequence has a new generation, any node may
    open the counter in it and take ids from before ``at_least``.

    Args:
        store: The store of the counter.
        clock: As for ``generation_after``.
        counter: The name of the counter's row.
        sequence: The settings of its sequence.
        at_least: The value that the counter must reach or pass.
        generation: The newest known generation of the sequence and the counter.

    Returns:
        The counter's new, even generation. The advance is complete when the caller has set the
        sequence to a later, odd one.

    Raises:
        StoreUnavailable: The store did not answer, or concurrent changes won every attempt.
    """
    opened = 0

    async def advance(row: Row | None) -> bool:
        nonlocal opened
        # The next even one. Unless the clock was set back, no store had it before.
        opened = (max(generation, row.generation if row else 0, int(clock.wall() * 1000)) // 2 + 1) * 2
        await store.open_period(counter, sequence, at_least, opened)
        row = await store.get(counter)
        if row is None or row.last_value is None or row.generation != opened:
            return False
        return not sequence.is_past(at_least, row.last_value)  # else another advance opened this generation

    await repeat_until_held(store, counter, advance)
    return opened
