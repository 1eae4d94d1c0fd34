"""Which sequences have their own series: a million sequences must not make a million series."""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# All sequences without an own series count in this one: no sequence has an empty name.
OTHER = ""
# The most sequences with an own series, and how many ids a sequence must have issued before.
MAX_SERIES = 100
MIN_IDS = 10_000
# The most sequences that a process counts in order to find those. At the limit it drops the one
# that it counted first.
MAX_COUNTED = 100_000


@dataclass(eq=False)
class SeriesNames:
    """The sequences with an own series: the first ones that issue ``MIN_IDS``.

    They keep it until the server ends.
    """

    names: list[str] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether no further sequence gets a series."""
        return len(self.names) >= MAX_SERIES

    def decide(self, issued: Mapping[str, int]) -> bool:
        """Give series to sequences with enough ids, largest first; return whether any got one."""
        enough = sorted(issued.keys() - set(self.names), key=lambda name: (-issued[name], name))
        new = [name for name in enough if issued[name] >= MIN_IDS][: MAX_SERIES - len(self.names)]
        self.names += new
        return bool(new)


class IssuedSeries:
    """Counts the issued ids of a process by series.

    A count never decreases, also when a sequence gets its series.

    Args:
        workers: How many processes share the calls. At least one of them issues this part of
            ``MIN_IDS``.
    """

    def __init__(self, workers: int = 1) -> None:
        self.issued: Counter[str] = Counter({OTHER: 0})  # ids by sequence with a series, and of all others
        self._part = MIN_IDS / workers
        self._counted: OrderedDict[str, int] = OrderedDict()  # a dict finds its first key slowly after many deletions
        self._enough: set[str] = set()  # the counted ones that issued their part

    def add(self, sequence: str, ids: int) -> None:
        """Count ids that a sequence issued."""
        if sequence in self.issued:
            self.issued[sequence] += ids
            return
        self.issued[OTHER] += ids
        if len(self.issued) > MAX_SERIES:
            return
        if sequence not in self._counted and len(self._counted) >= MAX_COUNTED:
            self._enough.discard(self._counted.popitem(last=False)[0])
        counted = self._counted[sequence] = self._counted.get(sequence, 0) + ids
        if counted >= self._part:
            self._enough.add(sequence)

    def candidates(self) -> dict[str, int]:
        """Return the ids of the sequences that may get a series.

        They are the ``MAX_SERIES`` largest ones with this process' part of ``MIN_IDS``.
        """
        largest = heapq.nlargest(MAX_SERIES, self._enough, key=self._counted.__getitem__)
        return {name: self._counted[name] for name in largest}

    def set_series(self, names: Iterable[str]) -> None:
        """Count these sequences in their own series from now on."""
        for name in names:
            self.issued.setdefault(name, 0)
            self._counted.pop(name, None)
            self._enough.discard(name)
        if len(self.issued) > MAX_SERIES:
            self._counted.clear()
            self._enough.clear()
