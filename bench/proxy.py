"""Measure native behind Envoy beside grpcio, both with TLS: `make bench-envoy`.

Needs ghz, and Envoy (`requirements/envoy.txt`). Rounds take turns; ratios are medians of rounds.
Each attack meets servers of its own. Meanwhile a steady caller measures its p99, and the memory of
server and proxy is summed.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc

from bench.run import CONCURRENCY, CONNECTIONS, ratio, report
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
    pids: list[int]  # the processes whose memory counts


def unary(contender: Contender, calls: int) -> float:
    """Return the calls a second that ghz made."""
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
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert done["statusCodeDistribution"] == {"OK": calls}, done["statusCodeDistribution"]
    return float(done["rps"])


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
        yield [
            Contender("grpcio", plain.address, proxy.tls, [plain.process.pid]),
            Contender("native behind Envoy", proxy.address, proxy.tls, [behind.process.pid, proxy.process.pid]),
        ]


def measure_unary(rounds: int, calls: int) -> None:
    """Print calls a second, and their ratio."""
    with contenders(tokens=False) as both:
        rates: dict[str, list[float]] = {each.name: [] for each in both}
        for turn in range(rounds + 1):
            for each in both:
                rate = unary(each, calls)
                if turn:  # The first round warms up.
                    rates[each.name].append(rate)
    for name, found in rates.items():
        print(f"unary AllocateRange with TLS, {CONCURRENCY} in flight: {name}: {statistics.median(found):,.0f}/s")
    grpcio, behind = rates.values()
    report("native behind Envoy / grpcio, TLS", ratio(behind, grpcio), RATE_TARGET)


def measure_attacks() -> None:
    """Print memory and the steady caller's p99 during each attack."""
    for name in ATTACKS:
        with contenders(tokens=name in UNAUTHENTICATED) as both:
            for each in both:
                print(f"{name}, {each.name}:", flush=True)
                try:
                    measured = attack(name, each.address, each.tls, each.pids)
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
