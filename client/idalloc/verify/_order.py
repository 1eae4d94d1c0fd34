"""Checks that each range follows all ranges that were answered before it was asked for."""

from typing import NamedTuple

import numpy as np

from idalloc.verify._columns import Bits, Ints, argsort, factorize_rows, pack, running_max


class Calls(NamedTuple):
    """Columns of calls."""

    group: Ints  # the number of the group in which calls have an order
    asked: Ints  # when the call began, in nanoseconds
    answered: Ints  # when the reply arrived, in nanoseconds
    back: Ints  # the call's first id along the order
    front: Ints  # the call's last id along the order


class OrderChecker:
    """Checks the order of calls, batch by batch, each of later times than the one before.

    A finding is never a false alarm: another call that is further along the order was answered
    before this one was asked for. Within a batch no violation is missed. Of earlier batches, calls
    answered after the newest batch began are kept, up to a limit. Of all others only the furthest
    id of each group is kept, and the time of the last reply: calls asked for before that time are
    not compared with it.

    Args:
        max_calls: The calls of earlier batches to keep.
    """

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._numbers: dict[tuple[int, ...], int] = {}
        self._until = -1  # the last reply of the calls that are not kept
        self._reach = np.empty(0, np.int64)  # the furthest id of those calls, by group
        self._known = np.empty(0, np.bool_)  # whether a group has such calls
        none = np.empty(0, np.int64)
        self._recent = Calls(group=none, asked=none, answered=none, back=none, front=none)

    def groups(self, *keys: Ints) -> Ints:
        """Return the number of each row's group, which is the same in all batches."""
        examples, codes = factorize_rows(*keys)
        rows = zip(*(key[examples].tolist() for key in keys), strict=True)
        numbers = [self._numbers.setdefault(row, len(self._numbers)) for row in rows]
        return np.array(numbers, np.int64)[codes]

    def check(self, calls: Calls) -> tuple[Bits, Ints]:
        """Check a batch.

        Returns:
            Which calls are out of order, and for each of these the furthest id answered before it
            was asked for.
        """
        if not len(calls.group):
            return np.empty(0, np.bool_), np.empty(0, np.int64)
        known = len(self._known)
        missing = int(calls.group.max()) + 1 - known
        if missing > 0:
            more = max(missing, known)  # at least doubled, so that growth is rare
            self._reach = np.pad(self._reach, (0, more))
            self._known = np.pad(self._known, (0, more))
        wrong = (calls.asked > self._until) & self._known[calls.group]
        furthest = self._reach[calls.group]
        wrong &= furthest >= calls.back

        before = calls
        if len(self._recent.group):
            before = Calls._make(map(np.concatenate, zip(self._recent, calls, strict=True)))
        ends, begins = pack(before.group, before.answered, calls.group, calls.asked)
        order = argsort(ends)
        groups = before.group
        fronts = before.front
        backs = before.back
        if order is not None:
            ends, groups, fronts, backs = (column[order] for column in (ends, groups, fronts, backs))
        reach = running_max(groups, fronts)
        # Most calls follow all that were answered before their own reply, and so all before they
        # were asked for.
        doubtful = np.flatnonzero((groups[1:] == groups[:-1]) & (reach[:-1] >= backs[1:])) + 1
        doubtful = (doubtful if order is None else order[doubtful]) - len(self._recent.group)
        doubtful = doubtful[doubtful >= 0]
        at = np.searchsorted(ends, begins[doubtful], side="left") - 1
        also = (at >= 0) & (groups[at] == calls.group[doubtful]) & (reach[at] >= calls.back[doubtful])
        doubtful = doubtful[also]
        at = at[also]
        furthest[doubtful] = np.where(wrong[doubtful], np.maximum(furthest[doubtful], reach[at]), reach[at])
        wrong[doubtful] = True

        self._forget(before, int(calls.asked.min()))
        return wrong, furthest[wrong]

    def _forget(self, calls: Calls, earliest: int) -> None:
        """Keep the calls with which calls in flight may have to be compared, up to the limit."""
        old = calls.answered < earliest
        if len(old) - int(old.sum()) > self._max_calls:
            oldest = np.partition(calls.answered, len(old) - self._max_calls)[len(old) - self._max_calls]
            old |= calls.answered < oldest
        if old.any():
            self._until = max(self._until, int(calls.answered[old].max()))
            groups = calls.group[old]
            fresh = groups[~self._known[groups]]
            self._reach[fresh] = np.iinfo(np.int64).min
            self._known[fresh] = True
            np.maximum.at(self._reach, groups, calls.front[old])
        self._recent = Calls._make(column[~old] for column in calls)
