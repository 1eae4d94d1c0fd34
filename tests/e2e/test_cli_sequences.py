"""The verbs about sequences, nodes and texts of `idalloc`, against a real server."""

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


def refusal(server: Server, *arguments: str) -> str:
    done = idalloc(server, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_create_with_a_step_and_allocate(server: Server) -> None:
    idalloc(server, "sequences", "create", "tens", "--start", "100", "--step", "10")
    assert lines(server, "allocate", "tens", "3") == ["100", "110", "120"]


def test_create_one_that_counts_down_below_zero(server: Server) -> None:
    lines(server, "sequences", "create", "down", "--step", "-5", "--min-value", "-100", "--max-value", "-1")
    assert lines(server, "allocate", "down", "2") == ["-1", "-6"]


def test_a_name_that_exists_is_refused(server: Server) -> None:
    lines(server, "sequences", "create", "twice")
    assert refusal(server, "sequences", "create", "twice").startswith("SEQUENCE_EXISTS: ")


def test_show_tells_settings_and_counter(server: Server) -> None:
    lines(server, "sequences", "create", "shown", "--label", "team=billing", "--description", "What it is for")
    lines(server, "allocate", "shown", "5")
    shown = json.loads("\n".join(lines(server, "sequences", "show", "shown", "--json")))
    assert (shown["lastValue"], shown["labels"]) == ("5", {"team": "billing"})
    assert refusal(server, "sequences", "show", "nobody").startswith("SEQUENCE_NOT_FOUND: ")


def test_list_by_prefix(server: Server) -> None:
    for name in ("listed/a", "listed/b", "other"):
        lines(server, "sequences", "create", name)
    found = "\n".join(lines(server, "sequences", "list", "--prefix", "listed/"))
    assert "listed/a" in found
    assert "listed/b" in found
    assert "other" not in found


def test_update_a_bound_and_refuse_one_that_was_passed(server: Server) -> None:
    lines(server, "sequences", "create", "bounded")
    lines(server, "allocate", "bounded", "50")
    done = idalloc(server, "sequences", "update", "bounded", "--max-value", "60", "--no-wait")
    assert done.returncode == 0
    assert refusal(server, "sequences", "update", "bounded", "--max-value", "10").startswith(
        "INVALID_REQUEST: --max-value: "
    )


def test_advance_waits_until_it_holds(server: Server) -> None:
    lines(server, "allocate", "imported", "5")
    assert idalloc(server, "sequences", "advance", "imported", "--past", "5000").returncode == 0
    assert lines(server, "allocate", "imported") == ["5001"]


def test_advance_shows_the_period_that_was_advanced(server: Server) -> None:
    lines(server, "sequences", "create", "monthly", "--format", "{year}-{month}-{value:06d}", "--reset", "monthly")
    advanced = lines(server, "sequences", "advance", "monthly", "--past", "70", "--period", "2099-01")
    shown = lines(server, "sequences", "show", "monthly", "--period", "2099-01")
    assert {"period: 2099-01", "last value: 70"} <= set(advanced) & set(shown)
    assert "last value: 70" not in lines(server, "sequences", "show", "monthly")
    assert refusal(server, "sequences", "show", "monthly", "--period", "2099").startswith("INVALID_REQUEST: period: ")


def test_past_a_table_where_no_one_answers(server: Server) -> None:
    pytest.importorskip("crate")
    lines(server, "sequences", "create", "tabled")
    line = refusal(server, "sequences", "advance", "tabled", "--past-table", "crate://127.0.0.1:1/doc.orders.id")
    assert line == "cannot reach CrateDB at http://127.0.0.1:1: Connection refused\n"


def test_delete_and_create_again(server: Server) -> None:
    lines(server, "allocate", "gone", "5")
    assert idalloc(server, "sequences", "delete", "gone").returncode == 0
    assert refusal(server, "allocate", "gone").startswith("SEQUENCE_NOT_FOUND: ")
    lines(server, "sequences", "create", "gone")
    assert int(lines(server, "allocate", "gone")[0]) > 5


def test_texts_in_a_format_and_back(server: Server) -> None:
    lines(server, "sequences", "create", "invoices", "--format", "INV-{value:06d}{check:luhn}")
    texts = lines(server, "allocate", "invoices", "2", "--texts")
    assert [text[:-1] for text in texts] == ["INV-000001", "INV-000002"]
    parsed = json.loads("\n".join(lines(server, "parse", "invoices", texts[1], "--json")))
    assert parsed["value"] == "2"
    wrong = texts[1][:-1] + str((int(texts[1][-1]) + 1) % 10)
    assert refusal(server, "parse", "invoices", wrong).startswith("INVALID_REQUEST: text")


def test_the_same_request_id_prints_the_same_ids(server: Server) -> None:
    request_id = str(uuid.uuid4())
    first = lines(server, "allocate", "repeated", "3", "--request-id", request_id)
    assert lines(server, "allocate", "repeated", "3", "--request-id", request_id) == first


def test_uuids(server: Server) -> None:
    rising = lines(server, "uuid", "3")
    assert rising == sorted(rising)
    assert {uuid.UUID(text).version for text in rising} == {7}
    assert uuid.UUID(lines(server, "uuid", "--version", "4")[0]).version == 4


def test_node_set_changes_prefix_and_step_at_once(tmp_path: Path) -> None:
    with running(tmp_path, node_prefix=11) as server:
        assert lines(server, "docid")[0].startswith("000b")
        lines(server, "node", "set", "--prefix", "12", "--auto-increment-increment", "10")
        ids = lines(server, "docid", "2")
        assert all(text.startswith("000c") for text in ids)
        assert int(ids[1][12:], 16) - int(ids[0][12:], 16) == 10
