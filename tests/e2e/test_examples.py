"""The programs of examples/python: what they print, and one line where something is away."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_crate import Crate
from tests.support.paths import ROOT
from tests.support.processes import environment, running

EXAMPLES = ROOT / "examples" / "python"
NOBODY = "127.0.0.1:1"


def run(example: str, *arguments: str, server: str = NOBODY, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        env=environment(server=server) | variables,
        capture_output=True,
        text=True,
        timeout=50,
    )


def failure(example: str, **variables: str) -> str:
    done = run(example, "3", **variables)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def test_models_get_their_ids(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        done = run("sqlalchemy_models.py", "3", server=server.address, DATABASE=f"sqlite:///{tmp_path}/shop.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one row, id 1\n3 rows more\n", "")


def test_models_without_a_server(tmp_path: Path) -> None:
    assert f"no answer from {NOBODY}" in failure("sqlalchemy_models.py", DATABASE=f"sqlite:///{tmp_path}/shop.db")


def test_models_without_a_cratedb() -> None:
    assert "Connection refused" in failure("sqlalchemy_models.py", DATABASE=f"crate://{NOBODY}")


def test_rows_without_a_server(tmp_path: Path) -> None:
    crate = Crate(tmp_path / "crate.db")
    try:
        line = failure("insert_rows.py", CRATEDB=f"http://127.0.0.1:{crate.port}")
    finally:
        crate.kill()
    assert line.startswith(f"idalloc: no answer from {NOBODY}")


def test_rows_without_a_cratedb() -> None:
    line = failure("insert_rows.py", CRATEDB=f"http://{NOBODY}")
    assert line.startswith("CrateDB: ")
    assert "Connection refused" in line


@pytest.mark.parametrize("example", ["insert_rows.py", "sqlalchemy_models.py"])
@pytest.mark.parametrize("argument", ["many", "0", "-3"])
def test_a_wrong_number_of_rows(example: str, argument: str) -> None:
    done = run(example, argument)
    assert (done.returncode, done.stdout) == (2, "")
    usage, error = done.stderr.splitlines()
    assert usage.startswith(f"usage: {example} ")
    assert error.startswith(f"{example}: error: ")
    assert "ROWS" in error
