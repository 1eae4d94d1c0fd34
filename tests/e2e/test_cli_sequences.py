"""The commands for sequences, nodes and texts of ids, against a real server."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import IDALLOC, Server, environment, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(
        tmp_path_factory.mktemp("cli"), node_prefix=11, lease_ttl="3s", store_timeout="1s", outage_reserve="1s"
    ) as server:
        yield server


def idalloc(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment(server=server.address)
    return subprocess.run([IDALLOC, *arguments], env=env, capture_output=True, text=True, timeout=50)


def lines(server: Server, *arguments: str) -> list[str]:
    done = idalloc(server, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr in ["", *(f"created sequence {name!r}\n" for name in arguments[1:2])]
    return done.stdout.splitlines()


def error_line(server: Server, *arguments: str) -> str:
    done = idalloc(server, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_created_step_and_start_apply(server: Server) -> None:
    """create --start and --step determine the ids."""
    idalloc(server, "sequences", "create", "tens", "--start", "100", "--step", "10")
    assert lines(server, "allocate", "tens", "3") == ["100", "110", "120"]


def test_negative_step_counts_down(server: Server) -> None:
    """A negative step counts down from max_value, below zero."""
    lines(server, "sequences", "create", "down", "--step", "-5", "--min-value", "-100", "--max-value", "-1")
    assert lines(server, "allocate", "down", "2") == ["-1", "-6"]


def test_creating_an_existing_name_fails(server: Server) -> None:
    """create of an existing name fails with SEQUENCE_EXISTS."""
    lines(server, "sequences", "create", "twice")
    assert error_line(server, "sequences", "create", "twice").startswith("SEQUENCE_EXISTS: ")


@pytest.mark.test_long
def test_show_prints_settings_and_counter(server: Server) -> None:
    """show prints settings and the counter; an unknown name is SEQUENCE_NOT_FOUND."""
    lines(server, "sequences", "create", "shown", "--label", "team=billing", "--description", "What it is for")
    lines(server, "allocate", "shown", "5")
    shown = json.loads("\n".join(lines(server, "sequences", "show", "shown", "--json")))
    assert (shown["lastValue"], shown["labels"]) == ("5", {"team": "billing"})
    assert error_line(server, "sequences", "show", "unknown").startswith("SEQUENCE_NOT_FOUND: ")


@pytest.mark.test_long
def test_a_mistyped_name_gets_near_names(server: Server) -> None:
    """A name that does not exist is answered with near ones, but not one that was deleted."""
    for name in ("payments", "payments-2"):
        lines(server, "sequences", "create", name)
    message = "SEQUENCE_NOT_FOUND: sequence 'paymetns' does not exist"
    near = "; near names are 'payments', 'payments-2'\n"
    for command in (["sequences", "show", "paymetns"], ["sequences", "delete", "paymetns"]):
        assert error_line(server, *command) == message + near
    step = "create it with `idalloc sequences create`"
    missing = f"SEQUENCE_NOT_FOUND: sequence 'zzzzzz' does not exist; {step}\n"
    assert error_line(server, "sequences", "show", "zzzzzz") == missing


@pytest.mark.test_long
def test_list_filters_by_prefix(server: Server) -> None:
    """list --prefix prints only names that begin with it."""
    for name in ("listed/a", "listed/b", "other"):
        lines(server, "sequences", "create", name)
    printed = "\n".join(lines(server, "sequences", "list", "--prefix", "listed/"))
    assert "listed/a" in printed
    assert "listed/b" in printed
    assert "other" not in printed


@pytest.mark.test_long
def test_update_rejects_a_bound_behind_the_counter(server: Server) -> None:
    """update changes a bound, but not to one that the counter has passed."""
    lines(server, "sequences", "create", "bounded")
    lines(server, "allocate", "bounded", "50")
    done = idalloc(server, "sequences", "update", "bounded", "--max-value", "60", "--no-wait")
    assert done.returncode == 0
    assert error_line(server, "sequences", "update", "bounded", "--max-value", "10").startswith(
        "INVALID_REQUEST: --max-value: "
    )


@pytest.mark.test_long
def test_advance_waits_until_effective(server: Server) -> None:
    """P5: after advance returns, no node issues an id up to --past."""
    lines(server, "allocate", "imported", "5")
    assert idalloc(server, "sequences", "advance", "imported", "--past", "5000").returncode == 0
    assert lines(server, "allocate", "imported") == ["5001"]


@pytest.mark.test_long
def test_advance_of_a_period_shows_that_period(server: Server) -> None:
    """advance --period changes and shows only that period's counter."""
    lines(server, "sequences", "create", "monthly", "--format", "{year}-{month}-{value:06d}", "--reset", "monthly")
    advanced = lines(server, "sequences", "advance", "monthly", "--past", "70", "--period", "2099-01")
    shown = lines(server, "sequences", "show", "monthly", "--period", "2099-01")
    assert {"period: 2099-01", "last value: 70"} <= set(advanced) & set(shown)
    assert "last value: 70" not in lines(server, "sequences", "show", "monthly")
    assert error_line(server, "sequences", "show", "monthly", "--period", "2099").startswith(
        "INVALID_REQUEST: period: "
    )


def test_past_table_with_unreachable_cratedb_fails(server: Server) -> None:
    """An unreachable CrateDB is one line with its address."""
    pytest.importorskip("crate")
    lines(server, "sequences", "create", "tabled")
    line = error_line(server, "sequences", "advance", "tabled", "--past-table", "crate://127.0.0.1:1/doc.orders.id")
    assert line == "cannot reach CrateDB at http://127.0.0.1:1: Connection refused\n"


@pytest.mark.test_long
def test_recreated_sequence_continues_past_old_ids(server: Server) -> None:
    """P5: a name that is deleted and created again continues past its last id."""
    lines(server, "allocate", "deleted", "5")
    assert idalloc(server, "sequences", "delete", "deleted").returncode == 0
    assert error_line(server, "allocate", "deleted").startswith("SEQUENCE_NOT_FOUND: ")
    lines(server, "sequences", "create", "deleted")
    assert int(lines(server, "allocate", "deleted")[0]) > 5


@pytest.mark.test_long
def test_formatted_texts_are_parsed(server: Server) -> None:
    """--texts prints the format, and parse reads it and checks the check digit."""
    lines(server, "sequences", "create", "invoices", "--format", "INV-{value:06d}{check:luhn}")
    texts = lines(server, "allocate", "invoices", "2", "--texts")
    assert [text[:-1] for text in texts] == ["INV-000001", "INV-000002"]
    parsed = json.loads("\n".join(lines(server, "sequences", "parse", "invoices", texts[1], "--json")))
    assert parsed["value"] == "2"
    invalid = texts[1][:-1] + str((int(texts[1][-1]) + 1) % 10)
    assert error_line(server, "sequences", "parse", "invoices", invalid).startswith("INVALID_REQUEST: text")


def test_the_same_request_id_prints_the_same_ids(server: Server) -> None:
    """P7: a retry with the same --request-id prints the same ids."""
    request_id = str(uuid.uuid4())
    first = lines(server, "allocate", "repeated", "3", "--request-id", request_id)
    assert lines(server, "allocate", "repeated", "3", "--request-id", request_id) == first


@pytest.mark.test_long
def test_uuids_have_their_version(server: Server) -> None:
    """uuid prints time-ordered UUIDs of version 7, or version 4."""
    ordered = lines(server, "uuid", "3")
    assert ordered == sorted(ordered)
    assert {uuid.UUID(text).version for text in ordered} == {7}
    assert uuid.UUID(lines(server, "uuid", "--version", "4")[0]).version == 4


def test_node_set_applies_immediately(tmp_path: Path) -> None:
    """node set changes the prefix and the increment of document ids at once."""
    with running(tmp_path, node_prefix=11) as server:
        assert lines(server, "docid")[0].startswith("000b")
        lines(server, "node", "set", "--prefix", "12", "--auto-increment-increment", "10")
        ids = lines(server, "docid", "2")
        assert all(text.startswith("000c") for text in ids)
        assert int(ids[1][12:], 16) - int(ids[0][12:], 16) == 10
