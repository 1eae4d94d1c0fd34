"""Makes the calls: one task for each caller, on channels that share no connection."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import grpc

from idalloc._core.errors import (
    PermissionDenied,
    ProtocolError,
    ServerUnreachable,
    Unauthenticated,
    Unavailable,
)
from idalloc._core.reply_checks import check_chunk, check_reply
from idalloc._core.rpc_errors import from_rpc_error
from idalloc._issued_log.log import IssuedLog
from idalloc._transport.config import ChannelConfig
from idalloc.bench._latencies import Latencies
from idalloc.bench._plan import Call, Plan, calls
from idalloc.bench._verifier import Mark, Trail, Verifier

# How fine the chart over time is.
INTERVAL_NS = 100_000_000
# The event loop may end a pause early by so many seconds.
TIMER_RESOLUTION = 0.001

# How long a caller that found no server, or none that serves, waits before its next call: such calls fail at once, and
# would keep this process busy.
PAUSE = 0.1

# Nothing is tried again: what fails is to be counted.
_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.primary_user_agent", f"idalloc-bench/{version('idalloc')}"),
]


class Tally:
    """What came of one kind of call.

    Attributes:
        latencies: Of calls that succeeded; of a stream, from its start to its end.
        messages: Of a stream's messages: each from the one before, or from the start, until it was here.
        ids: How many ids came.
        errors: Failed calls, by status and reason.
        cut: Streams that were under way when the time was over, and ended by the bench.
    """

    def __init__(self, rpc: str) -> None:
        self.rpc = rpc
        self.latencies = Latencies()
        self.messages = Latencies()
        self.ids = 0
        self.errors: Counter[tuple[grpc.StatusCode, str]] = Counter()
        self.cut = 0


class Caller:
    """One of those who call, each on one of the channels.

    Attributes:
        methods: What makes each kind of call, by its name.
        trail: What it got last.
    """

    def __init__(self, channel: grpc.aio.Channel, kinds: list[Call]) -> None:
        self.methods = {call.rpc: _method(channel, call) for call in kinds}
        self.trail = Trail()


class Begin(NamedTuple):
    """What was so when a call began.

    Attributes:
        at: The time, for the log.
        mark: How far ids had come, where they are looked at.
    """

    at: int
    mark: Mark | None


class Bench:
    """One run of a plan.

    Args:
        plan: The plan.
        access: How the server is called.
        log: Where each reply is written down.

    Attributes:
        plan: The plan.
        tallies: What came of each kind of call, by its name.
        messages: The first message of each kind of error.
        verifier: What looks at the ids, if the plan says so.
        date: When counting began.
        seconds: For how long calls were counted: until the last one was answered.
        cpu_seconds: The time that this process computed meanwhile.
        calls_over_time: How many calls, or messages of streams, came in each tenth of a second.
        ids_over_time: How many ids.
    """

    def __init__(self, plan: Plan, access: ChannelConfig, log: IssuedLog | None = None) -> None:
        self.plan = plan
        self._access = access
        self._log = log
        self._calls = calls(plan)
        self.tallies = {call.rpc: Tally(call.rpc) for call in self._calls}
        self.messages: dict[tuple[grpc.StatusCode, str], str] = {}
        self.verifier = Verifier() if plan.verify else None
        self.date = datetime.now(UTC)
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.calls_over_time: Counter[int] = Counter()
        self.ids_over_time: Counter[int] = Counter()
        self._counting = False
        self._over = False
        self._left = plan.total
        self._began = 0
        self._cpu = 0.0
        self._time_limit: float | None = None

    @property
    def errors(self) -> int:
        """How many calls failed."""
        return sum(tally.errors.total() for tally in self.tallies.values())

    async def run(self) -> None:
        """Connects, warms up, and counts.

        Raises:
            ServerUnreachable: There is no server.
            ExceptionGroup: Of OSError: the log could not be written. Of IdallocError: the server lets nobody in.
        """
        plan = self.plan
        connections = min(plan.connections, plan.concurrency)
        channels = [self._open() for _ in range(connections)]
        try:
            await self._connect(channels)
            if plan.total is None:
                self._time_limit = time.monotonic() + plan.warm_up + plan.duration + plan.timeout
            async with asyncio.TaskGroup() as callers:
                for number in range(plan.concurrency):
                    callers.create_task(self._call_in_turn(channels[number % connections], number))
                if plan.warm_up:
                    await asyncio.sleep(plan.warm_up)
                self._count()
                if plan.total is None:
                    await asyncio.sleep(plan.duration + TIMER_RESOLUTION)
                    self._over = True
            self.seconds = (time.perf_counter_ns() - self._began) / 1e9
            self.cpu_seconds = time.process_time() - self._cpu
        finally:
            for channel in channels:
                await channel.close()

    async def _connect(self, channels: list[grpc.aio.Channel]) -> None:
        ready = asyncio.gather(*(channel.channel_ready() for channel in channels))
        try:
            await asyncio.wait_for(ready, self.plan.timeout)
        except TimeoutError:
            await self._tell_why(channels[0])
            raise ServerUnreachable(f"no answer from {self.plan.target} in {self.plan.timeout:g} s") from None

    def _open(self) -> grpc.aio.Channel:
        options = [*_OPTIONS, *self._access.options]
        if self._access.credentials is None:
            return grpc.aio.insecure_channel(self.plan.target, options=options)
        return grpc.aio.secure_channel(self.plan.target, self._access.credentials, options=options)

    async def _tell_why(self, channel: grpc.aio.Channel) -> None:
        """Raises why there is no connection, which gRPC tells to calls alone."""
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            await ask(b"", timeout=1.0)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise from_rpc_error(error, self.plan.target) from None

    def _count(self) -> None:
        self._counting = True
        self.date = datetime.now(UTC)
        self._cpu = time.process_time()
        self._began = time.perf_counter_ns()

    async def _call_in_turn(self, channel: grpc.aio.Channel, number: int) -> None:
        """One caller: a call after the other, until it is over."""
        caller = Caller(channel, self._calls)
        turn = number * 31 % len(self._calls)  # not all callers begin with the same kind of call
        while not self._over:
            if self._counting and self._left is not None:
                if not self._left:
                    return
                self._left -= 1
            call = self._calls[turn]
            turn = (turn + 1) % len(self._calls)
            await (self._stream if call.chunk else self._unary)(caller, call)

    async def _unary(self, caller: Caller, call: Call) -> None:
        counted, begin = self._counting, self._begin()
        began = time.perf_counter_ns()
        try:
            method = caller.methods[call.rpc]
            reply = await method(call.request, timeout=self.plan.timeout, metadata=self._access.metadata)
        except grpc.RpcError as error:
            await self._refused(call, error, counted)
            return
        ended = time.perf_counter_ns()
        check = partial(check_reply, call.message)
        if self._received(caller, call, reply, check, begin, ended, counted) and counted:
            self.tallies[call.rpc].latencies.add(ended - began)

    async def _stream(self, caller: Caller, call: Call) -> None:
        counted, begin, tally, missing = self._counting, self._begin(), self.tallies[call.rpc], call.ids
        timeout = self.plan.timeout * -(-call.ids // call.chunk)
        if self._time_limit is not None:
            timeout = min(timeout, self._time_limit - time.monotonic())
        began = before = time.perf_counter_ns()
        stream = caller.methods[call.rpc](call.request, timeout=timeout, metadata=self._access.metadata)
        try:
            async for reply in stream:
                now = time.perf_counter_ns()
                check = partial(check_chunk, call.message, missing=missing)
                count = self._received(caller, call, reply, check, begin, now, self._counting)
                if not count:
                    return
                missing -= count
                if self._counting:
                    tally.messages.add(now - before)
                if self._over:
                    tally.cut += 1
                    return
                before = time.perf_counter_ns()
        except grpc.RpcError as error:
            await self._refused(call, error, self._counting)
            return
        finally:
            stream.cancel()
        if missing > 0:
            self._failed(call, grpc.StatusCode.UNKNOWN, "INCOMPLETE", f"{missing} ids were missing", self._counting)
        elif counted:
            tally.latencies.add(time.perf_counter_ns() - began)

    def _begin(self) -> Begin:
        return Begin(self._log.now() if self._log else 0, self.verifier.mark() if self.verifier else None)

    def _received(
        self,
        caller: Caller,
        call: Call,
        reply: Any,
        check: Callable[[Any], object],
        begin: Begin,
        now: int,
        counted: bool,
    ) -> int:
        """Takes a reply in, the only place where one arrives; returns how many ids it brought; 0 if it failed."""
        try:
            check(reply)
        except ProtocolError as error:
            self._failed(call, error.code, error.reason, str(error), counted)
            if self.verifier is not None:
                self.verifier.refuse(str(error))
            return 0
        count = call.decode(reply)
        if self._log is not None and call.of_doc_ids:
            self._log.doc_ids(reply, begin.at)
        elif self._log is not None:
            self._log.range(call.message, reply, begin.at)
        if self.verifier is not None and call.of_doc_ids:
            self.verifier.check_doc_ids(reply, caller.trail)
        elif self.verifier is not None and begin.mark is not None:
            self.verifier.check_range(reply, begin.mark, caller.trail)
        if counted:
            self.tallies[call.rpc].ids += count
            interval = (now - self._began) // INTERVAL_NS
            self.calls_over_time[interval] += 1
            self.ids_over_time[interval] += count
        return count

    async def _refused(self, call: Call, error: grpc.RpcError, counted: bool) -> None:
        refusal = from_rpc_error(error, self.plan.target)
        if isinstance(refusal, Unauthenticated | PermissionDenied):
            raise refusal from error  # so will be all others
        self._failed(call, refusal.code, refusal.reason, str(refusal), counted)
        if isinstance(refusal, Unavailable):
            await asyncio.sleep(PAUSE)

    def _failed(self, call: Call, code: grpc.StatusCode, reason: str, message: str, counted: bool) -> None:
        if counted:
            self.tallies[call.rpc].errors[code, reason] += 1
            self.messages.setdefault((code, reason), message)


def _method(channel: grpc.aio.Channel, call: Call) -> Any:
    """What makes a call; its request is bytes already."""
    kind = channel.unary_stream if call.chunk else channel.unary_unary
    path = f"/idalloc.v1.IdAllocatorService/{call.rpc}"
    return kind(path, request_serializer=None, response_deserializer=call.response.FromString)


def run(plan: Plan, access: ChannelConfig, log: IssuedLog | None = None) -> Bench:
    """Runs a plan, on uvloop where it is installed.

    Raises:
        ServerUnreachable: There is no server.
        Unauthenticated: It does not know who this is.
        PermissionDenied: It knows, and refuses what the plan is made of.
        OSError: The log could not be written.
    """
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ModuleNotFoundError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    bench = Bench(plan, access, log)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            runner.run(bench.run())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # each caller's says the same
    return bench
