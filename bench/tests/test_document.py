"""The pages of benchmarks: their tables and targets."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import added_documents, document, targets
from bench.counter_document import refused
from bench.drivers import read_ghz
from bench.questions import QUESTIONS
from bench.turns import Contender, Turn
from tests.support.paths import ROOT

MACHINE = {
    "date": "2026-11-21 12:00 UTC",
    "cpu": "Some CPU",
    "cores": 2,
    "own_cores": False,
    "memory_gb": 8,
    "kernel": "Linux 6",
    "python": "3.11.2",
    "packages": {"grpcio": "1.80"},
    "programs": {},
    "load_before": 0.1,
    "fsync_ms": 1.5,
    "file_system": "ext4",
}


def contender(rate: int, p50: float = 0.001, server_cpu: float = 1.0) -> Contender:
    one = Turn(rate, rate, 1.0, p50, p50, 0.5, server_cpu)
    return Contender("one", lambda _: one, 64, "ghz", turns={1: one})


def peers_result(**changes: Any) -> dict[str, Any]:
    one = {
        "key": "ours grpcio 1 at 64",
        "name": "idalloc",
        "in_flight": 64,
        "driver": "ghz",
        "failures": [],
        "rounds": 1,
        "sees_calls": True,
    }
    one |= {"rate": 1234.0, "ids_rate": 1234.0, "p50": 0.0123, "p99": 0.02, "server_cost": 2e-4, "client_cost": None}
    result = {
        "machine": MACHINE,
        "rounds": 5,
        "seconds": 1.0,
        "contenders": [one],
        "skipped": [],
        "refills": [],
        "hangs": [],
    }
    return result | {"idle_stream_kb": {}, "targets": []} | changes


def verdicts(rows: list[dict[str, Any]]) -> dict[str, bool | None]:
    return {row["what"]: row["met"] for row in rows}


def test_targets_are_met_missed_or_not_measured() -> None:
    """A target is met, missed, or not measured if a contender is missing."""
    contenders = {
        "ours grpcio 1 at 64": contender(91, server_cpu=0.91),
        "noop grpcio at 64": contender(100),
        "ours native 1 at 64": contender(363),
    }
    met = verdicts(targets.of(contenders, False, [], {"grpcio": 39.9, "native": "RuntimeError: none"}))

    assert met["unary calls/s, idalloc / no-op, grpcio, 64 in flight"] is True
    assert met["unary calls/s, idalloc / no-op, native, 64 in flight"] is None
    assert met["unary calls/s, native / grpcio, 64 in flight"] is False
    assert met["kB for each idle open stream, grpcio"] is True
    assert met["kB for each idle open stream, native"] is None


@pytest.mark.parametrize(
    ("own_cores", "what"), [(True, "calls/s, 2 workers / twice 1"), (False, "CPU a call, 1 worker")]
)
def test_workers_are_compared_by_calls_with_own_cores_only(own_cores: bool, what: str) -> None:
    """Two workers are compared by calls on their own cores, otherwise by CPU."""
    contenders = {
        "ours grpcio 1 at 64": contender(100, server_cpu=1.0),
        "ours grpcio 2 at 64": contender(160, server_cpu=1.6),
    }
    row = next(each for each in targets.of(contenders, own_cores, [], {}) if each["what"].startswith(what))

    assert row["value"] == pytest.approx(0.8 if own_cores else 1.0)
    assert row["met"] is not own_cores


def test_target_names_sqlite_without_cratedb() -> None:
    """Without CrateDB the target compares with the recipe on SQLite, and names it."""
    contenders = {"calls grpcio": contender(5_000), "recipe sqlite": contender(4_000)}
    [row] = [each for each in targets.of(contenders, False, [], {}) if "one id a call" in each["what"]]

    assert (row["what"].endswith("the recipe on SQLite"), row["value"], row["met"]) == (True, 1.25, True)


def test_table_shows_rates_milliseconds_and_unknowns() -> None:
    """The table shows rates and milliseconds, and a dash for an unknown figure."""
    text = document.answer(QUESTIONS[0], peers_result())

    assert "| idalloc | 64 | 1,234 | 1,234 | 12.3 | 20 | 200 µs |" in text


def test_prefetching_contender_has_no_calls() -> None:
    """A contender that prefetches ids has no calls or latencies in the table."""
    one = peers_result()["contenders"][0] | {"sees_calls": False, "p50": None, "p99": None, "server_cost": 2e-8}

    text = document.answer(QUESTIONS[0], peers_result(contenders=[one]))
    assert "| idalloc | 64 | - | 1,234 | - | - | 20 ns |" in text


def test_failed_contender_is_listed_without_a_row() -> None:
    """A failed or skipped contender is listed with its error, without a row."""
    one = peers_result()["contenders"][0] | {"failures": ["Timeout", "RuntimeError: gone"], "rounds": 0}
    result = peers_result(contenders=[one], skipped=["Redis: redis-server is not installed"])
    text = document.targets(result)

    assert "- Did not run: Redis: redis-server is not installed\n" in text
    assert "- Did not run: idalloc, 64 in flight, turns: 2; RuntimeError: gone" in text
    assert "| idalloc |" not in document.answer(QUESTIONS[0], result)


def test_page_notes_too_few_refills() -> None:
    """The page notes that a run had fewer refills than wanted."""
    one = {"store": "SQLite", "rate": 1_000, "refills": 99, "writes_without": 0, "wanted": 100, "failure": ""}
    one |= {"p99_with": 0.004, "p99_without": 0.002, "ratio": 2.0}

    assert "fewer refills than the 100 wanted" in document.refills(peers_result(refills=[one]))
    assert "fewer refills" not in document.refills(peers_result(refills=[one | {"refills": 100}]))


def test_page_compares_added_documents_with_mysql() -> None:
    """Ratios are medians of the rounds; each has its target and whether it was met."""
    fast, slow = {"adds_per_s": 900.0, "p99": 0.002}, {"adds_per_s": 600.0, "p99": 0.003}
    sessions = {
        "1": {"idalloc": [slow, slow, fast], "MySQL": [fast, fast, fast]},
        "8": {"idalloc": [fast, fast], "MySQL": [slow, slow]},
    }
    adds = {
        "idalloc": [{"documents_per_s": 500.0}, {"documents_per_s": 500.0}],
        "MySQL": [{"documents_per_s": 1000.0}, {"documents_per_s": 1000.0}],
    }
    callers = {"nothing": [{"p50": 0.001, "p99": 0.004, "calls": 900}, {"p50": 0.001, "p99": 0.006, "calls": 900}]}
    result = {"rounds": 2, "seconds": 2.0, "sessions": sessions, "adds": adds, "callers": callers}
    text = added_documents.section(result)

    assert "| 1 session: adds/s | 600 | 900 | 0.67 | >= 1 | **missed** |" in text
    assert "| 1 session: p99, ms | 3 | 2 | 1.5 | <= 1 | **missed** |" in text
    assert "| 8 sessions: adds/s | 900 | 600 | 1.5 | >= 1 | met |" in text
    assert "| 1,000 documents: ms | 2,000 | 1,000 | 2 | <= 1.2 | **missed** |" in text
    assert "| nothing | 1 | 5 | 1,800 |" in text


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write pages and read results in a temporary folder."""
    for name in ("PAGES", "PEERS", "GROWTH", "OPENSEARCH", "FAULTS", "FIRST_SECONDS", "XPROTO"):
        monkeypatch.setattr(document, name, tmp_path / getattr(document, name).name)
    document.PAGES.mkdir()
    return tmp_path / "operations"


def test_page_notes_parts_that_did_not_run(pages: Path) -> None:
    """A page notes a part that did not run, and describes the machine."""
    document.PEERS.write_text(json.dumps(peers_result()))
    document.write()
    page, growth = ((pages / name).read_text() for name in ("benchmarks.md", "benchmarks-growth.md"))

    assert "## The counter document of OpenSearch\n\nThis part did not run yet." in page
    assert "## Cost as work grows\n\nThis part did not run yet." in growth
    assert "on 2026-11-21 12:00 UTC: Some CPU, 2 cores, 8 GB, Linux 6, ext4; Python 3.11.2, grpcio 1.80" in page
    assert "An fsync took 1.5 ms on this disk (median, 4 kB, ext4)" in page
    assert "{" not in page


def test_a_part_without_results_stays_on_the_page(pages: Path) -> None:
    """A run of one command keeps the sections that the others wrote, with their machine."""
    document.PEERS.write_text(json.dumps(peers_result()))
    document.write()
    page = (pages / "benchmarks.md").read_text()
    document.PEERS.unlink()
    document.GROWTH.write_text(json.dumps({"machine": MACHINE | {"cpu": "Other CPU"}, "parts": []}))
    document.write()

    assert page.count("| idalloc | 64 | 1,234 |") == 1
    assert (pages / "benchmarks.md").read_text() == page
    growth = (pages / "benchmarks-growth.md").read_text()
    assert "`make bench-growth` on 2026-11-21 12:00 UTC: Other CPU" in growth
    document.GROWTH.unlink()
    document.write()
    assert (pages / "benchmarks-growth.md").read_text() == growth


def test_each_question_has_its_table() -> None:
    """A question shows its own contenders, the fastest first, and those whose store hung the
    longest call.
    """
    questions = {each.title: each for each in QUESTIONS}
    shown = peers_result()["contenders"][0]
    bulk = shown | {"key": "etcd 1000 at 1", "name": "etcd", "in_flight": 1, "rate": 5.0, "ids_rate": 5_000.0}
    slow = shown | {"key": "opensearch 1", "name": "OpenSearch", "rate": 900.0, "ids_rate": 321.0}
    hung = {"name": "Redis INCRBY", "in_flight": 1, "longest": 3.01, "failure": ""}
    result = peers_result(contenders=[slow, bulk, shown], hangs=[hung, hung | {"name": "gone", "longest": None}])

    one = document.answer(questions["One id a call"], result)
    assert one.index("| idalloc | 64 | 1,234 | 1,234 |") < one.index("| OpenSearch | 64 | 900 | 321 |")
    assert "etcd" not in one
    assert "| etcd | 1 | 5 | 5,000 |" in document.answer(questions["Ids in bulk"], result)
    stuck = document.answer(questions["When the store hangs"], result)
    assert "| Redis INCRBY | 1 | 3,010 |" in stuck
    assert "gone" not in stuck


def test_the_keys_of_the_questions_are_contenders() -> None:
    """Each key of a question is one that `make bench-peers` gives a contender."""
    source = (ROOT / "bench/peers.py").read_text()
    first = {key.partition(" ")[0] for question in QUESTIONS for key in question.keys or ()}
    assert sorted(each for each in first if f'"{each}' not in source) == []


@pytest.mark.parametrize(("value", "shown_ratio"), [(10.34, "10"), (0.0936, "0.094"), (None, "-")])
def test_the_counter_document_shows_refused_calls(value: float | None, shown_ratio: str) -> None:
    """The comparison has each contender's refused share, and a ratio of calls with two digits."""
    shown = peers_result()["contenders"][0]
    contenders = [shown | {"name": name, "refused": share} for name, share in (("recipe", 0.412), ("ours", None))]
    result = {"rounds": 5, "seconds": 2.0, "contenders": contenders, "name": "ours / recipe"}
    text = document.counter_document(result | {"ratio": value})
    assert "| recipe | 64 | 1,234 | 1,234 | 12.3 | 20 | 41.2% |" in text
    assert "| 20 | - |" in text
    assert f"ours / recipe: {shown_ratio} times the calls that got an id." in text


def test_the_refused_share_counts_calls_without_ids() -> None:
    """A call without an id was refused, whatever a call's number of ids."""
    turn = Turn(100, 6_000, 1.0, None, None, 1.0)
    assert refused(Contender("bulk", lambda _: turn, 64, "threads", turns={1: turn}), 100) == pytest.approx(0.4)
    assert refused(Contender("none", lambda _: turn, 64, "threads"), 100) is None


def test_report_with_failed_calls_is_an_error() -> None:
    """A ghz report with a failed call is an error, not a figure."""
    latencies = '[{"percentage": 50, "latency": 2000000}, {"percentage": 99, "latency": 5000000}]'
    report = '{"statusCodeDistribution": {"OK": 10%s}, "latencyDistribution": %s, "count": 10, "total": 2000000000}'

    assert read_ghz(report % ("", latencies), 0.5) == Turn(10, 10, 2.0, 0.002, 0.005, 0.5)
    with pytest.raises(RuntimeError, match="Unavailable"):
        read_ghz(report % (', "Unavailable": 1', latencies), 0.5)
