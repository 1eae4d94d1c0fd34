"""The CrateDB emulator, against the recorded answers of a real CrateDB."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock

RECORDED = Path(__file__).parent / "data" / "cratedb-recorded.jsonl"
# Numbers that differ from one cluster to the next: what was recorded is translated, one to one.
TRANSLATED = ("_seq_no", "seen_at", "current_timestamp")
ENOUGH_OF_A_MESSAGE = 20


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


class Translation:
    """From numbers in the recording to the emulator's."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}

    def learn(self, table: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        for column in TRANSLATED:
            if column in theirs["cols"] and column in ours["cols"]:
                at = theirs["cols"].index(column)
                for their_row, our_row in zip(theirs["rows"], ours["rows"], strict=False):
                    if isinstance(their_row[at], int):
                        their_row[at] = self._known.setdefault((f"{table}.{column}", their_row[at]), our_row[at])

    def arguments(self, table: str, statement: str, args: list[Any]) -> list[Any]:
        if "_seq_no =" not in statement:
            return args
        at = -2 if "_primary_term" in statement else -1
        args = list(args)
        args[at] = self._known.get((f"{table}._seq_no", args[at]), args[at])
        return args


def table_of(statement: str) -> str:
    words = statement.replace('"', "").split()
    return next((word for word in words if "." in word), "")


def row_results(body: dict[str, Any]) -> list[tuple[int, int]]:
    return [(row["rowcount"], row.get("error", {}).get("code", 0)) for row in body["results"]]


async def test_the_emulator_gives_the_recorded_answers(emulator: CrateEmulator, clock: FakeClock) -> None:
    """The emulator gives every answer that was recorded from a CrateDB 6.4.3."""
    translation, compared = Translation(), 0
    async with aiohttp.ClientSession() as session:
        for entry in recorded():
            clock.advance(0.001)
            emulator.statements.denied = set(entry.get("denied", ()))
            table = table_of(entry["stmt"])
            body: dict[str, Any] = {name: entry[name] for name in ("stmt", "bulk_args") if name in entry}
            body["args"] = translation.arguments(table, entry["stmt"], entry.get("args", []))
            async with session.post(f"http://{emulator.host}/_sql", json=body) as response:
                ours = await response.json()
            if "id" not in entry:
                assert response.status == 200, (entry, ours)
                continue
            theirs = entry["body"]
            assert response.status == entry["http_status"], (entry, ours)
            if "error" in theirs:
                assert ours["error"]["code"] == theirs["error"]["code"], entry
                start = theirs["error"]["message"][:ENOUGH_OF_A_MESSAGE]
                assert ours["error"]["message"].startswith(start), entry
            elif "results" in theirs:
                assert row_results(ours) == row_results(theirs), entry
            else:
                translation.learn(table, theirs, ours)
                for part in ("cols", "rows", "rowcount", *(["col_types"] if "col_types" in theirs else [])):
                    assert ours[part] == theirs[part], (entry, part)
            compared += 1
    assert compared > 300


async def test_the_recording_has_all_kinds_of_statements() -> None:
    """The recording contains every kind of statement that idalloc sends."""
    forms = {entry["stmt"].split()[0] for entry in recorded() if entry.get("id", "").startswith("idalloc.")}
    assert forms == {"SELECT", "CREATE", "ALTER", "UPDATE", "INSERT", "DELETE", "REFRESH", "DROP"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE doc.sequences SET last_value = 5 WHERE name = 's' AND last_value = 4",
        "UPDATE doc.sequences SET last_value = 5 WHERE last_value = 4",
        "UPDATE doc.sequences SET last_value = 5 WHERE name = 's' AND _seq_no = 1",
        "UPDATE doc.sequences SET last_value = 5 WHERE name IN ('s', 't')",
        "UPDATE doc.sequences SET last_value = ROUND(last_value) WHERE name = 's'",
        "SELECT * FROM doc.sequences",
        "SELECT max(last_value) FROM doc.sequences",
    ],
)
async def test_an_unknown_statement_fails_the_test(statement: str) -> None:
    """The emulator answers 500 to a statement form that it does not know, and notes it."""
    async with CrateEmulator() as crate, aiohttp.ClientSession() as session:
        crate.statements.execute("CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value BIGINT)", [])
        async with session.post(f"http://{crate.host}/_sql", json={"stmt": statement}) as response:
            await response.read()
    assert response.status == 500
    assert len(crate.unknown) == 1


async def test_faults_are_injected_over_http(emulator: CrateEmulator) -> None:
    """A test in another process injects faults by ``POST /_emulator/faults``."""
    async with aiohttp.ClientSession(f"http://{emulator.host}") as session:
        async with session.post("/_emulator/faults", json=[{"kind": "error", "status": 500, "code": 5002}]) as response:
            assert response.status == 200
        for status in (500, 200):
            async with session.post("/_sql", json={"stmt": "SELECT CURRENT_TIMESTAMP"}) as response:
                assert response.status == status
    assert emulator.requests == [(int(emulator.host.rpartition(":")[2]), "SELECT CURRENT_TIMESTAMP")] * 2
    assert Fault("drop").times == 1
