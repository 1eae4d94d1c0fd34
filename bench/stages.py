"""Where the CPU time of a unary call on grpcio goes: no-op server, layer, servicer.

python -m bench.stages    (ghz makes the calls)

Three servers take turns, in random order: the no-op server, the no-op server with idalloc's layer
around its handlers, and idalloc. Then a server measures the stages of its own calls on the event
loop. The servers have half of the cores, and ghz the others: figures differ less from run to run.
"""

import argparse
import atexit
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import typer

from bench.run import CONCURRENCY, Contender, ratio, unary_with_ghz
from bench.servers import running
from idalloc_server import __main__ as server
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.rpc import port
from idalloc_server.rpc.calls import CallLayer
from idalloc_server.rpc.id_allocator import IdAllocatorServicer

_METHOD = "AllocateRange"
_WARM_UP = 2_000
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
    """Print the median time of each stage on the event loop of a server."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "stages.json"
        flags = ("--listen=127.0.0.1:0", f"--store=sqlite://{folder}/ids.db")
        os.sched_setaffinity(0, _CORES[: len(_CORES) // 2])
        with running("bench.stages", str(found), *flags) as one:
            os.sched_setaffinity(0, _CORES[len(_CORES) // 2 :])
            unary_with_ghz(one.address, calls, in_flight)
        for name, seconds in json.loads(found.read_text()).items():
            print(f"  {name:20} {seconds * 1e6:5.2f} us")


def _serve(found: Path) -> None:
    """Serve, and write the median time of each stage at the end."""
    times: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = perf_counter()
            result = function(*args)
            times[name].append(perf_counter() - began)
            return result

        return call

    def timed_async(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            began = perf_counter()
            result = await function(*args)
            times[name].append(perf_counter() - began)
            return result

        return call

    def decoder(method: Any, make: Any = port._decoder) -> Any:
        return timed("decode", make(method)) if method.name == _METHOD else make(method)

    def handler(layer: Any, servicer: Any, method: Any, make: Any = CallLayer._handler) -> Any:
        made = make(layer, servicer, method)
        return timed_async("call", made) if method.name == _METHOD else made

    for owner, name, changed in (
        (port, "_decoder", decoder),
        (CallLayer, "_handler", handler),
        (IdAllocatorServicer, _METHOD, timed_async("servicer", IdAllocatorServicer.AllocateRange)),
        (IdAllocatorServicer, "_fill", timed("reply", IdAllocatorServicer._fill)),
        (Allocator, "allocate_from_lease", timed("allocation", Allocator.allocate_from_lease)),
    ):
        setattr(owner, name, changed)

    def write() -> None:
        each = {name: statistics.median(values[_WARM_UP:]) for name, values in times.items()}
        stages = {
            "decode": each["decode"],
            "layer": each["call"] - each["servicer"],
            "checks of the fields": each["servicer"] - each["allocation"] - each["reply"],
            "allocation": each["allocation"],
            "reply": each["reply"],
        }
        found.write_text(json.dumps(stages))

    atexit.register(write)
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
        measure_stages(in_flight, 2 * _WARM_UP + calls)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2].startswith("--listen"):
        _serve(Path(sys.argv.pop(1)))
    else:
        main()
