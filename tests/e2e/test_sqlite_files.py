"""Servers that open one SQLite file with other -wal or -shm files, so other locks, are refused."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import idalloc as sdk
from tests.support.processes import environment, running, serve_command, served_address
from tests.support.server_calls import channel_per_worker, log_events, wait_until, worker_pids

pytestmark = [
    pytest.mark.test_long,
    pytest.mark.skipif(sys.platform != "linux", reason="these locks and mounts are Linux's"),
]

# More ids than a lease has, so that each call writes to the store.
MANY = 1_000


def take(address: str) -> set[int]:
    """Allocate ids; return none if the server refuses."""
    with sdk.Client(address, timeout=3) as client, suppress(sdk.IdallocError):
        return set(client.allocate_range("orders", MANY))
    return set()


def refusal_of(address: str) -> str:
    """Return the error of a server that must refuse to allocate."""
    with sdk.Client(address, timeout=3) as client, pytest.raises(sdk.IdallocError) as caught:
        client.allocate_range("orders", MANY)
    return str(caught.value)


def second(store: Path, *wrapper: str) -> tuple[set[int], str]:
    """Start another server, allocate ids, and stop it.

    Args:
        store: Its database.
        wrapper: A command that runs the server.

    Returns:
        The ids, and the server's standard error.
    """
    process = subprocess.Popen(
        [*wrapper, *serve_command(store=f"sqlite://{store}", log_level="error")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout
    try:
        serving = process.stdout.readline()
        ids = take(served_address(serving)) if serving else set()
        process.terminate()
        return ids, process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.communicate()


def assert_refused(stderr: str, *words: str) -> None:
    assert stderr.count("\n") == 1, stderr
    assert "store: " in stderr
    for each in words:
        assert each in stderr


def mounting(source: Path, target: Path) -> list[str]:
    """Return a command that runs another where ``source`` is also mounted at ``target``."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    command = [*unshare, "sh", "-c", script, "sh", str(source), str(target)]
    try:
        done = subprocess.run([*command, "true"], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare: mount namespaces cannot be tried")
    if done.returncode:
        pytest.skip("mount namespaces are not permitted")
    return command


def test_a_database_with_hard_links_is_refused(tmp_path: Path) -> None:
    """P1: servers that use one file by two names never issue the same id."""
    link = tmp_path / "link.db"
    with running(tmp_path) as first:
        issued = take(first.address)
        link.hardlink_to(tmp_path / "ids.db")
        others, stderr = second(link)
        assert not others & (issued | take(first.address))
        assert_refused(stderr, f"the file {link} has 2 hard links", "remove all links but one")
        assert "2 hard links" in refusal_of(first.address)
    link.unlink()
    assert min(second(tmp_path / "ids.db")[0]) > max(issued)


@pytest.mark.parametrize("killed", [False, True], ids=["beside", "after"])
def test_a_file_mounted_alone_is_refused(tmp_path: Path, killed: bool) -> None:
    """P1: a server in a container with the database file, but not its folder, issues nothing."""
    (tmp_path / "container").mkdir()
    target = tmp_path / "container" / "own.db"
    target.touch()
    with running(tmp_path) as first:
        issued = take(first.address)
        wrapper = mounting(tmp_path / "ids.db", target)
        if killed:  # its writes are in the write-ahead log only
            first.stop(signal.SIGKILL)
        others, stderr = second(target, *wrapper)
        assert not others & issued
        assert killed or not others & take(first.address)
    assert_refused(stderr, f"the file {target} is mounted on its own", "mount its folder")
    assert [each.name for each in target.parent.iterdir()] == ["own.db"]


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_mount_beside_the_database_is_refused(tmp_path: Path, suffix: str) -> None:
    """P1: a server whose -wal or -shm is another file, because it is mounted, issues nothing."""
    (tmp_path / "other").touch()
    with running(tmp_path) as first:
        issued = take(first.address)
        others, stderr = second(tmp_path / "ids.db", *mounting(tmp_path / "other", tmp_path / f"ids.db{suffix}"))
        later = take(first.address)
    assert_refused(stderr, f"the file {tmp_path}/ids.db{suffix} is mounted on its own", "mount its folder")
    assert len(issued | others | later) == 2 * MANY


def test_a_folder_mounted_twice_is_shared(tmp_path: Path) -> None:
    """P1: servers that have one folder under two names share its database."""
    (tmp_path / "host").mkdir()
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "ids.db").touch()
    with running(tmp_path, store=f"sqlite://{tmp_path}/host/ids.db") as first:
        issued = take(first.address)
        hidden = mounting(tmp_path / "host" / "ids.db", tmp_path / "container" / "ids.db")
        folder = mounting(tmp_path / "host", tmp_path / "container")
        others, stderr = second(tmp_path / "container" / "ids.db", *hidden, *folder)
        later = take(first.address)
    assert stderr == ""
    assert len(issued | others | later) == 3 * MANY


@pytest.mark.parametrize("removed", ["-shm", "-wal -shm"])
def test_a_start_after_the_lock_was_removed_is_refused(tmp_path: Path, removed: str) -> None:
    """P1: two servers whose locks are in different files never issue the same id."""
    file = tmp_path / "ids.db"
    with running(tmp_path) as first:
        issued = take(first.address)
        for beside in removed.split():
            file.with_name(file.name + beside).unlink()
        others, stderr = second(file)
        assert not others & (issued | take(first.address))
        assert_refused(stderr, f"another process uses {file} with another", "stop all servers of this file")
        assert "found another " in refusal_of(first.address)
        assert first.stop() == 0
    # The first server's writes were not lost with its write-ahead log.
    assert min(second(file)[0]) > max(issued)


def test_a_worker_start_after_the_lock_was_removed_is_refused(tmp_path: Path) -> None:
    """P1: a worker that starts after -shm was removed issues no id of another worker."""
    with running(tmp_path, workers=2) as server:
        with channel_per_worker(server):
            pass
        issued = take(server.address)
        (tmp_path / "ids.db-shm").unlink()
        os.kill(worker_pids(server)[0], signal.SIGKILL)
        wait_until(lambda: bool(log_events(server, "worker_not_started")) or len(worker_pids(server)) > 2)
        ids = [i for each in [issued, *(take(server.address) for _ in range(40))] for i in each]
        assert len(ids) == len(set(ids))
        wait_until(lambda: bool(log_events(server, "worker_not_started")))
        assert "another process uses" in log_events(server, "worker_not_started")[0]["error"]


def test_opening_and_closing_processes_are_not_refused(tmp_path: Path) -> None:
    """P1: processes that open and close one database share its -wal and -shm at any time."""
    command = [sys.executable, "-m", "tests.support.reopen_store", str(tmp_path / "ids.db"), "40"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=50) for process in processes]
    assert [err for _, err in outputs] == [""] * 3
    assert sorted(int(line) for out, _ in outputs for line in out.split()) == list(range(1, 241))
    assert [each.name for each in tmp_path.iterdir()] == ["ids.db"]
