"""Virtual environments for programs whose packages do not fit ours: one each, made where it is needed first."""

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# What pip says where there is no network, or no registry in it.
_OFFLINE = ("NewConnectionError", "ConnectTimeout", "name resolution", "Network is unreachable", "ProxyError")


def mysqlx_python() -> Path:
    """Returns a Python that has MySQL's client, whose protobuf does not fit ours."""
    return _programs("mysqlx", "mysqlx-connector-python") / "python"


def uwsgi() -> Path:
    """Returns uWSGI, which is compiled when it is installed; this takes a C compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("uWSGI cannot be compiled: no gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("uWSGI cannot be compiled: no Python.h")
    return _programs("uwsgi", "uWSGI") / "uwsgi"


def _programs(name: str, package: str) -> Path:
    """Returns the folder of an environment's programs; makes it first where it is missing or not what is locked now."""
    folder, locked = ROOT / f".venv-{name}", ROOT / "requirements" / f"{name}.txt"
    programs, installed = folder / "bin", folder / "installed.txt"
    lock_file = ROOT / ".build" / f"{name}.lock"
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of this run need it too
        if not (installed.exists() and installed.read_text() == locked.read_text()):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            _install(programs / "python", locked, package)
            installed.write_text(locked.read_text())
    return programs


def _install(interpreter: Path, locked: Path, package: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--retries", "1", "--require-hashes"]
    answer = subprocess.run(
        [interpreter, "-m", "pip", "install", *options, "--requirement", locked],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        if any(sign in answer.stderr for sign in _OFFLINE):
            pytest.skip(f"{package} cannot be installed: no network")
        pytest.fail(f"{package} cannot be installed: {answer.stderr}")
