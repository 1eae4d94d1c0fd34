"""Did ids come in order? A range that was asked for after another one was answered has to lie behind it."""

from typing import NamedTuple

import numpy as np

from idalloc.verify._columns import Bits, Ints, combine, pack, running_most, sorting


class Calls(NamedTuple):
    """Columns of calls.

    Attributes:
        group: The number of those that are in order with each other.
        asked: When it was asked for, in nanoseconds.
        answered: When it was answered.
        back: Which of its ids comes first in the order.
        front: Which of its ids comes last.
    """

    group: Ints
    asked: Ints
    answered: Ints
    back: Ints
    front: Ints


class Order:
    """Looks at calls, batch by batch, of which each is about later times than the one before.

    What it tells is always true: that call was asked for after another one was answered that is ahead of it. Within a
    batch it misses nothing. Of earlier batches it remembers the calls that were answered after the first one of the
    newest batch was asked for, as long as these are not more than ``most``. Of all others it knows how far ids had come
    when the last of them was answered: a call that was asked for before that is not compared with them.

    Args:
        most: How many calls of earlier batches it remembers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._until = -1  # when the last call was answered that is not remembered by itself
        self._reach = np.empty(0, np.int64)  # by group, how far such calls had come
        self._known = np.empty(0, np.bool_)
        none = np.empty(0, np.int64)
        self._recent = Calls(none, none, none, none, none)

    def check(self, calls: Calls) -> tuple[Bits, Ints]:
        """Looks at a batch.

        Returns:
            Which calls are out of order, and, for these, the furthest id that was answered with before they began.
        """
        if not len(calls.group):
            return np.empty(0, np.bool_), np.empty(0, np.int64)
        self._grow(int(calls.group.max()) + 1)
        wrong = (calls.asked > self._until) & self._known[calls.group]
        furthest = self._reach[calls.group]
        wrong &= furthest >= calls.back

        before = (
            calls
            if not len(self._recent.group)
            else Calls._make(map(np.concatenate, zip(self._recent, calls, strict=True)))
        )
        ends, begins = pack(before.group, before.answered, calls.group, calls.asked)
        order = sorting(ends)
        groups, fronts, backs = before.group, before.front, before.back
        if order is not None:
            ends, groups, fronts, backs = ends[order], groups[order], fronts[order], backs[order]
        reach = running_most(groups, fronts)
        # Most lie behind all that was answered before themselves, so also behind what was before they were asked for.
        doubtful = np.flatnonzero((groups[1:] == groups[:-1]) & (reach[:-1] >= backs[1:])) + 1
        doubtful = (doubtful if order is None else order[doubtful]) - len(self._recent.group)
        doubtful = doubtful[doubtful >= 0]
        at = np.searchsorted(ends, begins[doubtful], side="left") - 1
        also = (at >= 0) & (groups[at] == calls.group[doubtful]) & (reach[at] >= calls.back[doubtful])
        doubtful, at = doubtful[also], at[also]
        furthest[doubtful] = np.where(wrong[doubtful], np.maximum(furthest[doubtful], reach[at]), reach[at])
        wrong[doubtful] = True

        self._forget(before, int(calls.asked.min()))
        return wrong, furthest[wrong]

    def _forget(self, calls: Calls, earliest: int) -> None:
        """Keeps of calls only what those that are still under way may have to be compared with."""
        old = calls.answered < earliest
        if len(old) - int(old.sum()) > self._most:
            least = np.partition(calls.answered, len(old) - self._most)[len(old) - self._most]
            old |= calls.answered < least
        if old.any():
            self._until = max(self._until, int(calls.answered[old].max()))
            groups = calls.group[old]
            fresh = groups[~self._known[groups]]
            self._reach[fresh] = np.iinfo(np.int64).min
            self._known[fresh] = True
            np.maximum.at(self._reach, groups, calls.front[old])
        self._recent = Calls._make(column[~old] for column in calls)

    def _grow(self, groups: int) -> None:
        if groups > len(self._known):
            size = max(groups, 2 * len(self._known))
            more = size - len(self._known)
            self._reach = np.concatenate([self._reach, np.zeros(more, np.int64)])
            self._known = np.concatenate([self._known, np.zeros(more, np.bool_)])


class Groups:
    """Numbers groups, over all batches."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, *columns: Ints) -> Ints:
        """The number of the group of each row that columns form."""
        examples, codes = combine(*columns)
        keys = zip(*(column[examples].tolist() for column in columns), strict=True)
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in keys]
        return np.array(numbers, np.int64)[codes]
