"""The chain of a counter's marks in a witness: each new mark replaces the one read before it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from idalloc_server.domain.errors import StoreFailure, StoreOutcomeUnknown, StoreRefused, StoreUnreachable
from idalloc_server.domain.store.batches import Batches
from idalloc_server.domain.store.protocol import within_timeout
from idalloc_server.domain.witness.gaps import Gap, add_gap, gaps_up_to, take_from_gap
from idalloc_server.domain.witness.marks import Replacement, Witness, WitnessMark

_T = TypeVar("_T")

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


@dataclass(eq=False)
class MarkChain:
    """Reads and replaces marks, with group commit."""

    _witness: Witness
    _timeout: float  # of a call of the witness, in seconds
    _random: Callable[[int], bytes]  # returns random bytes of a given number
    is_up: bool = True  # whether the last call succeeded

    def __post_init__(self) -> None:
        self._reads = Batches("read marks", self._read, _MAX_BATCH)
        self._replacements = Batches("replace marks", self._replace, _MAX_BATCH)

    async def read(self, name: str) -> WitnessMark | None:
        """Return a mark, or None if there is none.

        Raises:
            StoreRefused, StoreUnreachable: The witness failed. Nothing was applied.
        """
        return (await self._reads.add(name)).get(name)

    async def append(
        self, name: str, seen: WitnessMark | None, before: int, generation: int, value: int, step: int
    ) -> None:
        """Confirm the ids after ``before`` up to ``value``, which a write of the store returned.

        ``name`` is that of the counter's row; ``seen`` is the mark that was read before the write.

        Raises:
            StoreOutcomeUnknown: The ids must not be issued.
            WitnessOvertaken: The same, since the present mark is past them, and they are in no gap.
        """
        ids = Gap(before, value)
        for _ in range(_CONFIRMATIONS):
            mark = self._confirm(name, seen, ids, generation, step)
            if await self._replacements.add(_replacement(name, mark, seen)):
                return
            seen = await self.read_after_write(name)
        raise WitnessOvertaken(f"the mark of {name!r} changed in each of {_CONFIRMATIONS} attempts; try again")

    async def replace(self, name: str, seen: WitnessMark, value: int) -> bool:
        """Change the value of a mark; return whether it was still the present mark.

        Raises:
            StoreOutcomeUnknown: It may have been replaced.
        """
        gaps = gaps_up_to(seen.gaps, value, seen.step)
        mark = self._new_mark(seen.generation, value, seen.step, gaps)
        return await self._replacements.add(_replacement(name, mark, seen))

    async def raise_to(
        self, name: str, seen: WitnessMark | None, generation: int, value: int, step: int, *, counts: bool
    ) -> bool:
        """Move the mark to a row of a newer generation.

        Does nothing if the mark is past the row, or counts in the other direction.

        ``value`` is the row's counter, which counts if ``counts`` is true (``counts_ids``);
        ``seen`` is the mark that was read before the row.

        Returns:
            False if the mark changed since it was read.

        Raises:
            StoreOutcomeUnknown: The mark may have moved.
        """
        if seen is not None and not _may_move(seen, generation, value, step, counts=counts):
            return True
        if seen is not None and not counts:  # the ids of an earlier sequence stay confirmed
            value, step = seen.value, seen.step
        return await self._replacements.add(_replacement(name, self._new_mark(generation, value, step), seen))

    async def read_after_write(self, name: str) -> WitnessMark | None:
        """Return a mark as ``read`` does, after a write of the store.

        Raises:
            StoreOutcomeUnknown: The witness failed.
        """
        try:
            return await self.read(name)
        except StoreFailure as error:
            raise StoreOutcomeUnknown(str(error)) from error

    def _confirm(self, name: str, seen: WitnessMark | None, ids: Gap, generation: int, step: int) -> WitnessMark:
        """Return the mark that confirms ids after another mark, or raise WitnessOvertaken."""
        if seen is None:
            return self._new_mark(generation, ids.last, step)
        if seen.step * step > 0 and seen.generation <= generation and not seen.is_past(ids.before):
            # A newer generation begins without gaps: ids of an older one are not confirmed beside
            # it.
            gaps = add_gap(seen.gaps, Gap(seen.value, ids.before)) if seen.generation == generation else ""
            return self._new_mark(generation, ids.last, step, gaps)
        left = take_from_gap(seen.gaps, ids, step) if seen.generation == generation else None
        if left is None:
            raise WitnessOvertaken(f"another node's mark in the witness is past ids of {name!r}; try again")
        return self._new_mark(generation, seen.value, seen.step, left)

    def _new_mark(self, generation: int, value: int, step: int, gaps: str = "") -> WitnessMark:
        return WitnessMark(generation, value, step, self._random(_TOKEN_BYTES).hex(), gaps)

    async def _read(self, names: list[str]) -> Iterable[Mapping[str, WitnessMark]]:
        try:
            marks = await self._call(self._witness.read(list(dict.fromkeys(names))))
        except StoreRefused as error:
            raise StoreRefused(f"witness: {error}") from error
        except StoreFailure as error:
            raise StoreUnreachable(f"witness: {error}") from error
        return [marks] * len(names)

    async def _replace(self, replacements: list[Replacement]) -> Iterable[bool]:
        first = {each.name: each for each in reversed(replacements)}
        try:
            replaced = await self._call(self._witness.replace(list(first.values())))
        except StoreFailure as error:
            raise StoreOutcomeUnknown(f"witness: {error}") from error
        return [each.name in replaced and first[each.name] is each for each in replacements]

    async def _call(self, call: Awaitable[_T]) -> _T:
        try:
            answer = await within_timeout(self._timeout, call, "the witness")
        except StoreFailure:
            self.is_up = False
            raise
        self.is_up = True
        return answer


def _replacement(name: str, mark: WitnessMark, seen: WitnessMark | None) -> Replacement:
    return Replacement(name, mark, seen.token if seen else "")


def _may_move(mark: WitnessMark, generation: int, value: int, step: int, *, counts: bool) -> bool:
    """Return whether a mark may move to a row of this generation."""
    if mark.generation >= generation:
        return False
    return not counts or (mark.step * step > 0 and not mark.is_past(value))
