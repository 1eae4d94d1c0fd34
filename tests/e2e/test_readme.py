"""README.md: its commands run as they stand there."""

import subprocess
from pathlib import Path

import pytest

from tests.support.documents import blocks, run_page
from tests.support.paths import ROOT

NOT_RUN = {
    "make test": "it is this test",
    "pip install": "needs a package index",
    "docker run": "needs a container engine; tests/e2e/test_image.py builds the image",
}
# What a clone has that the commands read.
CLONE = ["Makefile", "pyproject.toml", "requirements", "protos", ".venv"]


@pytest.mark.timeout(300)
def test_every_command_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command of the README succeeds, and prints what the README shows."""
    current = subprocess.run(["make", "--question", ".venv/server"], cwd=ROOT, capture_output=True)
    if current.returncode:
        pytest.skip("`make run` would install packages first: run `make .venv/ready`")
    run_page("README.md", tmp_path, subtests, not_run=NOT_RUN, files=CLONE)


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
