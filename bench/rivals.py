"""Redis, PostgreSQL and etcd on loopback, with an fsync for each write, and their drivers."""

import base64
import csv
import getpass
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, BinaryIO

from bench.drivers import in_threads, loop, run
from bench.servers import Server, free_port, started
from bench.turns import Turn, percentile

_START_SECONDS = 30.0
# The ids of one block of the segment table.
SEGMENT = 1_000


class Missing(Exception):
    """A program is not installed."""


@contextmanager
def redis(folder: Path) -> Iterator[Server]:
    """Run Redis with an append-only file that is synced before each answer.

    Raises:
        Missing: redis-server is not installed.
    """
    program = _program("redis-server")
    port = free_port()
    flags = {"port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "appendfsync": "always", "save": ""}
    command = [program, *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]
    with started(*command, folder=folder) as process:
        _wait(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), process)
        yield Server(process, f"127.0.0.1:{port}")


class Redis:
    """A connection to Redis that sends INCRBY, in RESP.

    Args:
        address: The server's address.
        pipeline: How many commands are sent before the first answer is read.
    """

    def __init__(self, address: str, pipeline: int = 1) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: BinaryIO = self._socket.makefile("rb")
        self._commands = b"*3\r\n$6\r\nINCRBY\r\n$6\r\norders\r\n$1\r\n1\r\n" * pipeline
        self._pipeline = pipeline

    def take(self) -> int:
        """Send the commands and parse all answers; return their number."""
        self._socket.sendall(self._commands)
        for _ in range(self._pipeline):
            line = self._answers.readline()
            if line[:1] != b":":
                raise RuntimeError(f"Redis answered {line!r}")
            int(line[1:])
        return self._pipeline

    def turn(self, seconds: float) -> Turn:
        """Take ids for ``seconds``."""
        return loop(self.take, seconds, self._pipeline)


def redis_benchmark(address: str, seconds: float, in_flight: int) -> Turn:
    """Drive INCRBY with redis-benchmark, over ``in_flight`` connections."""
    _, _, port = address.rpartition(":")
    # It takes a number of calls instead of a duration, so a short run measures the rate first.
    command = [_program("redis-benchmark"), "-p", port, "-c", str(in_flight), "--csv"]

    def calls(number: int) -> tuple[dict[str, str], float, float]:
        began = time.perf_counter()
        output, cpu = run([*command, "-n", str(number), "INCRBY", "orders", "1"], seconds * 10)
        [figures] = csv.DictReader(output.splitlines())
        return figures, cpu, time.perf_counter() - began

    figures, _, _ = calls(500)
    number = max(500, int(float(figures["rps"]) * seconds))
    figures, cpu, _ = calls(number)
    rate, p50, p99 = (float(figures[name]) for name in ("rps", "p50_latency_ms", "p99_latency_ms"))
    return Turn(number, number, number / rate, p50 / 1e3, p99 / 1e3, cpu)


@contextmanager
def postgres(folder: Path) -> Iterator[Server]:
    """Run PostgreSQL with its defaults, and create the sequence and the table.

    By default fsync and synchronous commit are on.

    Raises:
        Missing: PostgreSQL or pgbench is not installed.
    """
    programs = {name: _program(name, "/usr/lib/postgresql") for name in ("initdb", "postgres", "psql", "pgbench")}
    data, user = folder / "data", None
    if os.geteuid() == 0:  # PostgreSQL does not run as root.
        user = "nobody"
        shutil.chown(folder, user)
    owner = user or getpass.getuser()
    initdb = [programs["initdb"], "--pgdata", str(data), "--auth=trust", f"--username={owner}", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder, user=user, timeout=120)
    port = str(free_port())
    server = [programs["postgres"], "-D", str(data), "-h", "127.0.0.1", "-p", port, "-k", str(folder)]
    make = (
        "CREATE SEQUENCE orders CACHE 1; CREATE TABLE segments (name text PRIMARY KEY, last_value bigint);"
        "INSERT INTO segments VALUES ('orders', 0)"
    )
    psql = [programs["psql"], "-h", "127.0.0.1", "-p", port, "-U", owner, "-c", make, "postgres"]
    with started(*server, folder=folder, user=user, stop=signal.SIGINT) as process:
        _wait(lambda: subprocess.run(psql, check=True, capture_output=True, cwd=folder, timeout=30), process)
        yield Server(process, f"127.0.0.1:{port}")


NEXTVAL = "SELECT nextval('orders');"
NEXT_SEGMENT = f"UPDATE segments SET last_value = last_value + {SEGMENT} WHERE name = 'orders' RETURNING last_value;"


def pgbench(address: str, seconds: float, in_flight: int, statement: str, ids: int = 1) -> Turn:
    """Drive a prepared statement with pgbench, over ``in_flight`` connections."""
    _, _, port = address.rpartition(":")
    owner = "nobody" if os.geteuid() == 0 else getpass.getuser()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "statement.sql")
        script.write_text(statement + "\n")
        length = math.ceil(seconds)
        command = [_program("pgbench", "/usr/lib/postgresql"), "-h", "127.0.0.1", "-p", port, "-U", owner, "-n"]
        command += ["-M", "prepared", "-c", str(in_flight), "-j", "1", "-T", str(length), "-f", str(script)]
        command += ["--log", f"--log-prefix={folder}/log", "postgres"]
        output, cpu = run(command, length)
        latencies = [int(line.split()[2]) / 1e6 for log in Path(folder).glob("log*") for line in log.open()]
    rates = [float(line.split()[2]) for line in output.splitlines() if line.startswith("tps = ")]
    if not rates:
        raise RuntimeError(f"no transaction ended within {length} s")
    [rate], calls = rates, len(latencies)
    p50, p99 = percentile(latencies, 50), percentile(latencies, 99)
    return Turn(calls, calls * ids, calls / rate, p50, p99, cpu, longest=max(latencies))


@contextmanager
def etcd(folder: Path) -> Iterator[Server]:
    """Run etcd with its defaults, which sync the log before each answer.

    Raises:
        Missing: etcd is not installed.
    """
    program, port = _program("etcd"), free_port()
    clients, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    flags = {"data-dir": folder / "data", "listen-client-urls": clients, "advertise-client-urls": clients}
    flags |= {"listen-peer-urls": peers, "initial-advertise-peer-urls": peers, "initial-cluster": f"default={peers}"}
    command = [program, *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]
    with started(*command, folder=folder) as process:
        _wait(lambda: Etcd(f"127.0.0.1:{port}").take(), process)
        yield Server(process, f"127.0.0.1:{port}")


class Etcd:
    """A client that keeps a counter in etcd.

    A transaction writes the next value if no other client has changed it.

    It remembers the last value that it saw, so that without other clients each call is one
    transaction. It uses etcd's JSON gateway over a persistent connection.

    Args:
        address: The server's address.
        ids: How many ids a call takes.
    """

    def __init__(self, address: str, ids: int = 1) -> None:
        self._connection = HTTPConnection(address, timeout=60)
        self._ids = ids
        self._value: int | None = None  # None before the first call, and while the key is missing

    def take(self) -> int:
        """Take ids, however often another client was faster; return their number."""
        while True:
            key, new = _base64("orders"), str((self._value or 0) + self._ids)
            compare: dict[str, Any] = {"key": key, "target": "VERSION", "version": 0}
            if self._value is not None:
                compare = {"key": key, "target": "VALUE", "value": _base64(str(self._value))}
            put, get = {"key": key, "value": _base64(new)}, {"key": key}
            answer = self._call(
                {"compare": [compare], "success": [{"requestPut": put}], "failure": [{"requestRange": get}]}
            )
            if answer.get("succeeded"):
                self._value = int(new)
                return self._ids
            found = answer["responses"][0]["response_range"].get("kvs")
            self._value = int(base64.b64decode(found[0]["value"])) if found else None

    def _call(self, transaction: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", "/v3/kv/txn", json.dumps(transaction))
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"etcd answered {answer.status}: {content[:200]!r}")
        found: dict[str, Any] = json.loads(content)
        return found


def etcd_counter(address: str, seconds: float, in_flight: int, ids: int = 1) -> Turn:
    """Drive the counter in etcd with ``in_flight`` threads, each with its own connection."""
    return in_threads([Etcd(address, ids).take for _ in range(in_flight)], seconds)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _program(name: str, elsewhere: str = "") -> str:
    """Return the path of a program on the PATH, or of its newest version in Debian's folder.

    Raises:
        Missing: It is not installed.
    """
    found = shutil.which(name)
    if found is None and elsewhere:
        versions = Path(elsewhere).glob(f"*/bin/{name}")
        found = max(map(str, versions), key=lambda path: int(Path(path).parts[-3]), default=None)
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def _wait(ready: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Wait until a started server answers."""
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            ready()
        except (OSError, subprocess.CalledProcessError) as error:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{process.args!r} did not start: {error}") from error
            time.sleep(0.1)
        else:
            return
