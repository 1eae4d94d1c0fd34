"""A witness in memory that fails on command, for unit tests.

witness = MemoryWitness()
witness.next("replace", lost_reply())   # the next replacement is applied, and its answer lost
gate = witness.hold("read")             # the next read waits until gate.set()
witness.down = True                     # from now on the witness is unreachable
del witness.marks["orders"]             # as in an older copy
"""

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement
from tests.support.fake_store import FailsOnCommand

Marks = list[tuple[str, Mark]]


@dataclass
class MemoryWitness(FailsOnCommand):
    """A ``Witness`` in memory, which several nodes may share."""

    WHAT = "witness"

    # The marks by name; tests may change them.
    marks: dict[str, Mark] = field(default_factory=dict)

    async def open(self) -> None:
        await self._call("open")

    async def read(self, names: Collection[str]) -> dict[str, Mark]:
        answer: dict[str, Mark] = await self._call("read", tuple(names))
        return answer

    async def replace(self, replacements: Many[Replacement]) -> set[str]:
        answer: set[str] = await self._call("replace", tuple(replacements))
        return answer

    async def list(self, after: str, limit: int) -> Marks:
        answer: Marks = await self._call("list", after, limit)
        return answer

    async def forget(self, names: Collection[str]) -> int:
        answer: int = await self._call("forget", tuple(names))
        return answer

    def _open(self) -> None:
        pass

    def _read(self, names: Collection[str]) -> dict[str, Mark]:
        return {name: self.marks[name] for name in names if name in self.marks}

    def _replace(self, replacements: Many[Replacement]) -> set[str]:
        for name, mark, seen in replacements:
            if name not in self.marks or self.marks[name].token == seen:
                self.marks[name] = mark
        return {name for name, mark, _ in replacements if self.marks[name].token == mark.token}

    def _list(self, after: str, limit: int) -> Marks:
        ordered = sorted(self.marks.items(), key=lambda item: item[0].encode())
        return [item for item in ordered if item[0].encode() > after.encode()][:limit]

    def _forget(self, names: Collection[str]) -> int:
        return sum(self.marks.pop(name, None) is not None for name in names)
