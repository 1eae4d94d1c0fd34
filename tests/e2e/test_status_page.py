"""The documents of the status page of real servers, with one process and with several."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import idalloc
from tests.e2e.test_access import new_token
from tests.e2e.test_http import LOOPBACK, get, metrics, without_workers
from tests.support.processes import Server, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.test_long, pytest.mark.timeout(180)]


def document(server: Server, path: str, token: str = "") -> Any:
    """Return a JSON document of the server."""
    status, text = get(server, path, token)
    assert status == 200, text
    return json.loads(text)


def listed(server: Server, query: str = "") -> dict[str, Any]:
    """Return the sequences of a list, by name."""
    return {each["name"]: each for each in document(server, f"api/sequences?{query}")["sequences"]}


@pytest.mark.parametrize("workers", [1, 2])
def test_status_shows_the_whole_server(tmp_path: Path, workers: int) -> None:
    """The status has the node, its checks, its calls and the last failed calls of all processes."""
    with running(tmp_path, http_listen=LOOPBACK, workers=workers, node_prefix=7) as server:
        for number in range(20):
            with idalloc.Client(server.address) as client:  # each on a connection of its own
                client.allocate_range("orders", 5)
                with pytest.raises(idalloc.SequenceNotFound):
                    client.sequences.get(f"no-{number}")
        wait_until(lambda: document(server, "api/status")["totals"]["ids_issued"] == "100")
        wait_until(lambda: len(document(server, "api/status")["calls"]) == 2)
        wait_until(lambda: sum(each["count"] for each in document(server, "api/status")["refusals"]) == 20)
        status = document(server, "api/status")
        node = status["node"]
        assert (node["address"], node["workers"], node["prefix"]) == (server.address, workers, "7")
        assert node["store"] == f"sqlite://{tmp_path}/ids.db"
        assert 0 < node["now"] - node["started_at"] < 180
        assert {each["check"] for each in status["health"]} >= {"store", "lease-renewals", "certificates"}
        assert {each["problem"] for each in status["health"]} == {""}
        names = [call["method"] for call in status["calls"]]
        assert names == ["idalloc.v1.IdAllocatorService/AllocateRange", "idalloc.v1.SequenceService/GetSequence"]
        assert {each["reason"] for each in status["refusals"]} == {"SEQUENCE_NOT_FOUND"}


@pytest.mark.parametrize("workers", [1, 2])
def test_sequences_have_what_all_processes_hold(tmp_path: Path, workers: int) -> None:
    """The list has the store's sequences with all processes' ids in memory, sorted and searched."""
    with running(tmp_path, http_listen=LOOPBACK, workers=workers) as server:
        with idalloc.Client(server.address) as client:
            client.sequences.create("Invoices", max_value=100, labels={"team": "billing"})
            client.sequences.create("returns", reset="yearly", format="{year}-{value}")
            client.allocate_range("Invoices", 90)
            client.allocate_range("returns", 4)
        wait_until(lambda: len(listed(server)) == 2)
        wait_until(lambda: listed(server)["Invoices"]["used_ratio"] == 0.9)
        invoices = listed(server)["Invoices"]
        assert (invoices["last_value"], invoices["remaining"], invoices["labels"]) == ("90", "10", {"team": "billing"})
        assert invoices["lease_ids"].isdigit()
        assert len(listed(server)["returns"]["period"]) == 4
        assert [*listed(server, "sort=used&descending=1")] == ["Invoices", "returns"]
        assert [*listed(server, "search=VOICE")] == ["Invoices"]
        assert [*listed(server, "offset=1&limit=1")] == ["returns"]
        for query in ("sort=size", "limit=0", "limit=101", "offset=-1", "descending=yes", "limit=%D9%A1"):
            status, text = get(server, f"api/sequences?{query}")
            assert (status, text.count("\n")) == (400, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_limited_reserve_is_named(tmp_path: Path, workers: int) -> None:
    """The list and the metrics say why a reserve is short, until the sequence has more ids."""
    with running(tmp_path, http_listen=LOOPBACK, workers=workers) as server, idalloc.Client(server.address) as client:
        client.sequences.create("small", max_value=200_000)
        client.allocate_range("small", 20_000)

        def reserve(*, limited: bool) -> bool:
            client.allocate_range("small", 100)
            found = {name for name in metrics(server) if name.startswith("idalloc_reserve_limited")}
            each = listed(server).get("small", {"reserve_limit": None})
            expected = "1 % of the ids left" if limited else ""
            return bool(found) == limited and each["reserve_limit"] == expected

        wait_until(lambda: reserve(limited=True), seconds=60)
        assert "idalloc_reserve_limited remaining_ids small" in metrics(server)
        assert listed(server)["small"]["reserve_seconds"] < 90
        client.sequences.update("small", max_value=10**15)
        wait_until(lambda: reserve(limited=False) and listed(server)["small"]["reserve_seconds"] > 90, seconds=60)


@pytest.mark.parametrize("workers", [1, 2])
def test_documents_need_the_role_read_on_all_sequences(tmp_path: Path, workers: int) -> None:
    """With access the page's files are open; its documents need the role read on everything."""
    file = tmp_path / "access.toml"
    reader = new_token(file, "watcher", "--read", "*")
    other = new_token(file, "billing", "--read", "billing*")
    with running(tmp_path, http_listen=LOOPBACK, workers=workers, access_file=file) as server:
        assert {get(server, path)[0] for path in ("", "status.css", "status.js")} == {200}
        for path in ("api/status", "api/sequences"):
            assert [get(server, path, token)[0] for token in ("", other, reader)] == [401, 403, 200]


def test_status_answers_while_no_worker_serves(tmp_path: Path) -> None:
    """Without a worker the status names the failing check, and the list is 503 with one line."""
    with without_workers(tmp_path) as server:
        health = {each["check"]: each["problem"] for each in document(server, "api/status")["health"]}
        assert health["workers"] == "no worker serves"
        assert get(server, "api/sequences") == (503, "no worker serves\n")
        assert any(each["event"] == "worker_ended" for each in document(server, "api/status")["events"])


def test_many_sequences_keep_the_page_and_the_metrics_small(tmp_path: Path) -> None:
    """The list has the first 10,000 sequences, the forecasts even one that another node uses."""
    with running(tmp_path, http_listen=LOOPBACK) as server, idalloc.Client(server.address) as client:
        client.sequences.create("a")
        client.sequences.create("z-last", max_value=1_000)
    with closing(sqlite3.connect(tmp_path / "ids.db")) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(sequences)") if row[1] != "name"]
        names = ", ".join(columns)
        database.executemany(
            f"INSERT INTO sequences (name, {names}) SELECT ?, {names} FROM sequences WHERE name = 'a'",
            [(f"m-{number:05}",) for number in range(10_300)],
        )
        database.commit()
    with running(tmp_path, http_listen=LOOPBACK, max_sequences=100_000) as server:
        with idalloc.Client(server.address) as client:
            client.allocate_range("z-last", 1_000)  # as another node would
        series = "idalloc_sequence_exhausts_in_seconds z-last"
        wait_until(lambda: metrics(server).get(series) == 0)
        wait_until(lambda: document(server, "api/sequences")["as_of"] is not None, seconds=120)
        found = document(server, "api/sequences?limit=100")
        assert (found["total"], found["is_complete"], len(found["sequences"])) == (10_000, False, 100)
        assert len(get(server, "metrics")[1]) < 200_000
