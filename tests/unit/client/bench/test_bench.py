"""`idalloc bench` against a fake server: what it calls, counts, finds and prints."""

import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from idalloc import cli
from idalloc._issued_log.format import CONTENT, ROW
from idalloc.bench._chart import _rate
from idalloc.v1 import id_allocator_pb2 as pb
from tests.support.fake_server import FakeServer, serving

pytestmark = pytest.mark.test_long

# A short run in which all calls count.
FEW = ("--total", "40", "--concurrency", "8", "--warm-up", "0s")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with serving() as server:
        monkeypatch.setenv("IDALLOC_SERVER", server.target)
        monkeypatch.delenv("IDALLOC_TIMEOUT", raising=False)
        yield server


class BenchCommand:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str, code: int = 0) -> str:
        """Run the bench, and return its output."""
        actual = cli.main(["bench", *args])
        out, err = self._capsys.readouterr()
        assert (actual, err) == (code, ""), out
        return out

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code))

    def error_line(self, code: int, *args: str) -> str:
        """Run a bench that prints nothing but one line on standard error, and return that line."""
        assert cli.main(["bench", *args]) == code
        out, err = self._capsys.readouterr()
        assert out == ""
        [line] = err.splitlines()
        return line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> BenchCommand:
    return BenchCommand(capsys)


def change_ranges(server: FakeServer, change: Callable[[int, pb.IdRange], pb.IdRange]) -> None:
    """Replace each range that the server returns by `change(number, range)`."""
    take, numbers = server._take, count()

    def changed(*args: Any) -> pb.IdRange:
        return change(next(numbers), take(*args))

    server._take = changed  # type: ignore[method-assign,assignment]


def overlap(number: int, ids: pb.IdRange) -> pb.IdRange:
    """Make reply 30 begin with the last id of the one before."""
    if number == 30:
        ids.first_id -= 1
        ids.last_id -= 1
    return ids


def backwards(number: int, ids: pb.IdRange) -> pb.IdRange:
    """Return unique ids that fall from one reply to the next."""
    first = 10_000_000 - 1_000 * number
    return pb.IdRange(first_id=first, last_id=first + ids.id_count - 1, step=1, id_count=ids.id_count)


SCENARIOS = {
    "unary": (["unary", "--id-count", "5"], {"AllocateRange"}),
    "stream": (["stream", "--total-ids", "25", "--chunk", "10"], {"StreamRanges"}),
    "docids": (["docids", "--id-count", "5"], {"GenerateDocId"}),
    "docids, streamed": (["docids", "--total-ids", "25", "--chunk", "10"], {"StreamDocIds"}),
    "mixed": (["mixed", "--total-ids", "25"], {"AllocateRange", "StreamRanges", "GenerateDocId", "StreamDocIds"}),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_scenario_calls_its_rpcs_and_verifies(server: FakeServer, run: BenchCommand, name: str) -> None:
    """Each scenario calls its RPCs, counts every call and id, and finds nothing wrong."""
    args, rpcs = SCENARIOS[name]
    report = run.json(*args, *FEW, "--verify", "--sequence", "orders")
    assert set(server.requests) == {rpc["rpc"] for rpc in report["rpcs"]} == rpcs
    assert sum(map(len, server.requests.values())) == report["count"] == 40
    assert report["ids"] == report["verified"]["ids"] == sum(server._next.values()) - len(server._next)
    assert report["verified"] | {"duplicates": 0, "outOfOrder": 0, "malformed": 0, "findings": []} == report["verified"]
    assert {getattr(r, "sequence", "orders") for requests in server.requests.values() for r in requests} == {"orders"}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "mixed"])
def test_overlapping_ranges_are_found(server: FakeServer, run: BenchCommand, name: str) -> None:
    """P1: --verify finds one id that two replies have."""
    args, _ = SCENARIOS[name]
    if "--chunk" in args:
        args = [*args, "--total-ids", "10"]  # within one stream it would be a malformed message
    change_ranges(server, overlap)
    report = run.json(*args, *FEW, "--verify", code=1)
    assert report["statusCodeDistribution"] == {"OK": 40}
    assert report["verified"]["duplicates"] == 1
    assert "issued twice" in report["verified"]["findings"][0]
    assert run.json(*args, *FEW)["verified"] is None  # nothing is checked without --verify


def test_text_report_names_duplicates(server: FakeServer, run: BenchCommand) -> None:
    """P1: the text report names the duplicate ids and their range."""
    ids = pb.IdRange(first_id=7, last_id=9, step=1, id_count=3)
    change_ranges(server, lambda number, _: ids)
    report = run("--id-count", "3", "--total", "2", "--warm-up", "0s", "--verify", code=1)
    assert "WRONG: of 3 ids, 3 were issued twice" in report
    assert "bench: 7 was issued twice: 7…9 in " in report


@pytest.mark.parametrize("name", ["unary", "docids"])
def test_ids_out_of_order_are_found(server: FakeServer, run: BenchCommand, name: str) -> None:
    """--verify counts replies whose ids are out of order."""
    change_ranges(server, backwards)
    args, _ = SCENARIOS[name]
    report = run.json(*args, "--total", "4", "--concurrency", "1", "--warm-up", "0s", "--verify", code=1)
    assert report["verified"]["duplicates"] == 0
    assert report["verified"]["outOfOrder"] == 3


@pytest.mark.parametrize("name", ["stream", "docids, streamed"])
def test_chunk_out_of_order_is_malformed(server: FakeServer, run: BenchCommand, tmp_path: Path, name: str) -> None:
    """A message whose ids do not follow those before it ends its stream, and is not logged."""
    change_ranges(server, backwards)
    args, _ = SCENARIOS[name]
    log = tmp_path / "issued.jsonl"
    once = ("--total", "4", "--concurrency", "1", "--warm-up", "0s")
    report = run.json(*args, *once, "--verify", "--log", str(log), code=1)
    [[failure, count]] = report["errorDistribution"].items()
    assert "PROTOCOL_ERROR" in failure
    assert "the last one of the previous message" in failure
    assert count == report["verified"]["malformed"] == 4
    assert report["verified"]["outOfOrder"] == 3  # the first messages
    assert report["ids"] == report["verified"]["ids"] == 40
    assert len(log.read_text().splitlines()) == 1 + 4


def test_rising_sequence_is_checked_over_all_nodes(server: FakeServer, run: BenchCommand) -> None:
    """The nodes of a rising sequence have one order; those of another sequence have one each."""
    change_ranges(server, backwards)
    nodes = count(7 << 32)
    server._node_id = lambda: next(nodes)  # type: ignore[method-assign]
    args = ("--total", "4", "--concurrency", "1", "--warm-up", "0s", "--verify")
    assert run.json(*args)["verified"]["outOfOrder"] == 0
    server.also = {"ordering": pb.ORDERING_RISING}
    assert run.json(*args, "--sequence", "rising", code=1)["verified"]["outOfOrder"] == 3


def test_failed_calls_are_counted_and_not_retried(server: FakeServer, run: BenchCommand) -> None:
    """Each failed call is counted once, by status and reason."""
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=3)
    server.fail_next("AllocateRange", "SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE)
    report = run.json(*FEW, code=1)
    assert report["count"] == len(server.requests["AllocateRange"]) == 40
    assert report["statusCodeDistribution"] == {"OK": 36, "Unavailable": 3, "OutOfRange": 1}
    errors = report["errorDistribution"]
    assert sum(errors.values()) == 4
    assert errors["rpc error: code = Unavailable desc = STORE_UNAVAILABLE: STORE_UNAVAILABLE it is"] == 3


def test_bench_without_success_exits_with_1(server: FakeServer, run: BenchCommand) -> None:
    """If all calls fail, the report says so and has no latencies."""
    server.limit = 0
    text = run(*FEW, "--verify", code=1)
    assert "40 of AllocateRange: INVALID_ARGUMENT INVALID_REQUEST" in text
    report = run.json("stream", *FEW, code=1)
    assert report["statusCodeDistribution"] == {"InvalidArgument": 40}
    assert (report["latencyDistribution"], report["histogram"], report["percentiles"]) == ([], [], {})


def test_incomplete_stream_is_a_failed_call(server: FakeServer, run: BenchCommand) -> None:
    """A stream with too few ids is a failed call."""
    server._chunks = lambda *_: iter([10])  # type: ignore[method-assign]
    report = run.json("stream", "--total-ids", "25", "--chunk", "10", "--total", "2", "--warm-up", "0s", code=1)
    assert report["errorDistribution"] == {"rpc error: code = Unknown desc = INCOMPLETE: 15 ids were missing": 2}


@pytest.mark.parametrize("scenario", ["unary", "stream", "docids"])
def test_invalid_reply_is_a_failed_call(server: FakeServer, run: BenchCommand, scenario: str) -> None:
    """An invalid reply is a failed call and a finding; its ids are not counted."""
    server._take = lambda *_: pb.IdRange()  # type: ignore[method-assign]
    server._doc_ids = lambda *_: {"runs": [pb.DocIdRun(first_doc_id="none", id_count=1)]}  # type: ignore[method-assign]
    report = run.json(scenario, *FEW, "--verify", code=1)
    [[failure, count]] = report["errorDistribution"].items()
    assert re.match("rpc error: code = Internal desc = PROTOCOL_ERROR: .*(range.id_count is 0|first_doc_id)", failure)
    assert count == report["verified"]["malformed"] == 40
    assert report["ids"] == 0


def test_hanging_call_ends_with_its_timeout(server: FakeServer, run: BenchCommand) -> None:
    """A call that hangs fails with DEADLINE_EXCEEDED after --timeout."""
    server.hold.clear()
    report = run.json("--total", "2", "--warm-up", "0s", "--timeout", "500ms", code=1)
    assert report["statusCodeDistribution"] == {"DeadlineExceeded": 2}


def test_callers_pause_after_unavailable(server: FakeServer, run: BenchCommand) -> None:
    """A caller pauses after UNAVAILABLE, since such calls fail at once."""
    server.fail_next("AllocateRange", "SERVER_DRAINING", grpc.StatusCode.UNAVAILABLE, times=100_000)
    args = ("--concurrency", "2", "--duration", "500ms", "--warm-up", "0s")
    assert 2 <= run.json(*args, code=1)["count"] <= 40  # without a pause, hundreds


def test_bench_runs_without_uvloop(server: FakeServer, run: BenchCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without uvloop, the bench runs on asyncio's event loop."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run.json(*FEW)["statusCodeDistribution"] == {"OK": 40}


def test_warm_up_is_verified_but_not_counted(server: FakeServer, run: BenchCommand) -> None:
    """Calls of the warm-up are verified, not counted."""
    calls = 0
    for warm_up in ("300ms", "3s", "30s"):  # on a busy machine a short one may end before its first reply
        server.requests.clear()
        report = run.json("--total", "40", "--concurrency", "4", "--warm-up", warm_up, "--verify")
        calls = len(server.requests["AllocateRange"])
        assert report["count"] == report["ids"] == 40
        assert report["verified"]["ids"] == calls
        if calls > 40:
            break
    assert calls > 40


def test_bench_cuts_streams_at_the_end_of_duration(server: FakeServer, run: BenchCommand) -> None:
    """The bench ends with --duration; it cuts open streams and counts their messages."""
    args = ("stream", "--total-ids", "1000000000", "--chunk", "10", "--duration", "500ms", "--warm-up", "0s")
    report = run.json(*args, "--concurrency", "3", "--verify")
    [rpc] = report["rpcs"]
    assert (rpc["cutStreams"], rpc["count"]) == (3, 0)
    assert rpc["messages"] * 10 == rpc["ids"] == report["verified"]["ids"] > 0
    assert 0.5e9 <= report["total"] < 10e9


def test_callers_share_the_given_connections(server: FakeServer, run: BenchCommand) -> None:
    """The callers use exactly as many connections as --connections."""
    peers = set()
    arrived = server._receive

    def record_peer(method: str, request: Any, context: grpc.ServicerContext) -> None:
        peers.add(context.peer())
        arrived(method, request, context)

    server._receive = record_peer  # type: ignore[method-assign]
    assert run.json(*FEW, "--connections", "3")["options"]["connections"] == 3
    assert len(peers) == 3


@pytest.mark.parametrize("name", SCENARIOS)
def test_log_has_every_received_id(server: FakeServer, run: BenchCommand, tmp_path: Path, name: str) -> None:
    """--log records every id that the server issued with its times, the warm-up's included."""
    args, rpcs = SCENARIOS[name]
    log = tmp_path / "issued.jsonl"
    began = time.time_ns()
    report = run.json(*args, "--total", "40", "--concurrency", "4", "--warm-up", "100ms", "--log", str(log), "--verify")
    ended = time.time_ns()
    header, *records = map(json.loads, log.read_text().splitlines())
    assert header["idalloc_log"] == 2
    logged = Counter(
        "doc_id" if "doc_id" in record else record["sequence"] for record in records for _ in range(record["count"])
    )
    issued = {name: next_id - 1 for name, next_id in server._next.items()}
    assert sum(logged.values()) == sum(issued.values()) == report["verified"]["ids"] >= report["ids"]
    assert ("doc_id" in logged) == any("DocId" in rpc for rpc in rpcs)
    ranges = sorted((record["first"], record["count"]) for record in records if "first" in record)
    assert all(first + count <= next_first for (first, count), (next_first, _) in pairwise(ranges))
    # A tolerance of a second: the system clock may be adjusted meanwhile.
    assert all(began - 1e9 < record["asked"] <= record["answered"] < ended + 1e9 for record in records)
    assert {record["node"] for record in records if "first" in record} <= {7 << 32}


def test_binary_log_is_written_and_not_overwritten(server: FakeServer, run: BenchCommand, tmp_path: Path) -> None:
    """A binary log has a row for each call; an existing file is an error before any call."""
    log = tmp_path / "issued.log"
    run(*FEW, "--log", str(log))
    data = log.read_bytes()
    assert data.startswith(b"IDALLOC")
    # The header, two rows for the sequence's name, and a row for each call.
    header = -(-(12 + int.from_bytes(data[8:12], "little")) // CONTENT.size)
    assert len(data) == (header + 2 + 40) * ROW.size
    calls = len(server.requests["AllocateRange"])
    assert "the file exists and is never overwritten" in run.error_line(2, *FEW, "--log", str(log))
    assert (log.read_bytes(), len(server.requests["AllocateRange"])) == (data, calls)
    assert "cannot be written" in run.error_line(2, *FEW, "--log", "/nowhere/issued.log")


def test_verify_checks_the_log_and_leaves_no_other_file(
    run: BenchCommand, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: --verify checks the file of --log, else a temporary file, which is then removed."""
    temporary, log = tmp_path / "temporary", tmp_path / "issued.log"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    change_ranges(server, lambda number, _: pb.IdRange(first_id=7, last_id=9, step=1, id_count=3))
    twice = ("--id-count", "3", "--total", "2", "--warm-up", "0s", "--verify")
    [message, *_] = run.json(*twice, code=1)["verified"]["findings"]
    assert f" in {temporary}/idalloc-bench-" in message
    [message, *_] = run.json(*twice, "--log", str(log), code=1)["verified"]["findings"]
    assert f" in {log} " in message
    assert cli.main(["verify", str(log)]) == 1
    assert set(tmp_path.rglob("*")) == {temporary, log}


def test_log_write_error_ends_the_bench(server: FakeServer, tmp_path: Path) -> None:
    """A full disk ends the bench with one line and exit code 1."""
    script = """if True:
        import resource, signal, sys
        from idalloc.cli import main
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))  # simulates a full disk
        sys.exit(main(sys.argv[1:]))
    """
    args = ["bench", "--total", "1000", "--warm-up", "0s", "--log", str(tmp_path / "issued.log")]
    environ = os.environ | {"IDALLOC_SERVER": server.target}
    done = subprocess.run(
        [sys.executable, "-c", script, *args], env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert "File too large" in line
    assert 3_900 < (tmp_path / "issued.log").stat().st_size <= 4_000


def test_json_report_has_the_shape_of_ghz(server: FakeServer, run: BenchCommand) -> None:
    """The JSON report has ghz's fields and units, and its numbers agree."""
    report = run.json(*FEW, "--id-count", "10")
    assert report["rps"] == pytest.approx(40 / report["total"] * 1e9)
    assert report["idsPerSecond"] == pytest.approx(400 / report["total"] * 1e9)
    assert report["errorDistribution"] == {}
    assert [entry["percentage"] for entry in report["latencyDistribution"]] == [10, 25, 50, 75, 90, 95, 99]
    latencies = [entry["latency"] for entry in report["latencyDistribution"]]
    assert report["fastest"] <= latencies[0] <= latencies[-1] <= report["slowest"] < report["total"]
    assert latencies == sorted(latencies)
    assert report["fastest"] <= report["average"] <= report["slowest"]
    assert list(report["percentiles"]) == ["p50", "p90", "p95", "p99", "p99.9", "max"]
    assert report["percentiles"]["max"] == report["slowest"]
    histogram = report["histogram"]
    assert len(histogram) == 11
    assert sum(entry["count"] for entry in histogram) == 40
    assert sum(entry["frequency"] for entry in histogram) == pytest.approx(1)
    assert histogram[0]["mark"] == pytest.approx(report["fastest"] / 1e9)
    assert histogram[-1]["mark"] == pytest.approx(report["slowest"] / 1e9)
    assert report["clientCpu"] > 0


def test_text_report_is_a_table(server: FakeServer, run: BenchCommand) -> None:
    """The text report has a line for each RPC, latencies, CPU use and the verifier's result."""
    report = run("mixed", *FEW, "--total-ids", "100", "--verify")
    rows = {line.split()[0]: line.split()[1:] for line in report.splitlines()[4:8]}
    assert list(rows) == ["AllocateRange", "GenerateDocId", "StreamRanges", "StreamDocIds"]
    assert sum(int(row[0]) for row in rows.values()) == 40
    assert {row[-1] for row in rows.values()} == {"0"}
    for name in ("p50", "p90", "p95", "p99", "p99.9", "max", "StreamRanges, stream", "StreamRanges, message"):
        assert name in report
    assert re.search(r"this process used \d+% of one core", report)
    assert "none issued twice, none out of order" in report


def test_report_and_chart_files_are_written(server: FakeServer, run: BenchCommand, tmp_path: Path) -> None:
    """--report writes the JSON report, and --chart a self-contained page with the same numbers."""
    output, chart = tmp_path / "report.json", tmp_path / "chart.html"
    text = run("mixed", *FEW, "--total-ids", "100", "--report", str(output), "--chart", str(chart))
    report, page = json.loads(output.read_text()), chart.read_text()
    root = ET.fromstring(page)
    assert not re.search(r"(src|href)=|url\(|https?:|<script|@import", page)
    calls, ids, latencies = root.iter("svg")
    assert text in "".join(root.itertext())
    for figure in (calls, ids):
        [line] = figure.iter("polyline")
        assert len(line.attrib["points"].split()) == len(list(figure.iter("circle"))) >= 1
    points = [title.text for title in latencies.iter("title")]
    for rpc in report["rpcs"]:
        assert f"{rpc['rpc']}: {number_in_ms(rpc['percentiles']['p99'])}" in points
        if "messagePercentiles" in rpc:
            assert f"{rpc['rpc']}, message: {number_in_ms(rpc['messagePercentiles']['max'])}" in points


@pytest.mark.parametrize("tenths", [1, 7, 200, 1_234])
def test_integral_of_the_rate_is_the_count(tenths: int) -> None:
    """The area under a chart's rate equals the count."""
    counts = {tenth: tenth + 1 for tenth in range(tenths)}
    points = [(0.0, 0.0), *_rate(counts, seconds=tenths / 10 - 0.03)]
    area = sum((end - begin) * rate for (begin, _), (end, rate) in pairwise(points))
    assert area == pytest.approx(sum(counts.values()))
    assert points[-1][0] == pytest.approx(tenths / 10 - 0.03)
    assert len(points) <= 201


def number_in_ms(nanoseconds: int) -> str:
    value = nanoseconds / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["fast"], "must be one of unary, stream, docids, mixed, not 'fast'"),
        (["--duration", "10"], "--duration"),
        (["--duration", "1s", "--total", "5"], "--duration and --total are mutually exclusive"),
        (["--concurrency", "0"], "--concurrency"),
        (["--connections", "0"], "--connections"),
        (["--id-count", "0"], "--id-count"),
        (["--report", "/nowhere/report.json"], "cannot be written"),
        (["--chart", "/nowhere/chart.html"], "cannot be written"),
    ],
)
def test_usage_error_is_one_line_and_exits_with_2(
    server: FakeServer, run: BenchCommand, args: list[str], named: str
) -> None:
    """A usage error is one line that names the option; nothing is sent."""
    assert named in run.error_line(2, *args)
    assert not server.requests


def test_unreachable_server_is_one_line(run: BenchCommand) -> None:
    """An unreachable server is one line with exit code 1."""
    line = run.error_line(1, "--server", "127.0.0.1:1", "--timeout", "1s")
    assert line.startswith("SERVER_UNREACHABLE: no answer from 127.0.0.1:1")


def test_missing_package_names_the_extra_to_install() -> None:
    """Without the package of its extra, the error names what to install."""
    script = "import sys; sys.modules['numpy'] = None; from idalloc.cli import main; sys.exit(main(['bench']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line == "idalloc bench needs the package numpy: pip install 'idalloc[bench]'"
