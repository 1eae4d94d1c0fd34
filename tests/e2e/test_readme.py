"""README.md and the first page of the site: their commands run as written."""

import re
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


def test_the_readme_fits_on_a_screen() -> None:
    """The README has at most 90 lines, 600 words and 25 links, and no line over 140 characters."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 90
    assert len(text.split()) <= 600
    assert 10 < text.count("](") <= 25
    assert [line for line in text.splitlines() if len(line) > 140] == []


def test_the_readme_names_both_first_commands() -> None:
    """The first block starts a server; the README also names the command that runs all tests."""
    text = (ROOT / "README.md").read_text()
    assert blocks(text)[0].text.startswith("make run ")
    assert "`make test`" in text


def test_every_link_of_the_readme_exists() -> None:
    """Each relative link of README.md names a file or folder of the repository."""
    text = (ROOT / "README.md").read_text()
    links = [part.partition(")")[0].partition("#")[0] for part in text.split("](")[1:]]
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    ("row", "measured", "figure"),
    [
        ("idalloc grpcio, 1 worker, SQLite | 64", "6,555", "answers 6,600 calls a second"),
        ("Redis INCRBY | 64", "101,488", "Redis answers 101,000"),
    ],
)
def test_the_figures_are_those_of_the_benchmarks(row: str, measured: str, figure: str) -> None:
    """The README rounds figures of benchmarks.md, with the date of their run."""
    page = (ROOT / "docs/operations/benchmarks.md").read_text()
    readme = (ROOT / "README.md").read_text()
    found = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    assert found
    assert all(f" {measured} |" in line for line in found)
    assert figure in readme
    [day] = re.findall(r"^`make bench-peers` on (\S+) .* (\d+ cores)", page, re.MULTILINE)
    assert f"[{day[1].replace(' ', ' shared ')}, {day[0]}]" in readme
