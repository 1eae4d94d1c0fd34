"""A disk that is full, a file that is spoiled, and file systems that SQLite cannot be trusted on."""

import os
import resource
import subprocess
import sys
import time
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
from tests.faults.copies import idalloc
from tests.faults.scenario import Scenario
from tests.faults.test_restored import LEASES, PAUSE, last_record, stand_still
from tests.support.processes import Server, environment, serve_command

TITLE = "what a disk does under SQLite"
# A lease that outlasts what is done to the disk.
RESERVE = {"lease_ttl": "180s", "store_timeout": "2s", "outage_reserve": "60s"}
MEGABYTE = 2**20
# SQLite's words for a disk that is full, and for a file that may not grow.
OF_DISKS = "disk is full", "disk I/O error"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Gives a disk of 16 MB: SQLite's log takes 4 before it begins anew.

    Raises:
        PermissionError: This user may mount nothing.
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
    """Takes all the room that a disk has left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


def limit_files(nodes: list[Server], size: int) -> None:
    """Has no file of a process grow beyond a size: what a disk that is full does, where none can be made."""
    for node in nodes:
        _, most = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (size, most))


@pytest.mark.scenario(7, TITLE)
@pytest.mark.parametrize("how", ["a full disk", pytest.param("files that cannot grow", marks=pytest.mark.long)])
def test_a_full_disk_is_not_noticed_by_leases_and_goes_by_without_a_restart(scenario: Scenario, how: str) -> None:
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
        # Not less than what the logs of the nodes may take meanwhile, and not more than the write-ahead log takes.
        run_out_of_room(
            scenario, how, partial(limit_files, size=40_000), partial(limit_files, size=resource.RLIM_INFINITY)
        )


def run_out_of_room(
    scenario: Scenario, how: str, fill_up: Callable[[list[Server]], object], clear: Callable[[list[Server]], object]
) -> None:
    nodes = scenario.start_nodes(2, **RESERVE)
    # A burst, so that each node holds far more than what the calls from now on need.
    for burst in [scenario.start_client(node, mode="stream", id_count=1000, calls=5) for node in nodes]:
        assert burst.process.wait(60) == 0
    leased = [scenario.start_client(node, pause=10 * PAUSE) for node in nodes]
    recorded = [scenario.start_client(node, mode="once", sequence="tickets", timeout=1, pause=PAUSE) for node in nodes]
    for _ in range(scenario.pick(1, 3)):
        scenario.wait_for_records([*leased, *recorded], more=10)
        fill_up(nodes)
        scenario.fault()
        stand_still(scenario, recorded)
        # Now and then SQLite finds room in its own log once more.
        scenario.wait_until(lambda: all(refusal_of(node).endswith(OF_DISKS) for node in nodes), "they tell why", 20)
        scenario.wait_for_records(leased, more=10)
        clear(nodes)
        scenario.wait_for_records([*leased, *recorded], more=10)
    assert not any(client.stop().errors for client in leased)
    for client in recorded:
        ended = client.stop()
        assert ended.errors
        assert ended.errors.keys() <= {"STORE_UNAVAILABLE", "DEADLINE_EXCEEDED"}
    scenario.prove(how, at_least=1_000)
    scenario.close()  # nothing may use the disk any more


def refusal_of(node: Server) -> str:
    """What a caller is told that tries nothing again, as our own client does until its time is over; "" for an id."""
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
def test_a_log_that_cannot_be_written_costs_no_call(scenario: Scenario) -> None:
    with Path("/dev/full").open("w") as full, small_server(scenario.store, full.fileno()) as (process, address):
        client = scenario.start_client(address, mode="ranges,once,docids", threads=2)
        scenario.fault()
        # Each second a line for the calls would be written, and one for each client that left.
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
    """Runs a server whose log goes somewhere else."""
    command = serve_command(store=store, **LEASES)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment())
    assert process.stdout
    try:
        yield process, process.stdout.readline().split("serves on ")[1].split(",")[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def overwrite(file: Path) -> None:
    """Puts other bytes where all but the first page of the database was."""
    with file.open("r+b") as database:
        database.seek(4096)
        database.write(os.urandom(file.stat().st_size - 4096))


def truncate(file: Path) -> None:
    """Cuts the second half of the database off."""
    os.truncate(file, file.stat().st_size // 2)


def remove(file: Path) -> None:
    """Removes the database alone."""
    file.unlink()


def remove_logs(file: Path) -> None:
    """Removes what SQLite keeps beside the database, and what was not in the database yet with it."""
    for beside in ("-wal", "-shm"):
        file.with_name(file.name + beside).unlink()


@pytest.mark.scenario(7, TITLE)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(
            overwrite, "", marks=pytest.mark.long
        ),  # SQLite notices that when it reads one of these pages, if it does
        pytest.param(truncate, "", marks=pytest.mark.long),
        pytest.param(remove, "found no file there", marks=pytest.mark.long),
        (remove_logs, "found no write-ahead log there"),
    ],
    ids=["overwritten", "truncated", "removed", "its log removed"],
)
def test_a_file_that_was_spoiled_gives_nothing_more_until_a_copy_was_restored(
    scenario: Scenario, spoil: Callable[[Path], None], words: str
) -> None:
    file = scenario.folder / "ids.db"
    nodes = scenario.start_nodes(2, **LEASES)
    clients = [scenario.start_client(node, timeout=1, mode="ranges,once", pause=PAUSE) for node in nodes]
    scenario.wait_for_records(clients, more=40)
    exported = scenario.export()
    scenario.wait_for_records(clients, more=40)

    spoil(file)
    scenario.fault()
    if words:
        stand_still(scenario, clients)
    else:
        time.sleep(1)  # for SQLite to notice, or not
    # As the runbook has it: all end, the pieces are put aside, and nobody calls before it was advanced.
    assert [node.stop() for node in nodes] == [0, 0]
    for piece in (file, *(file.with_name(file.name + beside) for beside in ("-wal", "-shm"))):
        piece.unlink(missing_ok=True)
    assert "created 1" in idalloc("import", exported, "--store", scenario.store)
    alone = scenario.start_node(**LEASES)
    in_use = max(last_record(client)[1] for client in clients)
    idalloc("sequences", "advance", "orders", "--past", in_use, "--server", alone.address)
    assert alone.stop() == 0
    for node in nodes:
        scenario.start_node(listen=node.address, **LEASES)
    scenario.wait_for_records(clients, more=40)
    for client in clients:
        summary = client.stop()
        assert not words or words in summary.messages["STORE_WENT_BACKWARDS"]
    scenario.prove(f"the file {spoil.__name__.replace('_', ' ')}", at_least=1_000)


@pytest.mark.scenario(7, TITLE)
def test_two_servers_on_one_file_share_it(scenario: Scenario) -> None:
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
def test_no_server_starts_where_the_file_system_lacks(tmp_path: Path, lacks: str, words: str) -> None:
    done = start_in_vain(f"sqlite://{tmp_path}/ids.db", "tests.faults.unlocked", "--lacks", lacks)
    assert words in done


def test_no_server_starts_on_a_disk_that_is_read_only(tmp_path: Path) -> None:
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
        said = start_in_vain(f"sqlite://{disk}/ids.db", "idalloc_server")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(disk)], check=True)
        disk.chmod(0o700)
    assert f"cannot use {disk}/ids.db as a SQLite database" in said
    assert "in a folder that can be written to" in said


def start_and_stop(store: str) -> None:
    with small_server(store, subprocess.DEVNULL) as (process, _):
        process.terminate()
        assert process.wait(30) == 0


def start_in_vain(store: str, module: str, *arguments: str) -> str:
    """Starts a server that must not start, and returns the one line that it said."""
    command = serve_command(store=store)
    command[command.index("idalloc_server")] = module
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr
