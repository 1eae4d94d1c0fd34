"""`idalloc bench` against a real server, and compared with the real ghz."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.test_ghz import ghz  # noqa: F401  # a fixture
from tests.support.paths import ROOT
from tests.support.processes import Server, idalloc, running

pytestmark = pytest.mark.test_long  # it runs for seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("bench"), auto_increment_increment=7, auto_increment_offset=3) as server:
        yield server


def bench(server: Server, *args: str) -> Any:
    done = idalloc(server, "bench", *args, "--warm-up", "200ms", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "args",
    [
        ["unary", "--id-count", "3"],
        ["stream", "--total-ids", "1000", "--chunk", "100"],
        ["docids", "--id-count", "50"],
        ["docids", "--total-ids", "1000", "--chunk", "100"],
        ["mixed", "--total-ids", "1000", "--chunk", "100"],
    ],
    ids=" ".join,
)
def test_ids_are_valid_under_load(server: Server, args: list[str]) -> None:
    """P1: under load, every scenario gets valid, distinct and ordered ids."""
    report = bench(server, *args, "--verify", "--total", "400")
    assert report["statusCodeDistribution"] == {"OK": 400}
    assert report["verified"]["ids"] > report["ids"] > 0
    assert report["verified"]["findings"] == []


@pytest.mark.parametrize(
    "settings", [["--ordering", "rising"], ["--step", "-3", "--start", "1000000", "--min-value", "1"]]
)
def test_custom_sequences_are_verified_under_load(server: Server, settings: list[str]) -> None:
    """P1: rising and descending sequences are verified under load, too."""
    name = settings[0]
    created = idalloc(server, "sequences", "create", f"s{name}", *settings)
    assert created.returncode == 0, created.stderr
    report = bench(server, "--sequence", f"s{name}", "--verify", "--total", "400")
    assert report["verified"]["findings"] == []


def test_bench_ends_with_its_duration(server: Server) -> None:
    """The bench ends with --duration."""
    report = bench(server, "--duration", "1s", "--concurrency", "8")
    assert 1e9 <= report["total"] < 6e9
    assert report["endReason"] == "timeout"


@pytest.mark.ghz
@pytest.mark.timeout(400)
def test_json_report_is_compatible_with_ghz(server: Server, ghz: str) -> None:  # noqa: F811
    """The JSON report has every field of ghz's report, with its types and units."""
    configuration = ROOT / "examples" / "ghz" / "allocate_range_flat.json"
    done = subprocess.run(
        [ghz, f"--config={configuration}", "--total=200", "--concurrency=8", "--format=json", server.address],
        capture_output=True,
        text=True,
        timeout=60,
    )
    ghz_report, report = json.loads(done.stdout), bench(server, "--total", "200", "--concurrency", "8")
    assert set(ghz_report) <= set(report)
    assert {name: type(value) for name, value in ghz_report.items()}.items() <= {
        name: type(value) for name, value in report.items()
    }.items()
    for name in ("latencyDistribution", "histogram"):
        assert [set(entry) for entry in report[name]] == [set(entry) for entry in ghz_report[name]]
    for name in ("call", "host", "insecure", "concurrency", "total"):
        assert report["options"][name] == ghz_report["options"][name]
    assert report["statusCodeDistribution"] == ghz_report["statusCodeDistribution"] == {"OK": 200}
    # Both measured the same server: figures in the same unit are of one magnitude.
    for name in ("total", "average", "fastest", "slowest", "rps"):
        assert 0.02 < report[name] / ghz_report[name] < 50
    assert 0.02 < report["histogram"][-1]["mark"] / ghz_report["histogram"][-1]["mark"] < 50
