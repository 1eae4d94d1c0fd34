"""Where the CPU time of a unary call on grpcio goes: no-op server, layer, servicer.

python -m bench.stages    (ghz makes the calls)

Three servers take turns, in random order: the no-op server, the no-op server with idalloc's layer
around its handlers, and idalloc. Then one server answers by handlers that take turns of 40 ms: a
no-op handler, and handlers that each do one stage more, up to idalloc's own. So the stages add up,
and have what they cost gRPC besides. The last handler runs idalloc's twice in each call. The
servers have half of the cores, and ghz the others: figures differ less from run to run.
"""

import argparse
import asyncio
import atexit
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any, TypeAlias

import grpc
import typer

from bench.noop import REPLY
from bench.run import CONCURRENCY, Contender, ratio, unary_with_ghz
from bench.servers import running
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server import __main__ as server
from idalloc_server.rpc import port
from idalloc_server.rpc import server as rpc_server
from idalloc_server.rpc.calls import CallLayer, Service, decoder
from idalloc_server.rpc.id_allocator import IdAllocatorServicer

_METHOD = IdAllocatorServicer.descriptor.methods_by_name["AllocateRange"]
_STAGES = ("no-op", "decode", "layer", "checks of the fields", "allocation", "reply", "once more")
# The length of a turn of a stage, and the time before it in which the last calls of another end.
_TURN_SECONDS, _PAUSE_SECONDS = 0.04, 0.006
_ROUNDS_TO_FORGET = 3
# The memory of each process is laid out differently, which changes the cost of its code.
_STARTS = 5
# Calls of each start, in rounds of calls.
_STAGE_TURNS = 20
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_CORES = sorted(os.sched_getaffinity(0))


def measure(in_flight: int, rounds: int, calls: int) -> None:
    """Print the CPU time of a call of each server, and its calls a second relative to the no-op."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = f"--store=sqlite://{folder}/ids.db"
        started = {
            "no-op": running("bench.noop"),
            "no-op in the layer": running("bench.noop", "--layer"),
            "idalloc": running("idalloc_server", "--listen=127.0.0.1:0", store),
        }
        os.sched_setaffinity(0, _CORES[: len(_CORES) // 2])
        contenders = {name: Contender(stack.enter_context(each)) for name, each in started.items()}
        os.sched_setaffinity(0, _CORES[len(_CORES) // 2 :])
        for turn in range(rounds + 1):
            for contender in random.sample(list(contenders.values()), len(contenders)):
                contender.take_turn(unary_with_ghz, calls, in_flight)
                if turn == 0:
                    contender.forget()
    noop = contenders["no-op"]
    # The mean, since the kernel counts CPU time in steps of 10 ms.
    costs = {name: statistics.fmean(each.costs) * 1e6 for name, each in contenders.items()}
    print(f"{in_flight} in flight, {rounds} rounds of {calls:,} calls:")
    for name, each in contenders.items():
        more = costs[name] - costs["no-op"]
        rates = ratio(*([result.rate for result in one.results] for one in (each, noop)))
        print(f"  {name:20} {costs[name]:5.0f} us of CPU a call, {more:+5.1f} us; {rates:.3f} of the calls/s")


def measure_stages(in_flight: int, calls: int) -> None:
    """Print the CPU time that each stage adds to a call; it differs over starts by its spread."""
    starts: list[dict[str, float]] = []
    for _ in range(_STARTS):
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / "stages.json"
            flags = ("--listen=127.0.0.1:0", f"--store=sqlite://{folder}/ids.db")
            os.sched_setaffinity(0, _CORES[: len(_CORES) // 2])
            with running("bench.stages", str(found), *flags) as one:
                os.sched_setaffinity(0, _CORES[len(_CORES) // 2 :])
                unary_with_ghz(one.address, calls, in_flight)
            starts.append(json.loads(found.read_text()))
    print(f"stages in one process, {_STARTS} starts:")
    print(f"  {_STAGES[0]:20} {statistics.fmean(each[_STAGES[0]] for each in starts) * 1e6:6.1f} us of CPU a call")
    for before, name in pairwise(_STAGES):
        added = [(each[name] - each[before]) * 1e6 for each in starts]
        error = statistics.stdev(added) / len(added) ** 0.5
        print(f"  {name:20} {statistics.fmean(added):+6.1f} us +- {error:.1f}")


class _Turns(grpc.ServiceRpcHandler):
    """Answers AllocateRange by one of the handlers at a time, and measures each."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._current = handlers[_STAGES[-1]]
        self._calls = 0
        self._costs: dict[str, list[float]] = defaultdict(list)
        self.task = asyncio.get_running_loop().create_task(self._take_turns())

    def service_name(self) -> str:
        return IdAllocatorServicer.descriptor.full_name

    def service(self, details: grpc.HandlerCallDetails) -> Handler:
        self._calls += 1
        return self._current

    async def _take_turns(self) -> None:
        while True:
            for name in random.sample(_STAGES, len(_STAGES)):
                self._current = self._handlers[name]
                await asyncio.sleep(_PAUSE_SECONDS)
                calls, began = self._calls, process_time()
                await asyncio.sleep(_TURN_SECONDS)
                self._costs[name].append((process_time() - began) / max(self._calls - calls, 1))

    def medians(self) -> dict[str, float]:
        """Return the cost of a call of each handler, by its name.

        The costs are compared within a round, since the machine's speed varies.
        """
        rounds = list(zip(*(self._costs[name] for name in _STAGES), strict=False))[_ROUNDS_TO_FORGET:]
        means = [statistics.fmean(each) for each in rounds]
        usual = statistics.median(means)
        return {
            name: usual + statistics.median(each[place] - mean for each, mean in zip(rounds, means, strict=True))
            for place, name in enumerate(_STAGES)
        }


def _handlers(layer: CallLayer, servicer: IdAllocatorServicer) -> dict[str, Handler]:
    async def answer(request: pb.AllocateRangeRequest, context: Any) -> pb.AllocateRangeResponse:
        return REPLY

    # The next two are the beginning of the servicer's handler.
    async def check(request: pb.AllocateRangeRequest, context: Any) -> pb.AllocateRangeResponse:
        _ = request.sequence
        count = request.id_count or 1
        if request.view or request.request_id or not 0 < count <= servicer.ranges.max_ids:
            raise ValueError(request)
        return REPLY

    async def allocate(request: pb.AllocateRangeRequest, context: Any) -> pb.AllocateRangeResponse:
        sequence = request.sequence
        count = request.id_count or 1
        if request.view or request.request_id or not 0 < count <= servicer.ranges.max_ids:
            raise ValueError(request)
        if servicer.ranges.allocator.issue_now(sequence, count) is None:
            await servicer.ranges.allocator.issue(sequence, count)
        return REPLY

    def surround(handler: Any) -> Any:
        servicing = SimpleNamespace(descriptor=servicer.descriptor, AllocateRange=handler)
        return rpc_server.CoroutineFunction(layer._handler(servicing, _METHOD))

    whole = surround(servicer.AllocateRange)

    async def twice(request: pb.AllocateRangeRequest, context: Any) -> bytes:
        await whole(request, context)
        reply: bytes = await whole(request, context)
        return reply

    make, serialize = grpc.unary_unary_rpc_method_handler, pb.AllocateRangeResponse.SerializeToString
    decode, surrounded = decoder(_METHOD), [surround(each) for each in (answer, check, allocate)]
    made = [make(answer, pb.AllocateRangeRequest.FromString, serialize), make(answer, decode, serialize)]
    made += [make(each, decode, serialize) for each in surrounded]
    return dict(
        zip(_STAGES, [*made, make(whole, decode), make(rpc_server.CoroutineFunction(twice), decode)], strict=True)
    )


def _serve(found: Path) -> None:
    """Serve by handlers that take turns, and write what a call of each costs."""
    turns: list[_Turns] = []

    def service(layer: CallLayer, servicer: Any, make: Any = CallLayer.service) -> Service:
        if isinstance(servicer, IdAllocatorServicer):
            turns.append(_Turns(_handlers(layer, servicer)))
        made: Service = make(layer, servicer)
        return made

    def add(
        one: grpc.aio.Server, served: Service, *, registered: bool, add_service: Any = rpc_server.add_service
    ) -> None:
        if served.descriptor is IdAllocatorServicer.descriptor:
            one.add_generic_rpc_handlers(tuple(turns))
        else:
            add_service(one, served, registered=registered)

    setattr(CallLayer, "service", service)  # noqa: B010  # mypy
    setattr(port, "add_service", add)  # noqa: B010
    atexit.register(lambda: found.write_text(json.dumps(turns[0].medians())))
    typer.run(server.serve)


def main() -> None:
    """Measure with many calls in flight, then with one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--calls", type=int, default=2_500, help="calls a round")
    arguments = parser.parse_args()
    if not shutil.which("ghz") or len(_CORES) < 2:
        raise SystemExit("this needs ghz on the PATH, and 2 cores")
    for in_flight, calls in ((CONCURRENCY, arguments.calls), (1, arguments.calls // 2)):
        measure(in_flight, arguments.rounds, calls)
        measure_stages(in_flight, _STAGE_TURNS * calls)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2].startswith("--listen"):
        _serve(Path(sys.argv.pop(1)))
    else:
        main()
