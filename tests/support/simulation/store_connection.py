"""A simulated node's connection to the store: injects faults, and records the store's answers."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from idalloc_server.domain.allocation.counter_row import FIRST_USE
from idalloc_server.domain.errors import Refusal, StoreOutcomeUnknown, StoreUnreachable
from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR, Reset, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import NO_FLOOR, Claim, Grant, GrantFloor, RecordedAllocation, Revision, Row
from idalloc_server.domain.store.retention import RecordPosition, Retention
from tests.support.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.support.simulation.world import World

# Seconds from a node to the store, and back.
LATENCY = 0.001


class StoreFault(NamedTuple):
    """A fault of one call to the store.

    Attributes:
        applied: How many times the call is applied in a row; the last result is the answer.
        error: The error that replaces the answer.
        before: Seconds until the call is applied.
        after: Seconds from then on until it is answered.
        again: Seconds after which the call is applied once more; 0 for never.
    """

    applied: int = 1
    error: type[Refusal] | None = None
    before: float = 0.0
    after: float = 0.0
    again: float = 0.0


@dataclass
class Ledger:
    """The store's answers to one node.

    Attributes:
        proofs: By counter and generation, the time at which the last write that returned this generation was sent.
        last: By counter, the last grant.
        behind: By counter, ids granted by a store that was behind what the node had seen (P3).
        all: Name, counter and settings after each grant.
        granted: Number of ids granted.
        unknown: Number of ids requested by writes with an unknown outcome.
        returned: Number of ids returned, by the answers.
        forgets_periods: Whether the node may have forgotten a current period, since its clock was set.
    """

    proofs: dict[tuple[str, int], float] = field(default_factory=dict)
    last: dict[str, Grant] = field(default_factory=dict)
    behind: dict[str, list[range]] = field(default_factory=lambda: defaultdict(list))
    all: list[tuple[str, int, Sequence]] = field(default_factory=list)
    granted: int = 0
    unknown: int = 0
    returned: int = 0
    forgets_periods: bool = False

    def note(self, name: str, grant: Grant, sent: float) -> None:
        """Records the answer of a grant."""
        self.granted += grant.granted
        self.all.append((name, grant.last_value, grant.sequence))
        seen = self.last.get(name)
        if seen is not None and seen.step * grant.step > 0:
            counts = not self.forgets_periods if PERIOD_SEPARATOR in name else grant.sequence.reset == Reset.NEVER
            back = counts and (seen.last_value - grant.value_before) * grant.step > 0
            if back or grant.generation < seen.generation:
                if grant.granted:
                    self.behind[name].append(granted_ids(grant))
                return
        self.proofs[name, grant.generation] = sent
        self.last[name] = grant

    def note_tail(self, name: str, count: int, version: tuple[int, int, int]) -> None:
        """Records that a tail is returned: from now on the counter may be at the tail's start."""
        seen = self.last.get(name)
        if seen is not None and seen.version == version:
            self.last[name] = seen._replace(last_value=seen.last_value - count * seen.step, granted=0)


def granted_ids(grant: Grant) -> range:
    """Returns the ids of a grant."""
    return range(grant.value_before + grant.step, grant.last_value + grant.step, grant.step)


class StoreConnection:
    """A ``Store`` that forwards each call to the simulated store, with the next fault of its method."""

    def __init__(self, world: "World", store: Store, loop: SimulatedLoop) -> None:
        self._world = world
        self._store = store
        self._loop = loop
        self.ledger = Ledger()
        self.cut = False
        self.pending = 0

    @property
    def address(self) -> str:
        return "simulated:"

    async def open(self) -> None:
        await self._call("open")

    async def grant(self, name: str, wanted: int, lease_ms: int, floor: GrantFloor = NO_FLOOR) -> Grant | None:
        return await self._granting(name, wanted, "grant", name, wanted, lease_ms, floor)

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: GrantFloor = NO_FLOOR
    ) -> Grant | None:
        return await self._granting(name, wanted, "grant_timestamps", name, wanted, lease_ms, now, ahead, floor)

    async def create(self, row: Row) -> Row:
        by_first_use = row.revised_by.startswith(FIRST_USE)
        if by_first_use and row.name in self.ledger.last:
            self._world.problems.append(f"sequence {row.name!r}, which the node had seen, is created anew (P3)")
        assert row.last_value is not None
        granted = (row.last_value - row.sequence.before_start) // row.sequence.step if by_first_use else 0
        sent = self._world.now
        try:
            created: Row = await self._call("create", row)
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self.ledger.unknown += granted
            raise
        if by_first_use and created.revised_by == row.revised_by:
            grant = Grant(row.last_value, granted, row.sequence, 0, row.generation, (0, 0, row.generation), writes=0)
            self.ledger.note(row.name, grant, sent)
        return created

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        await self._call("open_period", name, sequence, at_least, generation)

    async def get(self, name: str) -> Row | None:
        row: Row | None = await self._call("get", name)
        return row

    async def list(self, prefix: str, after: str, limit: int, *, deleted: bool, periods: bool) -> "list[Row]":
        rows: list[Row] = await self._call("list", prefix, after, limit, deleted=deleted, periods=periods)
        return rows

    async def revise(self, name: str, revision: int, change: Revision) -> Row | None:
        row: Row | None = await self._call("revise", name, revision, change)
        return row

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        stored: dict[str, RecordedAllocation] = await self._call("record", allocations)
        return stored

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        found: RecordedAllocation | None = await self._call("recorded", request_id)
        return found

    async def newest_recorded(self) -> RecordPosition | None:
        newest: RecordPosition | None = await self._call("newest_recorded")
        return newest

    async def count_recorded(self, limit: int) -> int:
        count: int = await self._call("count_recorded", limit)
        return count

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        count: int = await self._call("forget_recorded", retention, limit)
        return count

    async def give_back(self, name: str, count: int, version: tuple[int, int, int]) -> bool:
        self.ledger.note_tail(name, count, version)
        returned: bool = await self._call("give_back", name, count, version)
        self.ledger.returned += count * returned
        return returned

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        claim: Claim = await self._call("claim_start", prefix, at_least, holder, stale_after)
        return claim

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        await self._call("keep_prefix", prefix, holder, stale_after)

    async def release_prefix(self, prefix: int, holder: str) -> None:
        await self._call("release_prefix", prefix, holder)

    async def claimed_starts(self) -> dict[int, int]:
        claimed: dict[int, int] = await self._call("claimed_starts")
        return claimed

    async def raise_start(self, prefix: int, last_start: int) -> None:
        await self._call("raise_start", prefix, last_start)

    async def now(self) -> float | None:
        now: float | None = await self._call("now")
        return now

    async def close(self) -> None:
        self.cut = True

    async def _granting(self, name: str, wanted: int, method: str, *arguments: object) -> Grant | None:
        sent = self._world.now
        try:
            grant: Grant | None = await self._call(method, *arguments)
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self.ledger.unknown += wanted
            raise
        if grant is not None:
            self.ledger.note(name, grant, sent)
        return grant

    async def _call(self, method: str, *arguments: object, **options: object) -> Any:
        if self.cut or self._world.down:
            raise StoreUnreachable("the store cannot be reached")
        answer = self._loop.create_future()
        apply = lambda: getattr(self._store, method)(*arguments, **options)  # noqa: E731
        self._world.store_loop.create_task(self._forward(method, apply, answer))
        self.pending += 1
        try:
            return await answer
        finally:
            self.pending -= 1

    async def _forward(self, method: str, apply: Callable[[], Awaitable[Any]], answer: asyncio.Future[Any]) -> None:
        waiting = self._world.faults[method]
        fault = waiting.popleft() if waiting else StoreFault()
        await asyncio.sleep(LATENCY + fault.before)
        result: Any = None
        refusal: Refusal | None = None
        try:
            for _ in range(fault.applied):
                result = await self._world.checked(method, apply)
        except Refusal as error:
            refusal = error
        if fault.again:
            asyncio.get_running_loop().create_task(self._apply_again(method, apply, fault.again))
        if fault.error is not None:
            refusal = fault.error("injected")
        await asyncio.sleep(LATENCY + fault.after)
        if answer.done() or self.cut:
            return
        if refusal is not None:
            answer.set_exception(refusal)
        else:
            answer.set_result(result)

    async def _apply_again(self, method: str, apply: Callable[[], Awaitable[Any]], seconds: float) -> None:
        await asyncio.sleep(seconds)
        with suppress(Refusal):
            await self._world.checked(method, apply)
