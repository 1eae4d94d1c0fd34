"""Full disks, damaged database files, and file systems that SQLite cannot use safely."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest

import idalloc as sdk
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.faults.test_restored import LEASES, PAUSE, last_record, wait_until_all_are_refused
from tests.support.faults.scenario import Scenario
from tests.support.faults.store_copies import run_cli
from tests.support.processes import Server, environment, serve_command, served_address
from tests.support.waiting import hold_for

TITLE = "what a disk does under SQLite"
# A lease that outlasts the fault.
RESERVE = {"lease_ttl": "180s", "store_timeout": "2s", "outage_reserve": "60s"}
MEGABYTE = 2**20
# SQLite's messages for a full disk, and for a file that cannot grow.
DISK_ERRORS = "disk is full", "disk I/O error"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk of 16 MB; SQLite's write-ahead log grows to 4 MB.

    Raises:
        PermissionError: This user may not mount.
    """
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={16 * MEGABYTE}", "tmpfs", str(disk)]
    with suppress(FileNotFoundError):
        if subprocess.run(command, capture_output=True).returncode == 0:
            try:
                yield disk
            finally:
                subprocess.run(["umount", "-l", str(disk)], check=True)
            return
    raise PermissionError("mounting is not permitted")


def fill(disk: Path) -> Path:
    """Fill a disk with a file, and return the file."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


def limit_files(nodes: list[Server], size: int) -> None:
    """Limit the size of files that the nodes write, which has the effect of a full disk."""
    for node in nodes:
        _, most = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (size, most))


@pytest.mark.scenario(7, TITLE)
@pytest.mark.parametrize("how", ["a full disk", pytest.param("files that cannot grow", marks=pytest.mark.long)])
def test_a_full_disk_does_not_affect_lease_served_calls(scenario: Scenario, how: str) -> None:
    """P10: a full disk fails only calls that need the store; nodes recover without a restart."""
    if how == "a full disk":
        try:
            with small_disk(scenario.folder) as disk:
                files: list[Path] = []
                scenario.store = f"sqlite://{disk}/ids.db"
                run_out_of_room(
                    scenario, how, lambda nodes: files.append(fill(disk)), lambda nodes: files.pop().unlink()
                )
        except PermissionError as error:
            pytest.skip(str(error))
    else:
        # More than the nodes' logs need, less than the write-ahead log needs.
        run_out_of_room(
            scenario, how, partial(limit_files, size=40_000), partial(limit_files, size=resource.RLIM_INFINITY)
        )


def run_out_of_room(
    scenario: Scenario, how: str, fill_up: Callable[[list[Server]], object], clear: Callable[[list[Server]], object]
) -> None:
    nodes = scenario.start_nodes(2, **RESERVE)
    # A burst, so that each node holds more ids than the later calls need.
    for burst in [scenario.start_client(node, mode="stream", id_count=1000, calls=5) for node in nodes]:
        assert burst.process.wait(60) == 0
    leased = [scenario.start_client(node, pause=10 * PAUSE) for node in nodes]
    recorded = [scenario.start_client(node, mode="once", sequence="tickets", timeout=1, pause=PAUSE) for node in nodes]
    for _ in range(scenario.pick(1, 3)):
        scenario.wait_for_records([*leased, *recorded], more=10)
        fill_up(nodes)
        scenario.count_faults()
        wait_until_all_are_refused(scenario, recorded, "STORE_UNAVAILABLE", "DEADLINE_EXCEEDED")
        # SQLite may still find room in its own log.
        scenario.wait_until(lambda: all(refusal_of(node).endswith(DISK_ERRORS) for node in nodes), "disk errors", 20)
        scenario.wait_for_records(leased, more=10)
        clear(nodes)
        scenario.wait_for_records([*leased, *recorded], more=10)
    assert not any(client.stop().errors for client in leased)
    for client in recorded:
        ended = client.stop()
        assert ended.errors
        assert ended.errors.keys() <= {"STORE_UNAVAILABLE", "DEADLINE_EXCEEDED"}
    scenario.prove(how, at_least=1_000)
    scenario.close()  # before the disk is unmounted


def refusal_of(node: Server) -> str:
    """Return the error message of a single call without retries; "" if it succeeds."""
    with grpc.insecure_channel(node.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        try:
            stub.AllocateRange(pb.AllocateRangeRequest(sequence="tickets", request_id=str(uuid4())), timeout=20)
        except grpc.RpcError as failed:
            error: Any = failed
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            return str(error.details())
    return ""


@pytest.mark.scenario(7, TITLE)
def test_an_unwritable_log_fails_no_call(scenario: Scenario) -> None:
    """A server whose log is on a full disk answers all calls."""
    with Path("/dev/full").open("w") as full, small_server(scenario.store, full.fileno()) as (process, address):
        client = scenario.start_client(address, mode="ranges,once,docids", threads=2)
        scenario.count_faults()
        # Each second, and each disconnected client, would write a line.
        scenario.wait_for_records([client], more=100)
        for _ in range(scenario.pick(3, 30)):
            with sdk.Client(address, timeout=20) as other:
                other.allocate_range("orders", 10)
            scenario.wait_for_records([client], more=100)
        assert not client.stop().errors
        process.terminate()
        assert process.wait(30) == 0
    scenario.prove("the disk that the log goes to is full", at_least=1_000)


@contextmanager
def small_server(store: str, stderr: int) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a server with the given standard error; yield its process and address."""
    command = serve_command(store=store, **LEASES)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment())
    assert process.stdout
    try:
        yield process, served_address(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def overwrite(file: Path) -> None:
    """Overwrite all but the first page of the database with random bytes."""
    with file.open("r+b") as database:
        database.seek(4096)
        database.write(os.urandom(file.stat().st_size - 4096))


def truncate(file: Path) -> None:
    """Cut off the second half of the database."""
    os.truncate(file, file.stat().st_size // 2)


def remove(file: Path) -> None:
    """Remove the database file, but not the files beside it."""
    file.unlink()


def remove_logs(file: Path) -> None:
    """Remove -wal and -shm, with the transactions that are only in the write-ahead log."""
    for beside in ("-wal", "-shm"):
        file.with_name(file.name + beside).unlink()


@pytest.mark.scenario(7, TITLE)
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(overwrite, "", marks=pytest.mark.long),  # SQLite notices when it reads a damaged page, if at all
        pytest.param(truncate, "", marks=pytest.mark.long),
        pytest.param(remove, "found no file there", marks=pytest.mark.long),
        (remove_logs, "found no write-ahead log there"),
    ],
    ids=["overwritten", "truncated", "removed", "its log removed"],
)
def test_a_damaged_file_is_restored_by_the_runbook(
    scenario: Scenario, damage: Callable[[Path], None], words: str
) -> None:
    """P1: a damaged database issues nothing more; after the runbook's restore no id is repeated."""
    file = scenario.folder / "ids.db"
    nodes = scenario.start_nodes(2, **LEASES)
    clients = [scenario.start_client(node, timeout=1, mode="ranges,once", pause=PAUSE) for node in nodes]
    scenario.wait_for_records(clients, more=40)
    exported = scenario.export()
    scenario.wait_for_records(clients, more=40)

    damage(file)
    scenario.count_faults()
    if words:
        wait_until_all_are_refused(scenario, clients)
    else:
        hold_for(1, "SQLite may notice meanwhile")
    # As in the runbook: stop all nodes, remove the damaged files, and advance before clients call.
    assert [node.stop() for node in nodes] == [0, 0]
    for piece in (file, *(file.with_name(file.name + beside) for beside in ("-wal", "-shm"))):
        piece.unlink(missing_ok=True)
    assert "created 1" in run_cli("store", "import", exported, "--store", scenario.store)
    alone = scenario.start_node(**LEASES)
    in_use = max(last_record(client)[1] for client in clients)
    run_cli("sequences", "advance", "orders", "--past", in_use, "--server", alone.address)
    assert alone.stop() == 0
    for node in nodes:
        scenario.start_node(listen=node.address, **LEASES)
    scenario.wait_for_records(clients, more=40)
    for client in clients:
        summary = client.stop()
        assert not words or words in summary.messages["STORE_WENT_BACKWARDS"]
    scenario.prove(f"the file {damage.__name__.replace('_', ' ')}", at_least=1_000)


@pytest.mark.scenario(7, TITLE)
def test_servers_share_one_database_file(scenario: Scenario) -> None:
    """P1: several servers on one SQLite file issue no id twice and return no error."""
    nodes = scenario.start_nodes(scenario.pick(2, 6), **LEASES)
    clients = [scenario.start_client(node, mode="ranges,once,docids", pause=PAUSE / 2) for node in nodes]
    clients.append(scenario.start_client(nodes[0], sequence="tickets", mode="stream", pause=PAUSE))
    clients.append(scenario.start_client(nodes[1], sequence="tickets", mode="stream", pause=PAUSE))
    scenario.wait_for_records(clients, more=scenario.pick(100, 1_000), within=300)
    assert not any(client.stop().errors for client in clients)
    scenario.prove(f"{len(nodes)} servers on one file", at_least=1_000)


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        pytest.param(
            "locks",
            "grants one lock twice, and two processes would issue the same ids; choose a local disk",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process try its own locks"),
        ),
        ("memory", "does not allow SQLite's write-ahead log; choose a local disk"),
    ],
)
def test_an_unsafe_file_system_is_refused_at_startup(tmp_path: Path, lacks: str, words: str) -> None:
    """P1: a file system without locks or shared memory is refused at startup."""
    message = refused_start(f"sqlite://{tmp_path}/ids.db", "tests.support.faults.broken_filesystem", "--lacks", lacks)
    assert words in message


def test_a_read_only_disk_is_refused_at_startup(tmp_path: Path) -> None:
    """A read-only disk is refused at startup, with the file's path and the next step."""
    disk = tmp_path / "disk"
    disk.mkdir()
    start_and_stop(f"sqlite://{disk}/ids.db")
    if os.geteuid() == 0:
        for command in (["--bind", str(disk), str(disk)], ["-o", "remount,bind,ro", str(disk)]):
            if subprocess.run(["mount", *command], capture_output=True).returncode:
                pytest.skip("mounting is not permitted, and root may write everywhere")
    else:
        (disk / "ids.db").chmod(0o400)
        disk.chmod(0o500)
    try:
        message = refused_start(f"sqlite://{disk}/ids.db", "idalloc_server")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(disk)], check=True)
        disk.chmod(0o700)
    assert f"cannot use {disk}/ids.db as a SQLite database" in message
    assert "in a folder that can be written to" in message


def start_and_stop(store: str) -> None:
    with small_server(store, subprocess.DEVNULL) as (process, _):
        process.terminate()
        assert process.wait(30) == 0


def refused_start(store: str, module: str, *arguments: str) -> str:
    """Start a server that must refuse to start, and return its one-line error message."""
    command = serve_command(store=store)
    command[command.index("idalloc_server")] = module
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr
