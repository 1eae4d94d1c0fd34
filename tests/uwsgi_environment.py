"""uWSGI, in a virtual environment of its own: it is compiled when it is installed, which takes a C compiler."""

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.mysqlx_environment import is_offline

_ROOT = Path(__file__).parents[1]
_FOLDER = _ROOT / ".venv-uwsgi"
_LOCKED = _ROOT / "requirements" / "uwsgi.txt"
_LOCK = _ROOT / ".build" / "uwsgi.lock"


def uwsgi() -> Path:
    """Returns the program; installs it first where it is missing or not what is locked now."""
    if shutil.which("gcc") is None:
        pytest.skip("uWSGI cannot be compiled: no gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("uWSGI cannot be compiled: no Python.h")
    installed = _FOLDER / "installed.txt"
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of this run need it too
        if not (installed.exists() and installed.read_text() == _LOCKED.read_text()):
            subprocess.run([sys.executable, "-m", "venv", "--clear", _FOLDER], check=True)
            _install(_FOLDER / "bin" / "python")
            installed.write_text(_LOCKED.read_text())
    return _FOLDER / "bin" / "uwsgi"


def _install(interpreter: Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--retries", "1", "--require-hashes"]
    answer = subprocess.run(
        [interpreter, "-m", "pip", "install", *options, "--requirement", _LOCKED],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        if is_offline(answer.stderr):
            pytest.skip("uWSGI cannot be installed: no network")
        pytest.fail(f"uWSGI cannot be installed: {answer.stderr}")
