"""The chain of a counter's marks in a witness: each new mark replaces the one read before it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from idalloc_server.domain.errors import StoreFailure, StoreOutcomeUnknown, StoreRefused, StoreUnreachable
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.store.store_calls import Batches
from idalloc_server.domain.witness.gaps import Gap, format_gaps, parse_gaps, take_from_gap
from idalloc_server.domain.witness.marks import Replacement, Witness

# How often a mark is replaced again because another one came between.
ATTEMPTS = 5
# How often a grant is confirmed again because another one was confirmed between. One of the grants
# always succeeds.
_CONFIRMATIONS = 100
# The most marks that one call reads or replaces.
_MAX_BATCH = 500
_TOKEN_BYTES = 12


class WitnessOvertaken(StoreOutcomeUnknown):
    """Another node's mark is past these ids, so they are burned. The write may be repeated at once.

    It needs a restore, a newer generation, or more than 32 grants that were confirmed before an
    earlier one.
    """

    is_of_store = False


@contextmanager
def after_write() -> Iterator[None]:
    """Make ``StoreOutcomeUnknown`` of a failed read that follows a write of the store."""
    try:
        yield
    except StoreFailure as error:
        raise StoreOutcomeUnknown(str(error)) from error


@dataclass(eq=False)
class MarkChain:
    """Reads and replaces marks, with group commit."""

    _witness: Witness
    _random: Callable[[int], bytes]  # returns random bytes of a given number
    is_up: bool = True  # whether the last call succeeded

    def __post_init__(self) -> None:
        self._reads = Batches("read marks", self._read, _MAX_BATCH)
        self._replacements = Batches("replace marks", self._replace, _MAX_BATCH)

    async def read(self, name: str) -> Mark | None:
        """Return a mark, or None if there is none.

        Raises:
            StoreRefused, StoreUnreachable: The witness failed. Nothing was applied.
        """
        return (await self._reads.add(name)).get(name)

    async def append(self, name: str, seen: Mark | None, before: int, reached: Mark) -> None:
        """Confirm the ids after ``before`` up to ``reached``, which a write of the store returned.

        ``name`` is that of the counter's row; ``seen`` is the mark that was read before the write.

        Raises:
            StoreOutcomeUnknown: The ids must not be issued.
            WitnessOvertaken: The same, since the present mark is past them, and they are in no gap.
        """
        for _ in range(_CONFIRMATIONS):
            if await self._put(name, seen, _confirm(name, seen, before, reached)):
                return
            with after_write():
                seen = await self.read(name)
        raise WitnessOvertaken(f"the mark of {name!r} changed in each of {_CONFIRMATIONS} attempts; try again")

    async def replace(self, name: str, seen: Mark, value: int) -> bool:
        """Change the value of a mark; return whether it was still the present mark.

        Raises:
            StoreOutcomeUnknown: It may have been replaced.
        """
        gaps = [gap for gap in parse_gaps(seen.gaps) if (value - gap.last) * seen.step >= 0]
        return await self._put(name, seen, seen._replace(value=value, gaps=format_gaps(gaps)))

    async def raise_to(self, name: str, seen: Mark | None, reached: Mark, *, counts: bool) -> bool:
        """Move the mark to a row of a newer generation.

        Does nothing if the mark is past the row, or counts in the other direction.

        ``reached`` is the row's counter, which counts if ``counts`` is true (``counts_ids``);
        ``seen`` is the mark that was read before the row.

        Returns:
            False if the mark changed since it was read.

        Raises:
            StoreOutcomeUnknown: The mark may have moved.
        """
        if seen is not None:
            may_move = not counts or (seen.step * reached.step > 0 and not seen.is_past(reached.value))
            if seen.generation >= reached.generation or not may_move:
                return True
            if not counts:  # the ids of an earlier sequence stay confirmed
                reached = reached._replace(value=seen.value, step=seen.step)
        return await self._put(name, seen, reached)

    async def _put(self, name: str, seen: Mark | None, mark: Mark) -> bool:
        """Replace a mark; return whether it was still ``seen``."""
        new = mark._replace(token=self._random(_TOKEN_BYTES).hex())
        return await self._replacements.add(Replacement(name, new, seen.token if seen else ""))

    async def _read(self, names: list[str]) -> Iterable[Mapping[str, Mark]]:
        try:
            marks = await self._witness.read(list(dict.fromkeys(names)))
        except StoreFailure as error:
            self.is_up = False
            failure = StoreRefused if isinstance(error, StoreRefused) else StoreUnreachable
            raise failure(f"witness: {error}") from error
        self.is_up = True
        return [marks] * len(names)

    async def _replace(self, replacements: list[Replacement]) -> Iterable[bool]:
        first = {each.name: each for each in reversed(replacements)}
        try:
            replaced = await self._witness.replace(list(first.values()))
        except StoreFailure as error:
            self.is_up = False
            raise StoreOutcomeUnknown(f"witness: {error}") from error
        self.is_up = True
        return [each.name in replaced and first[each.name] is each for each in replacements]


def _confirm(name: str, seen: Mark | None, before: int, reached: Mark) -> Mark:
    """Return the mark that confirms ids after another mark, or raise WitnessOvertaken."""
    if seen is None:
        return reached
    # A newer generation begins without gaps: ids of an older one are not confirmed beside it.
    gaps = parse_gaps(seen.gaps) if seen.generation == reached.generation else []
    if seen.step * reached.step > 0 and seen.generation <= reached.generation and not seen.is_past(before):
        if seen.generation == reached.generation:
            gaps.append(Gap(seen.value, before))
        return reached._replace(gaps=format_gaps(gaps))
    left = take_from_gap(gaps, Gap(before, reached.value), reached.step)
    if left is None:
        raise WitnessOvertaken(f"another node's mark in the witness is past ids of {name!r}; try again")
    return seen._replace(gaps=format_gaps(left))
