"""A ``Store`` that forwards each call to one method."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.identity import ANY_STORE, Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import (
    NO_MARK,
    Claim,
    Demand,
    Grant,
    Mark,
    RecordedAllocation,
    RecordedEnd,
    Row,
    RowChange,
    RowVersion,
)
from idalloc_server.domain.store.retention import RecordPosition, Retention

Rows = list[Row]


class ForwardingStore(ABC):
    """Forwards the calls of a ``Store``, but for ``close``, to ``_call``."""

    @abstractmethod
    async def _call(self, method: str, *arguments: Any) -> Any:
        """Answer a call; ``list`` has its keywords as the last arguments."""

    opened: Mapping[str, str]

    async def open(self, opening: Opening = ANY_STORE) -> None:
        self.opened = await self._call("open", opening)

    async def grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mark = NO_MARK, demand: Demand | None = None
    ) -> Grant | None:
        answer: Grant | None = await self._call("grant", name, wanted, lease_ms, floor, demand)
        return answer

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mark = NO_MARK
    ) -> Grant | None:
        answer: Grant | None = await self._call("grant_timestamps", name, wanted, lease_ms, now, ahead, floor)
        return answer

    async def create(self, row: Row) -> Row:
        answer: Row = await self._call("create", row)
        return answer

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        await self._call("open_period", name, sequence, at_least, generation)

    async def get(self, name: str) -> Row | None:
        answer: Row | None = await self._call("get", name)
        return answer

    async def list(self, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool) -> Rows:
        answer: Rows = await self._call("list", prefix, after, limit, with_deleted, with_periods)
        return answer

    async def revise(self, name: str, revision: int, change: RowChange) -> Row | None:
        answer: Row | None = await self._call("revise", name, revision, change)
        return answer

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        answer: dict[str, RecordedAllocation] = await self._call("record", allocations)
        return answer

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        answer: RecordedAllocation | None = await self._call("recorded", request_id)
        return answer

    async def newest_recorded(self) -> RecordPosition | None:
        answer: RecordPosition | None = await self._call("newest_recorded")
        return answer

    async def recorded_ends(self) -> Many[RecordedEnd]:
        answer: Many[RecordedEnd] = await self._call("recorded_ends")
        return answer

    async def count_recorded(self, limit: int) -> int:
        answer: int = await self._call("count_recorded", limit)
        return answer

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        answer: int = await self._call("forget_recorded", retention, limit)
        return answer

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        answer: bool = await self._call("give_back", name, count, version)
        return answer

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        answer: Claim = await self._call("claim_start", prefix, at_least, holder, stale_after)
        return answer

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        await self._call("keep_prefix", prefix, holder, stale_after)

    async def release_prefix(self, prefix: int, holder: str) -> None:
        await self._call("release_prefix", prefix, holder)

    async def claimed_starts(self) -> dict[int, int]:
        answer: dict[int, int] = await self._call("claimed_starts")
        return answer

    async def raise_start(self, prefix: int, last_start: int) -> None:
        await self._call("raise_start", prefix, last_start)

    async def now(self) -> float | None:
        answer: float | None = await self._call("now")
        return answer


async def call_store(store: Store, method: str, arguments: tuple[Any, ...]) -> Any:
    """Call a store with the arguments of ``ForwardingStore._call``."""
    if method == "open":
        await store.open(*arguments)
        return store.opened
    if method == "list":
        *rest, deleted, periods = arguments
        return await store.list(*rest, with_deleted=deleted, with_periods=periods)
    return await getattr(store, method)(*arguments)
