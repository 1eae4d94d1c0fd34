"""Makes the calls of a bench: one task for each caller, on channels that share no connection."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from idalloc._core import errors
from idalloc._core.errors import IdallocError
from idalloc._core.reply_checks import check_chunk, check_order, check_reply
from idalloc._core.rpc_errors import cause_of, from_rpc_error
from idalloc._issued_log.log import IssuedLog
from idalloc._transport.config import ChannelConfig
from idalloc.bench._latencies import Latencies
from idalloc.bench._plan import Call, Plan, planned_calls
from idalloc.verify._logs import MAX_MESSAGES
from idalloc.verify._verdict import Verdict, verify

# The resolution of counts over time.
INTERVAL_NS = 100_000_000
# The event loop may wake up this many seconds early.
TIMER_RESOLUTION = 0.001

# A caller's pause, in seconds, after UNAVAILABLE: such calls fail at once and would keep this
# process busy.
PAUSE = 0.1

# Besides those of the config: gRPC retries no call, so each failed one is counted.
_OPTIONS: list[tuple[str, str | int]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.primary_user_agent", f"idalloc-bench/{version('idalloc')}"),
]


@dataclass(eq=False, slots=True)
class Tally:
    """Counts and latencies of one RPC."""

    rpc: str
    # Latencies of successful calls; for a stream, from its start to its end.
    latencies: Latencies = field(default_factory=Latencies)
    # Latencies of a stream's messages: each from the previous one, or the start, to its arrival.
    messages: Latencies = field(default_factory=Latencies)
    ids: int = 0  # the number of received ids
    # The number of failed calls, by status and reason.
    errors: Counter[tuple[grpc.StatusCode, str]] = field(default_factory=Counter)
    cut_streams: int = 0  # the number of streams that the bench ended with its duration


class Bench:
    """One run of a plan."""

    def __init__(self, plan: Plan, access: ChannelConfig, log: IssuedLog | None = None) -> None:
        self.plan = plan
        self._access = access
        self._log = log
        self._calls = planned_calls(plan)
        self.tallies = {call.rpc: Tally(call.rpc) for call in self._calls}
        # The first message of each status and reason.
        self.messages: dict[tuple[grpc.StatusCode, str], str] = {}
        # Replies that violate the contract, the warm-up's included. They are not logged.
        self.malformed = 0
        self.malformed_messages: list[str] = []  # of the first of them
        self.verdict: Verdict | None = None  # the result of `verify`
        self.date = datetime.now(UTC)  # when counting began
        self.seconds = 0.0  # the time from then to the last reply
        self.cpu_seconds = 0.0  # the CPU time of this process in that time
        # The number of replies and stream messages, and of ids, by interval of `INTERVAL_NS`.
        self.calls_over_time: Counter[int] = Counter()
        self.ids_over_time: Counter[int] = Counter()
        self._counting = False
        self._finished = False
        self._calls_left = plan.total
        self._start_ns = 0
        self._time_limit: float | None = None

    @property
    def errors(self) -> int:
        """The number of failed calls."""
        return sum(tally.errors.total() for tally in self.tallies.values())

    async def run(self) -> None:
        """Connect, warm up and count.

        Raises:
            ServerUnreachable: The server did not accept all connections within the timeout.
            ExceptionGroup: It contains OSError if the log cannot be written, or Unauthenticated or
                PermissionDenied.
        """
        plan = self.plan
        connections = min(plan.connections, plan.concurrency)
        channels = [self._access.open(grpc.aio, plan.target, _OPTIONS) for _ in range(connections)]
        try:
            await self._connect(channels)
            if plan.total is None:
                self._time_limit = time.monotonic() + plan.warm_up + plan.duration + plan.timeout
            async with asyncio.TaskGroup() as callers:
                for number in range(plan.concurrency):
                    callers.create_task(self._call_repeatedly(channels[number % connections], number))
                if plan.warm_up:
                    await asyncio.sleep(plan.warm_up)
                self._counting = True
                self.date = datetime.now(UTC)
                start_cpu = time.process_time()
                self._start_ns = time.perf_counter_ns()
                if plan.total is None:
                    await asyncio.sleep(plan.duration + TIMER_RESOLUTION)
                    self._finished = True
            self.seconds = (time.perf_counter_ns() - self._start_ns) / 1e9
            self.cpu_seconds = time.process_time() - start_cpu
        finally:
            for channel in channels:
                await channel.close()

    def verify(self, log: Path) -> None:
        """Verify the log of this bench as `idalloc verify` does, and add the malformed replies.

        Raises:
            InvalidFile: The log cannot be read, or the temporary folder cannot be written.
        """
        self.verdict = verify([log])
        self.verdict.findings.malformed += self.malformed
        self.verdict.findings.messages += self.malformed_messages

    async def _connect(self, channels: list[grpc.aio.Channel]) -> None:
        ready = asyncio.gather(*(channel.channel_ready() for channel in channels))
        try:
            await asyncio.wait_for(ready, self.plan.timeout)
        except TimeoutError:
            # gRPC reports the cause of a failed connection only to calls.
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            check = channels[0].unary_unary("/grpc.health.v1.Health/Check")
            try:
                await check(b"", timeout=1.0)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    raise from_rpc_error(error, self.plan.target) from None
            raise errors.ServerUnreachable(f"no answer from {self.plan.target} in {self.plan.timeout:g} s") from None

    async def _call_repeatedly(self, channel: grpc.aio.Channel, number: int) -> None:
        """Make one caller's calls, one after another, until the bench ends."""
        methods = {}
        for call in self._calls:  # serialized requests
            method: Any = channel.unary_stream if call.chunk else channel.unary_unary
            path = f"/idalloc.v1.IdAllocatorService/{call.rpc}"
            methods[call.rpc] = method(path, request_serializer=None, response_deserializer=call.response.FromString)
        turn = number * 31 % len(self._calls)  # callers begin at different places of the cycle
        while not self._finished:
            if self._counting and self._calls_left is not None:
                if not self._calls_left:
                    return
                self._calls_left -= 1
            call = self._calls[turn]
            turn = (turn + 1) % len(self._calls)
            await (self._stream if call.chunk else self._unary)(methods[call.rpc], call)

    async def _unary(self, method: Any, call: Call) -> None:
        counted = self._counting
        asked = self._log.now() if self._log else 0
        began = time.perf_counter_ns()
        try:
            reply = await method(call.request, timeout=self.plan.timeout, metadata=self._access.metadata)
        except grpc.RpcError as error:
            await self._handle_error(call, error, counted)
            return
        ended = time.perf_counter_ns()
        if self._handle_reply(call, reply, check=check_reply, asked=asked, now=ended, counted=counted) and counted:
            self.tallies[call.rpc].latencies.add(ended - began)

    async def _stream(self, method: Any, call: Call) -> None:
        counted = self._counting
        asked = self._log.now() if self._log else 0
        tally = self.tallies[call.rpc]
        left = call.ids  # the number of ids that have not arrived
        last: tuple[str, Any] | None = None

        def check(request: Any, reply: Any) -> None:
            nonlocal last
            check_chunk(request, reply, left)
            last = check_order(reply, last)

        timeout = self.plan.timeout * -(-call.ids // call.chunk)  # a call's for each message
        if self._time_limit is not None:
            timeout = min(timeout, self._time_limit - time.monotonic())
        began = before = time.perf_counter_ns()
        stream = method(call.request, timeout=timeout, metadata=self._access.metadata)
        try:
            async for reply in stream:
                now = time.perf_counter_ns()
                count = self._handle_reply(call, reply, check=check, asked=asked, now=now, counted=self._counting)
                if not count:
                    return
                left -= count
                if self._counting:
                    tally.messages.add(now - before)
                if self._finished:
                    tally.cut_streams += 1
                    return
                before = time.perf_counter_ns()
        except grpc.RpcError as error:
            await self._handle_error(call, error, self._counting)
            return
        finally:
            stream.cancel()
        if left > 0:
            self._count_error(call, IdallocError(f"{left} ids were missing", reason="INCOMPLETE"), self._counting)
        elif counted:
            tally.latencies.add(time.perf_counter_ns() - began)

    def _handle_reply(
        self, call: Call, reply: Any, *, check: Callable[[Any, Any], object], asked: int, now: int, counted: bool
    ) -> int:
        """Check, log and count a reply or a message; return the number of its ids, 0 if invalid."""
        try:
            check(call.message, reply)
        except errors.ProtocolError as error:
            self._count_error(call, error, counted)
            self.malformed += 1
            if len(self.malformed_messages) < MAX_MESSAGES:
                self.malformed_messages.append(str(error))
            return 0
        count = call.decode(reply)
        if self._log is not None:
            self._log.reply(call.message, reply, asked)
        if counted:
            self.tallies[call.rpc].ids += count
            interval = (now - self._start_ns) // INTERVAL_NS
            self.calls_over_time[interval] += 1
            self.ids_over_time[interval] += count
        return count

    async def _handle_error(self, call: Call, rpc_error: grpc.RpcError, counted: bool) -> None:
        error = from_rpc_error(rpc_error, self.plan.target)
        if isinstance(error, errors.Unauthenticated | errors.PermissionDenied):
            raise error from cause_of(rpc_error)  # every other call would fail, too
        self._count_error(call, error, counted)
        if isinstance(error, errors.Unavailable):
            await asyncio.sleep(PAUSE)

    def _count_error(self, call: Call, error: IdallocError, counted: bool) -> None:
        if counted:
            self.tallies[call.rpc].errors[error.code, error.reason] += 1
            self.messages.setdefault((error.code, error.reason), str(error))


def run(plan: Plan, access: ChannelConfig, log: IssuedLog | None = None) -> Bench:
    """Run a plan, on uvloop if it is installed.

    Raises:
        ServerUnreachable: The server did not accept all connections within the timeout.
        Unauthenticated: The server rejects the credentials.
        PermissionDenied: The identity lacks a role that the plan needs.
        OSError: The log cannot be written.
    """
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ModuleNotFoundError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    bench = Bench(plan, access, log)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            runner.run(bench.run())
        except ExceptionGroup as group:
            raise group.exceptions[0] from group  # all callers fail for the same reason
    return bench
