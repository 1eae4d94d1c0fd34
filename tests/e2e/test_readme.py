"""README.md and the first page of the site: their commands run as written."""

import subprocess
from pathlib import Path

import pytest

from tests.support.documents import blocks, run_page
from tests.support.paths import ROOT

# What a clone has that the commands read.
CLONE = ["Makefile", "pyproject.toml", "requirements", "protos", ".venv"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_every_command_runs(page: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command of the page succeeds, and prints what the page shows."""
    current = subprocess.run(["make", "--question", ".venv/server"], cwd=ROOT, capture_output=True)
    if current.returncode:
        pytest.skip("`make run` would install packages first: run `make .venv/ready`")
    run_page(page, tmp_path, subtests, files=CLONE)


def test_the_readme_is_short() -> None:
    """The README has at most 170 lines, with both first commands among the first ten."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 170
    assert [line.split()[:2] for line in lines[:10] if line.startswith("make")] == [["make", "run"], ["make", "test"]]


def test_every_link_of_the_readme_exists() -> None:
    """Each relative link of README.md names a file or folder of the repository."""
    text = (ROOT / "README.md").read_text()
    for block in blocks(text):
        text = text.replace(block.text, "")
    links = [part.partition(")")[0].partition("#")[0] for part in text.split("](")[1:]]
    assert len(links) > 30
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    ("row", "measured", "figure"),
    [
        ("PostgreSQL nextval, cache 1 | 16", "60,845", "61,000 a second over 16 connections"),
        ("Redis INCRBY | 64", "101,488", "101,000 a second over 64"),
        ("CrateDB's recipe on CrateDB, 16 writers | 16", "682", "682 ids a second with 16 writers"),
        ("idalloc grpcio on SQLite: `ids()`, one by one | 1", "11,083,930", "an addition: 11.1 million a second"),
        ("ids/s at 16 writers, idalloc / CrateDB's recipe", "21,271", "21,271 times as many"),
        ("ids/s, `ids()` in one thread / Redis INCRBY one by one, pipelined 16", "113", "113 times Redis's pipelined"),
        ("idalloc grpcio, 1 worker, SQLite | 64", "6,555", "one process answers 6,600 calls a second"),
        ("idalloc native, 1 worker, SQLite | 64", "33,359", "and 33,400 with the"),
    ],
)
def test_the_figures_are_those_of_the_benchmarks(row: str, measured: str, figure: str) -> None:
    """The README rounds figures of benchmarks.md; update it after `make bench-peers`."""
    [page] = (ROOT / "docs").rglob("benchmarks.md")
    found = [line for line in page.read_text().splitlines() if line.startswith(f"| {row} |")]
    assert found
    assert all(f" {measured} |" in line for line in found)
    assert figure in (ROOT / "README.md").read_text()
