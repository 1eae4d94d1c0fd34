"""How a counter is moved so that no node goes on with ids that it took before (P5)."""

from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.sequence import Reset, Sequence
from idalloc_server.domain.store import Store

# Added to the life of a lease, for what the clocks of two machines may differ by while it lasts.
MARGIN_SECONDS = 1.0

_ATTEMPTS = 5


def generation_after(sequence: Sequence, generation: int) -> int:
    """Returns the generation that a change brings a sequence to.

    One with a reset has odd ones only. Even ones are those of counters of periods that are being advanced: no id is
    issued in them, and no other change can bring the sequence into one, with settings that the counter does not have.
    """
    return generation + 1 if sequence.reset == Reset.NEVER else (generation + 1) | 1


async def advance_period(store: Store, counter: str, sequence: Sequence, at_least: int, generation: int) -> int:
    """Moves the counter of a period, and ends the leases of it.

    The counter goes before its sequence: once the sequence has a new generation, any node may open the period's
    counter in it, and hold ids from before ``at_least`` that no later write would end. May be done again, and by any
    number of processes at once.

    Args:
        store: Where it is kept.
        counter: The name of the counter.
        sequence: The settings of its sequence.
        at_least: Where the counter must be, or further.
        generation: The newest that was seen of the sequence or the counter.

    Returns:
        The generation that the counter has now. The sequence must go to the one after it before any lease of the
        counter is good again; only then is the advance complete.

    Raises:
        StoreUnavailable: The store did not answer, or others move the counter all the time.
    """
    row = await store.get(counter)
    for _ in range(_ATTEMPTS):
        opened = (max(generation, row.generation if row else 0) // 2 + 1) * 2
        await store.open_period(counter, sequence, at_least, opened)
        row = await store.get(counter)
        if row is None or row.last_value is None or row.generation != opened:
            continue
        if not sequence.is_past(at_least, row.last_value):  # else it was another advance that opened this generation
            return opened
    raise StoreUnavailable(f"others move the counter {counter!r} all the time")
