"""Calls of a store: their proxy, those that callers share, and the health that they show."""

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import structlog

from idalloc_server.domain.errors import (
    Refusal,
    ServerDraining,
    StoreExchanged,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from idalloc_server.domain.store.protocol import WRITES
from idalloc_server.telemetry.traces import Traces

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")
_Target = TypeVar("_Target")
_Method = Callable[..., Awaitable[Any]]

_log = structlog.get_logger("idalloc.store")


def proxied(
    target: _Target, protocol: type, timeout: float, *, counts: Counter[str] | None = None, traces: Traces | None = None
) -> _Target:
    """Return a store, or a witness, as a serving process calls it.

    A call but ``open`` and ``close`` that takes more than ``timeout`` seconds raises
    StoreOutcomeUnknown: it may have been applied, or may be later. Calls are counted by method and
    outcome, such as ``grant ok``. An error that only the caller caused, such as a deleted sequence,
    is ok: the store answered. Writes of a store have spans if ``traces`` is not None.
    """
    proxy = _Proxy(target, protocol.__name__.lower(), timeout, Counter() if counts is None else counts)
    for name, method in vars(protocol).items():
        if inspect.iscoroutinefunction(method):
            call = getattr(target, name)
            if traces is not None and name in WRITES:
                call = traces.trace_write(call, name, proxy.address)
            setattr(proxy, name, proxy.surround(call, name))
    return cast(_Target, proxy)


@dataclass(eq=False)
class _Proxy:
    _target: object
    _kind: str  # store or witness
    _timeout: float
    _counts: Counter[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def surround(self, call: _Method, name: str) -> _Method:
        # An opening store may create tables, and ``Stores.open`` repeats it.
        timeout = None if name in ("open", "close") else self._timeout
        counted = f"witness_{name}" if self._kind == "witness" else name

        async def surrounded(*args: Any, **kwargs: Any) -> Any:
            outcome = "ok"
            try:
                async with asyncio.timeout(timeout):
                    return await call(*args, **kwargs)
            except TimeoutError:
                outcome = "unavailable"
                raise StoreOutcomeUnknown(f"the {self._kind} did not answer within {self._timeout:g} s") from None
            except (StoreUnavailable, asyncio.CancelledError):
                outcome = "unavailable"
                raise
            except StoreRefused:
                outcome = "refused"
                raise
            except Exception as error:
                outcome = "ok" if isinstance(error, Refusal) else "error"
                raise
            finally:
                self._counts[f"{counted} {outcome}"] += 1

        return surrounded


@dataclass(eq=False)
class Batches(Generic[_Item, _Answer]):
    """Group commit: passes items to a call that takes many of them, one call at a time.

    A caller that is cancelled gets no answer; its item may still be passed.
    """

    _name: str  # the name of the task that makes the calls
    # Takes a batch, and returns the answer, or the error, of each item in order. What it raises is
    # the error of each item.
    _call: Callable[[list[_Item]], Awaitable[Iterable[_Answer | Exception]]]
    _most: int  # the most items of a call
    _waiting: deque[tuple[_Item, asyncio.Future[_Answer]]] = field(default_factory=deque)
    _task: asyncio.Task[None] | None = None

    async def add(self, item: _Item) -> _Answer:
        """Return the answer to an item, or raise its error; ServerDraining after a cancellation."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        self._waiting.append((item, answer))
        if self._task is None:
            self._task = loop.create_task(self._run(), name=self._name)
        return await answer

    async def _run(self) -> None:
        batch: list[tuple[_Item, asyncio.Future[_Answer]]] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
                try:
                    answers = await self._call([item for item, _ in batch])
                except Exception as error:
                    answers = [error] * len(batch)
                for (_, future), answer in zip(batch, answers, strict=True):
                    settle(future, answer)
        finally:
            # Items are left only if the task was cancelled.
            self._task = None
            for _, future in [*batch, *self._waiting]:
                settle(future, ServerDraining())
            self._waiting.clear()


def settle(future: "asyncio.Future[_Answer]", outcome: "_Answer | BaseException") -> None:
    """Give a caller its answer, or its error, unless it was cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


@dataclass(eq=False)
class StoreHealth:
    """Collects the results of store calls, and evaluates them once a second."""

    error: str = ""  # the last error, while the store fails; empty while it works
    _failures: int = 0
    _last_error: StoreFailure | None = None
    _has_succeeded: bool = False
    _is_exchanged: bool = False  # whether the sequences were, until a grant of them succeeds

    def record_success(self) -> None:
        """Record a grant that the store made."""
        self._has_succeeded = True
        self._is_exchanged = False

    def record_heartbeat(self) -> None:
        """Record another write of the store, which does not show that the sequences are back."""
        self._has_succeeded = not self._is_exchanged

    def record_failure(self, error: Exception) -> None:
        """Record a failed call or refill.

        Only errors of the store count, and not those of a single sequence.
        """
        if isinstance(error, StoreFailure) and error.is_of_store:
            self._failures += 1
            self._is_exchanged |= isinstance(error, StoreExchanged)
            self._last_error = error

    def evaluate(self) -> None:
        """Update ``error`` from the results since the last call.

        Logs failures under the reason of the last one, and the recovery.
        """
        if self._last_error:
            self.error = str(self._last_error)
            if isinstance(self._last_error, StoreRefused):
                _log.error("store_refused", count=self._failures, error=self.error)
            else:
                _log.error("store_unavailable", count=self._failures, error=self.error)
        elif self._has_succeeded and self.error:
            self.error = ""
            _log.info("store_recovered")
        self._failures = 0
        self._last_error = None
        self._has_succeeded = False

    async def evaluate_every_second(self, report: Callable[[str], None]) -> None:
        """Evaluate once a second until cancelled, and pass ``error`` to ``report`` each time."""
        while True:
            await asyncio.sleep(1)
            self.evaluate()
            report(self.error)
