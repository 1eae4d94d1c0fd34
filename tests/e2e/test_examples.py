"""The programs of examples/python: their output, and their errors in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_crate import Crate
from tests.support.paths import ROOT
from tests.support.processes import environment, running

EXAMPLES = ROOT / "examples" / "python"
UNREACHABLE = "127.0.0.1:1"


def run(example: str, *arguments: str, server: str = UNREACHABLE, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        env=environment(server=server) | variables,
        capture_output=True,
        text=True,
        timeout=50,
    )


def error_line(example: str, **variables: str) -> str:
    done = run(example, "3", **variables)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def test_models_get_ids(tmp_path: Path) -> None:
    """The SQLAlchemy example inserts rows with ids from the server."""
    with running(tmp_path) as server:
        done = run("sqlalchemy_models.py", "3", server=server.address, DATABASE=f"sqlite:///{tmp_path}/shop.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one row, id 1\n3 rows more\n", "")


def test_models_report_an_unreachable_server(tmp_path: Path) -> None:
    """Without a server, the SQLAlchemy example prints one line."""
    assert f"no answer from {UNREACHABLE}" in error_line(
        "sqlalchemy_models.py", DATABASE=f"sqlite:///{tmp_path}/shop.db"
    )


def test_models_report_an_unreachable_cratedb() -> None:
    """Without CrateDB, the SQLAlchemy example prints one line."""
    assert "Connection refused" in error_line("sqlalchemy_models.py", DATABASE=f"crate://{UNREACHABLE}")


def test_rows_report_an_unreachable_server(tmp_path: Path) -> None:
    """Without a server, the example that inserts rows prints one line."""
    crate = Crate(tmp_path / "crate.db")
    try:
        line = error_line("insert_rows.py", CRATEDB=f"http://127.0.0.1:{crate.port}")
    finally:
        crate.kill()
    assert line.startswith(f"idalloc: no answer from {UNREACHABLE}")


def test_rows_report_an_unreachable_cratedb() -> None:
    """Without CrateDB, the example that inserts rows prints one line."""
    line = error_line("insert_rows.py", CRATEDB=f"http://{UNREACHABLE}")
    assert line.startswith("CrateDB: ")
    assert "Connection refused" in line


@pytest.mark.parametrize("example", ["insert_rows.py", "sqlalchemy_models.py"])
@pytest.mark.parametrize("argument", ["many", "0", "-3"])
def test_invalid_row_count_is_a_usage_error(example: str, argument: str) -> None:
    """An invalid number of rows is a usage error with exit code 2."""
    done = run(example, argument)
    assert (done.returncode, done.stdout) == (2, "")
    usage, error = done.stderr.splitlines()
    assert usage.startswith(f"usage: {example} ")
    assert error.startswith(f"{example}: error: ")
    assert "ROWS" in error
