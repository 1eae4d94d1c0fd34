"""A witness in memory that fails on command, for unit tests.

witness = MemoryWitness()
witness.next("replace", lost_reply())   # the next replacement is applied, and its answer lost
gate = witness.hold("read")             # the next read waits until gate.set()
witness.down = True                     # from now on the witness is unreachable
del witness.marks["orders"]             # as in an older copy
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement
from tests.support.fake_store import Call, Fault
from tests.support.waiting import hold_for_async

Marks = list[tuple[str, Mark]]


@dataclass
class MemoryWitness:
    """A ``Witness`` in memory, which several nodes may share."""

    down: bool = False  # while true every call raises ``StoreUnreachable``
    closed: bool = False
    # The marks by name; tests may change them.
    marks: dict[str, Mark] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)  # all calls, including failed ones
    _faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))

    def next(self, method: str, *faults: Fault) -> None:
        """Set the faults of the next calls of a method, one for each call."""
        self._faults[method].extend(faults)

    def hold(self, method: str) -> asyncio.Event:
        """Make the next call of a method wait for the event before it is applied."""
        gate = asyncio.Event()
        self.next(method, Fault(before=gate))
        return gate

    def calls_of(self, method: str) -> list[Call]:
        """Return the calls of one method so far."""
        return [call for call in self.calls if call.method == method]

    @property
    def address(self) -> str:
        return "memory:"

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

    async def close(self) -> None:
        self.closed = True

    def apply(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Apply one call at once, and return its answer; ``down`` and faults do not count."""
        return getattr(self, f"_{method}")(*arguments)

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Run one call, with the fault that is set for it."""
        self.calls.append(Call(method, arguments))
        if self.closed or self.down:
            raise StoreUnreachable(f"the witness is {'closed' if self.closed else 'down'}")
        faults = self._faults[method]
        fault = faults.popleft() if faults else Fault()
        await hold_for_async(fault.delay, "the witness's latency; also 0: a real one always yields to other tasks")
        if fault.before:
            await fault.before.wait()
        answers = [self.apply(method, arguments) for _ in range(fault.applied)]
        if fault.after:
            await fault.after.wait()
        if fault.error:
            raise fault.error
        return answers[-1]

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
