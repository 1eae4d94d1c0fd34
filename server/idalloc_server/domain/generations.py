"""How a counter is moved so that no node goes on with ids that it took before (P5)."""

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.sequences.model import Reset, Sequence
from idalloc_server.domain.store import Store

# Added to the life of a lease, for what the clocks of two machines may differ by while it lasts.
MARGIN_SECONDS = 1.0

_ATTEMPTS = 5
_PER_SECOND = 1000


def generation_after(sequence: Sequence, generation: int, clock: Clock) -> int:
    """Returns the generation that a sequence begins with, or that a change brings it to.

    It grows with every change, and is at least the milliseconds since 1970. Counted by ones alone, a restored store
    would come once more to the generations that it had lost, and a node that saw one of those would take it for its
    own and renew a lease from before the restore for ever.

    What remains is a change that was lost and another one, after the restore, that come to the very same number: within
    one millisecond, or where the clock of the first was ahead of that of the second by just the time in between. One
    that was ahead by more does no harm: its node is then told of an older generation, and issues nothing. But as long
    as a row has a generation that a clock far ahead gave it, its changes do count by ones.

    A sequence with a reset has odd ones only. Even ones are those of counters of periods that are being advanced: no
    id is issued in them, and no other change can bring the sequence into one, with settings that the counter does not
    have.

    Args:
        sequence: The settings from then on.
        generation: The newest that was seen of it; 0 for none.
        clock: For the time.
    """
    newer = max(generation + 1, _now(clock))
    return newer if sequence.reset == Reset.NEVER else newer | 1


async def advance_period(
    store: Store, clock: Clock, counter: str, sequence: Sequence, at_least: int, generation: int
) -> int:
    """Moves the counter of a period, and ends the leases of it.

    The counter goes before its sequence: once the sequence has a new generation, any node may open the period's
    counter in it, and hold ids from before ``at_least`` that no later write would end. May be done again, and by any
    number of processes at once.

    Args:
        store: Where it is kept.
        clock: For the generation, as for ``generation_after``.
        counter: The name of the counter.
        sequence: The settings of its sequence.
        at_least: Where the counter must be, or further.
        generation: The newest that was seen of the sequence or the counter.

    Returns:
        The generation that the counter has now. The sequence must go to an odd one after it before any lease of the
        counter is good again; only then is the advance complete.

    Raises:
        StoreUnavailable: The store did not answer, or others move the counter all the time.
    """
    row = await store.get(counter)
    for _ in range(_ATTEMPTS):
        # The even one after all of these: as long as the clock was not set back, no store had that one before.
        opened = (max(generation, row.generation if row else 0, _now(clock)) // 2 + 1) * 2
        await store.open_period(counter, sequence, at_least, opened)
        row = await store.get(counter)
        if row is None or row.last_value is None or row.generation != opened:
            continue
        if not sequence.is_past(at_least, row.last_value):  # else it was another advance that opened this generation
            return opened
    raise StoreUnavailable(f"others move the counter {counter!r} all the time")


def _now(clock: Clock) -> int:
    return int(clock.wall() * _PER_SECOND)
