"""Measures the cost of traces per call: servers with traces off, on and sampled take turns.

python -m bench.traces    (ghz makes the calls)
"""

import argparse
import shutil
import statistics
import tempfile
from contextlib import ExitStack

from bench.run import CONCURRENCY, Contender, ratio, unary_with_ghz
from bench.servers import running
from tests.support.trace_collector import Collector

SAMPLED = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}


def measure(rounds: int, calls: int) -> None:
    """Measure the servers in turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        export = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.enter_context(Collector(keep=False)).endpoint}
        contenders = {}
        for name, variables in {"off": {}, "off again": {}, "sampled": export | SAMPLED, "on": export}.items():
            flags = ("--listen=127.0.0.1:0", f"--store=sqlite://{folder}/{name.replace(' ', '-')}.db")
            contenders[name] = Contender(stack.enter_context(running("idalloc_server", *flags, **variables)))
        for turn in range(rounds + 1):
            for contender in contenders.values():
                contender.take_turn(unary_with_ghz, calls, CONCURRENCY)
                if turn == 0:
                    contender.forget()
        for name, contender in contenders.items():
            rate = statistics.median(result.rate for result in contender.results)
            cost = statistics.median(contender.costs)
            costs = ratio(contender.costs, contenders["off"].costs)
            rates = ratio(*([result.rate for result in each.results] for each in (contender, contenders["off"])))
            print(f"  {name:9} {rate:8,.0f} calls/s {cost * 1e6:6.1f} us of CPU a call;", end=" ")
            print(f"against off: {costs:.2f} of the CPU, {rates:.2f} of the calls/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20_000, help="calls a round")
    arguments = parser.parse_args()
    if not shutil.which("ghz"):
        raise SystemExit("this needs ghz on the PATH")
    measure(arguments.rounds, arguments.calls)


if __name__ == "__main__":
    main()
