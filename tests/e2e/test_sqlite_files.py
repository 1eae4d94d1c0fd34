"""Ways to come to one SQLite database with other files beside it: each server would have a lock of its own."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import idalloc as sdk
from tests.e2e.test_workers import lines, one_channel_each, wait_until, workers_of
from tests.support.processes import environment, running, serve_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these locks and mounts are Linux's")

# More than a lease has, so that each call writes to the store.
MANY = 1_000


def take(address: str) -> set[int]:
    """Returns ids of a server; none where it refuses."""
    with sdk.Client(address, timeout=3) as client, suppress(sdk.IdallocError):
        return set(client.allocate_range("orders", MANY))
    return set()


def refusal_of(address: str) -> str:
    """Returns what a server says that gives no ids."""
    with sdk.Client(address, timeout=3) as client, pytest.raises(sdk.IdallocError) as caught:
        client.allocate_range("orders", MANY)
    return str(caught.value)


def second(store: Path, *wrapper: str) -> tuple[set[int], str]:
    """Starts another server, and ends it.

    Args:
        store: Its database.
        wrapper: A command that runs the server.

    Returns:
        The ids that it gave, and what it said on standard error.
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
        welcome = process.stdout.readline()
        ids = take(welcome.split("serves on ")[1].split(",")[0]) if welcome else set()
        process.terminate()
        return ids, process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.communicate()


def assert_refused(said: str, *words: str) -> None:
    assert said.count("\n") == 1, said
    assert "store: " in said
    for each in words:
        assert each in said


def mounting(source: Path, target: Path) -> list[str]:
    """Returns the command that runs another one where ``source`` is also mounted at ``target``, for it alone."""
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


def test_a_hard_link_is_no_second_way_to_a_database(tmp_path: Path) -> None:
    """P1: servers that come by two names of one file never issue the same id."""
    link = tmp_path / "link.db"
    with running(tmp_path) as first:
        given = take(first.address)
        link.hardlink_to(tmp_path / "ids.db")
        others, said = second(link)
        assert not others & (given | take(first.address))
        assert_refused(said, f"the file {link} has 2 hard links", "remove all links but one")
        assert "2 hard links" in refusal_of(first.address)
    link.unlink()
    assert min(second(tmp_path / "ids.db")[0]) > max(given)


@pytest.mark.parametrize("killed", [False, True], ids=["beside", "after"])
def test_a_file_mounted_alone_is_refused(tmp_path: Path, killed: bool) -> None:
    """P1: a server in a container that has the file, and not its folder, issues nothing."""
    (tmp_path / "container").mkdir()
    target = tmp_path / "container" / "own.db"
    target.touch()
    with running(tmp_path) as first:
        given = take(first.address)
        wrapper = mounting(tmp_path / "ids.db", target)
        if killed:  # what it wrote is in its write-ahead log alone
            first.stop(signal.SIGKILL)
        others, said = second(target, *wrapper)
        assert not others & given
        assert killed or not others & take(first.address)
    assert_refused(said, f"the file {target} is mounted on its own", "mount its folder")
    assert [each.name for each in target.parent.iterdir()] == ["own.db"]


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_mount_beside_the_database_is_refused(tmp_path: Path, suffix: str) -> None:
    """P1: a server that has another -wal or -shm than the others, because it is mounted, issues nothing."""
    (tmp_path / "other").touch()
    with running(tmp_path) as first:
        given = take(first.address)
        others, said = second(tmp_path / "ids.db", *mounting(tmp_path / "other", tmp_path / f"ids.db{suffix}"))
        later = take(first.address)
    assert_refused(said, f"the file {tmp_path}/ids.db{suffix} is mounted on its own", "mount its folder")
    assert len(given | others | later) == 2 * MANY


def test_a_folder_mounted_twice_is_one_folder(tmp_path: Path) -> None:
    """P1: servers that have one folder under two names share its database."""
    (tmp_path / "host").mkdir()
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "ids.db").touch()
    with running(tmp_path, store=f"sqlite://{tmp_path}/host/ids.db") as first:
        given = take(first.address)
        hidden = mounting(tmp_path / "host" / "ids.db", tmp_path / "container" / "ids.db")
        folder = mounting(tmp_path / "host", tmp_path / "container")
        others, said = second(tmp_path / "container" / "ids.db", *hidden, *folder)
        later = take(first.address)
    assert said == ""
    assert len(given | others | later) == 3 * MANY


@pytest.mark.parametrize("removed", ["-shm", "-wal -shm"])
def test_no_server_starts_beside_one_whose_lock_was_removed(tmp_path: Path, removed: str) -> None:
    """P1: two servers whose locks lie in two files never issue the same id."""
    file = tmp_path / "ids.db"
    with running(tmp_path) as first:
        given = take(first.address)
        for beside in removed.split():
            file.with_name(file.name + beside).unlink()
        others, said = second(file)
        assert not others & (given | take(first.address))
        assert_refused(said, f"another process uses {file} with another", "stop all servers of this file")
        assert "found another " in refusal_of(first.address)
        assert first.stop() == 0
    # What the first one wrote was not lost with its log.
    assert min(second(file)[0]) > max(given)


def test_no_worker_is_replaced_beside_a_removed_lock(tmp_path: Path) -> None:
    """P1: a worker that starts after -shm was removed never issues what another worker issues."""
    with running(tmp_path, workers=2) as server:
        with one_channel_each(server):
            pass
        given = take(server.address)
        (tmp_path / "ids.db-shm").unlink()
        os.kill(workers_of(server)[0], signal.SIGKILL)
        wait_until(lambda: bool(lines(server, "worker_not_started")) or len(workers_of(server)) > 2)
        ids = [i for each in [given, *(take(server.address) for _ in range(40))] for i in each]
        assert len(ids) == len(set(ids))
        wait_until(lambda: bool(lines(server, "worker_not_started")))
        assert "another process uses" in lines(server, "worker_not_started")[0]["error"]


def test_processes_that_come_and_go_are_not_refused(tmp_path: Path) -> None:
    """P1: the last one to close removes -wal and -shm, and one that opens then gets new ones with all others."""
    command = [sys.executable, "-m", "tests.support.reopen_store", str(tmp_path / "ids.db"), "40"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=50) for process in processes]
    assert [err for _, err in outputs] == [""] * 3
    assert sorted(int(line) for out, _ in outputs for line in out.split()) == list(range(1, 241))
    assert [each.name for each in tmp_path.iterdir()] == ["ids.db"]
