"""The runbook's commands fix real faults: ids flow again, and none comes twice (P1, P3)."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from tests.support.faults.node_control import NodeControl
from tests.support.faults.store_copies import copied_store
from tests.support.operations import Operator, operator
from tests.support.processes import environment, locked

PAGE = "docs/operations/runbook.md"

# Each runs several real processes, and some wait for leases.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(240)]


@pytest.fixture
def by_the_page(tmp_path: Path) -> Iterator[Operator]:
    """An operator who has read the page's first section."""
    with operator(PAGE, tmp_path) as made:
        made.run_all("Before you begin")
        yield made


@pytest.fixture
def serving(by_the_page: Operator) -> Operator:
    """The same, with a server that has issued ids of ``orders``."""
    by_the_page.serve()
    by_the_page.take()
    return by_the_page


def test_a_locked_store_recovers(serving: Operator) -> None:
    """STORE_UNAVAILABLE: health and log name the cause, and ids flow when the lock ends."""
    health, log, ids = serving.blocks("`STORE_UNAVAILABLE`")
    with locked(serving.file):
        serving.refused("", "allocate orders 100000")  # by the client's deadline, or by the store
        serving.wait_for_log("store_unavailable")
        assert "store: NOT_SERVING: " in serving.run(health)
        assert "store_unavailable" in serving.run(log)
    serving.run(ids)
    serving.wait_for_log("store_recovered")


def test_a_store_that_outlasts_the_deadline_is_found(serving: Operator) -> None:
    """DEADLINE_EXCEEDED: the log names the store; a call with more time gets the store's error."""
    find, ids = serving.blocks("`DEADLINE_EXCEEDED`")
    with locked(serving.file):
        serving.refused("DEADLINE_EXCEEDED", "allocate orders 100000 --timeout 1s")
        serving.wait_for_log("store_unavailable", "CANCELLED")
        printed = serving.run(find)
        assert "CANCELLED" in printed
        assert "store: NOT_SERVING: " in printed
        serving.refused("STORE_UNAVAILABLE", ids.text.partition("idalloc ")[2].replace("orders", "orders 100000"))
    serving.run(ids)


def test_a_restored_store_is_advanced(serving: Operator) -> None:
    """P3: after the advance of the page, a store restored from a copy issues only new ids."""
    copy = serving.folder / "copy.db"
    with closing(sqlite3.connect(serving.file)) as file, closing(sqlite3.connect(copy)) as made:
        file.backup(made)
    serving.take(100)
    with closing(sqlite3.connect(copy)) as made, closing(sqlite3.connect(serving.file, timeout=30)) as file:
        made.backup(file)
    serving.refused("STORE_WENT_BACKWARDS")
    log, advance, ids = serving.blocks("`STORE_WENT_BACKWARDS`")
    assert '"seen"' in serving.run(log)
    serving.run(advance)
    assert int(serving.run(ids)) > 1234567


def test_a_file_that_was_moved_away_is_moved_back(serving: Operator) -> None:
    """P1: after the file was moved back, ids continue past the advance."""
    serving.file.rename(f"{serving.file}.away")
    assert "found no file there" in serving.refused("STORE_WENT_BACKWARDS")
    [look] = serving.blocks("The SQLite file was moved, lost or replaced")
    assert "idalloc.db.away" in serving.run(look, code=1)
    serving.run_all("The file was moved away")
    serving.take()


def test_a_hard_link_is_found_and_removed(serving: Operator) -> None:
    """P1: a file with a hard link issues nothing, and the page's command names the link."""
    link = Path(f"{serving.file}.link")
    link.hardlink_to(serving.file)
    assert "2 hard links" in serving.refused("STORE_WENT_BACKWARDS")
    [look] = serving.blocks("The SQLite file was moved, lost or replaced")
    assert str(link) in serving.run(look)
    serving.stop()
    assert "has 2 hard links" in serving.start_refused()
    assert "[store]" not in serving.run_all("A server does not start")
    link.unlink()
    serving.serve()
    serving.take()


def test_an_exhausted_sequence_continues(by_the_page: Operator) -> None:
    """SEQUENCE_EXHAUSTED: a higher max_value lets the sequence continue."""
    by_the_page.serve()
    by_the_page.shell("idalloc sequences create orders --max-value 20")
    by_the_page.take(20)
    by_the_page.refused("SEQUENCE_EXHAUSTED")
    show, fix = by_the_page.blocks("`SEQUENCE_EXHAUSTED`")
    assert "100.0 %" in by_the_page.run(show)
    assert by_the_page.run(fix).endswith("21\r\n")


def test_a_corrupt_row_is_repaired(serving: Operator) -> None:
    """SEQUENCE_INVALID: a row without last_value is found, and continues past the written value."""
    with closing(sqlite3.connect(serving.file, timeout=30, isolation_level=None)) as file:
        file.execute("UPDATE sequences SET last_value = NULL")
    serving.refused("SEQUENCE_INVALID")
    show, fix, _ = serving.blocks("`SEQUENCE_INVALID`")  # the last one is for OpenSearch
    assert "last_value is NULL" in serving.run(show, code=1)
    assert int(serving.run(fix).splitlines()[-1]) > 1234567


def test_a_deleted_sequence_is_created_again(serving: Operator) -> None:
    """SEQUENCE_NOT_FOUND: a deleted sequence continues past its last id."""
    serving.shell("idalloc sequences delete orders")
    serving.refused("SEQUENCE_NOT_FOUND")
    show, fix = serving.blocks("`SEQUENCE_NOT_FOUND`")
    assert "orders" in serving.run(show)
    serving.run(fix)


def test_a_limit_of_sequences_is_raised(by_the_page: Operator) -> None:
    """TOO_MANY_SEQUENCES: with a higher max_sequences, other names are served after a restart."""
    by_the_page.set(IDALLOC_MAX_SEQUENCES=1)
    by_the_page.serve()
    by_the_page.take()
    by_the_page.refused("TOO_MANY_SEQUENCES", "allocate others")
    by_the_page.wait_for_log("many_sequences")
    show, fix = by_the_page.blocks("`TOO_MANY_SEQUENCES`")
    assert "orders" in by_the_page.run(show)
    by_the_page.stop()
    by_the_page.run(fix)
    by_the_page.serve()
    by_the_page.take()
    by_the_page.shell("idalloc allocate others 1 --json")


def test_a_conflict_of_prefixes_is_solved(serving: Operator) -> None:
    """PREFIX_IN_USE: once the running node has another prefix, a second one starts with the old."""
    another = "--listen 127.0.0.1:0 --prefix-conflict refuse"
    assert "prefix 0 is in use by" in serving.start_refused(another)
    show, fix = serving.blocks("`PREFIX_IN_USE`")
    assert "prefix" in serving.run(show)
    assert "\n0008" in serving.run(fix)
    serving.serve(another)
    serving.take()


def test_a_wrong_clock_is_corrected(by_the_page: Operator, tmp_path: Path) -> None:
    """P6: against CrateDB a node starts only if its clock is right."""
    with copied_store("cratedb", tmp_path) as store:
        by_the_page.set(IDALLOC_STORE=store.url)
        control = NodeControl(tmp_path / "clock.json")
        control.set_wall_clock(offset=86_400.0)
        node = [sys.executable, "-m", "tests.support.faults.faulty_node", *control.arguments, f"--store={store.url}"]
        done = subprocess.run(
            [*node, "--listen=127.0.0.1:0"], capture_output=True, text=True, env=environment(), timeout=60
        )
        assert "max_clock_skew: this machine's clock is ahead of the store's" in done.stderr
        assert "raise max_clock_skew" in done.stderr
        by_the_page.run_all("A clock is wrong")
        by_the_page.take()


def test_a_server_that_drains_is_started_again(serving: Operator) -> None:
    """SERVER_DRAINING: the log shows the stop, and the next start continues past all issued ids."""
    serving.stop()
    log, start, ids = serving.blocks("`SERVER_DRAINING`")
    printed = serving.run(log)
    assert '"draining"' in printed
    assert '"stopped"' in printed
    serving.run(start)
    serving.run(ids)


def test_a_quota_is_raised_without_a_restart(by_the_page: Operator) -> None:
    """QUOTA_EXCEEDED: a higher quota in the access file counts within a second."""
    by_the_page.shell("idalloc token new billing --allocate '*' >billing.token 2>access.toml")
    with (by_the_page.folder / "access.toml").open("a") as file:
        file.write("ids_per_second = 1\n")
        file.write(f'\n[[identity]]\nname = "other"\ntoken_sha256 = ["{"0" * 64}"]\nids_per_second = 2\n')
    by_the_page.set(IDALLOC_ACCESS_FILE=by_the_page.folder / "access.toml")
    by_the_page.set(IDALLOC_TOKEN_FILE=by_the_page.folder / "billing.token")
    by_the_page.serve()
    by_the_page.take(1000)
    by_the_page.refused("QUOTA_EXCEEDED")
    log, change, fix, check = by_the_page.blocks("`QUOTA_EXCEEDED`")
    by_the_page.wait_for_log("QUOTA_EXCEEDED")
    assert "QUOTA_EXCEEDED" in by_the_page.run(log)
    assert "1_000_000" in by_the_page.run(change, code=1)  # diff: the files differ
    by_the_page.run(fix)
    by_the_page.run(check)
    assert "ids_per_second = 2\n" in (by_the_page.folder / "access.toml").read_text()


def test_an_operator_without_access_writes_an_entry(by_the_page: Operator) -> None:
    """UNAUTHENTICATED: an entry that is appended to the access file counts within a second."""
    by_the_page.shell("idalloc token new billing --allocate '*' >billing.token 2>access.toml")
    by_the_page.set(IDALLOC_ACCESS_FILE=by_the_page.folder / "access.toml")
    by_the_page.serve()
    by_the_page.refused("UNAUTHENTICATED")
    log, fix = by_the_page.blocks("`UNAUTHENTICATED`")
    by_the_page.wait_for_log('"audit"')
    assert "UNAUTHENTICATED" in by_the_page.run(log)
    by_the_page.run(fix)
    by_the_page.take()
    assert "token_sha256" in by_the_page.run_all("A token leaked")


def test_an_expired_certificate_is_renewed(by_the_page: Operator) -> None:
    """SERVER_UNREACHABLE: renewed files count at the next connection, without a restart."""
    authority, folder = trustme.CA(), by_the_page.folder
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name, not_after in (("server", datetime(2020, 1, 1, tzinfo=UTC)), ("renewed", None)):
        leaf = authority.issue_cert("127.0.0.1", not_after=not_after)
        leaf.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        leaf.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    by_the_page.set(IDALLOC_TLS_CERT=folder / "server.pem", IDALLOC_TLS_KEY=folder / "server.key")
    by_the_page.set(IDALLOC_CA=folder / "ca.pem")
    by_the_page.serve()
    health, look, fix, check = by_the_page.blocks("`SERVER_UNREACHABLE`")
    assert "expired" in by_the_page.run(health, code=1)
    assert "2020" in by_the_page.run(look)
    by_the_page.run(fix)
    by_the_page.run(check)
    by_the_page.wait_for_log("certificates_reloaded")
    by_the_page.take()


def test_the_address_for_x_devapi_clients_is_shown(by_the_page: Operator) -> None:
    """Errors of X DevAPI clients: the page's command shows the address of the setting."""
    by_the_page.set(IDALLOC_XPROTO_LISTEN="127.0.0.1:33060")
    assert "127.0.0.1:33060" in by_the_page.run_all("An X DevAPI client gets an error")


def test_a_killed_worker_is_found_in_the_log(by_the_page: Operator) -> None:
    """worker_ended: the log names the exit code, and the other workers go on."""
    by_the_page.set(IDALLOC_WORKERS=2)
    by_the_page.serve()
    by_the_page.take()
    lines = by_the_page.run_all("`worker_ended`").splitlines()
    pids = [int(line.partition('"pid": ')[2].partition(",")[0]) for line in lines if "worker_started" in line]
    os.kill(pids[0], signal.SIGKILL)
    by_the_page.wait_for_log("worker_ended")
    assert '"exit_code": -9' in by_the_page.run_all("`worker_ended`")
    by_the_page.take()


def test_burned_ids_and_failed_calls_are_in_the_log(by_the_page: Operator) -> None:
    """P9: the page's commands find failed calls and burned ids."""
    by_the_page.set(IDALLOC_LEASE_TTL="180s")  # no lease is given back as idle
    by_the_page.serve()
    by_the_page.refused("INVALID_REQUEST", "allocate orders 2000000")
    by_the_page.wait_for_log("calls_failed")
    assert "must be between 1 and 1000000" in by_the_page.run_all("`calls_failed`")
    by_the_page.shell("idalloc sequences create others --min-lease-size 1000")
    by_the_page.shell("for each in 1 2 3; do idalloc allocate others --json; done")  # the second one takes a reserve
    with closing(sqlite3.connect(by_the_page.file, timeout=30, isolation_level=None)) as file:  # as another node does
        file.execute("UPDATE sequences SET last_value = last_value + 1, writes = writes + 1")
    by_the_page.stop()
    by_the_page.wait_for_log('"burned"')
    assert '"cause"' in by_the_page.run_all("`burned`")
