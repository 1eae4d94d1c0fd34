"""A virtual environment of its own for MySQL's client, whose protobuf does not fit ours."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FOLDER = _ROOT / ".venv-mysqlx"
_LOCKED = _ROOT / "requirements" / "mysqlx.txt"
_LOCK = _ROOT / ".build" / "mysqlx.lock"

# What pip says where there is no network, or no registry in it.
_OFFLINE = ("NewConnectionError", "ConnectTimeout", "name resolution", "Network is unreachable", "ProxyError")


def python() -> Path:
    """Returns its interpreter; makes it first where it is missing or not what is locked now."""
    interpreter = _FOLDER / "bin" / "python"
    installed = _FOLDER / "installed.txt"
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of this run need it too
        if not (installed.exists() and installed.read_text() == _LOCKED.read_text()):
            subprocess.run([sys.executable, "-m", "venv", "--clear", _FOLDER], check=True)
            _install(interpreter)
            installed.write_text(_LOCKED.read_text())
    return interpreter


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
            pytest.skip("mysqlx-connector-python cannot be installed: no network")
        pytest.fail(f"mysqlx-connector-python cannot be installed: {answer.stderr}")


def is_offline(errors: str) -> bool:
    """Whether pip failed since there is no network, or no registry in it."""
    return any(sign in errors for sign in _OFFLINE)
