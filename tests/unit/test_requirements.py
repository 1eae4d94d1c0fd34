"""The locked packages fit together, and `make` installs those that a target needs."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions, metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT


def locked(name: str) -> set[str]:
    """Return the packages of a lock with their versions."""
    return set(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements" / name).read_text(), re.MULTILINE))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with what `make` reads of a fresh clone."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "protos").mkdir()
    (tmp_path / "protos" / "empty.proto").touch()
    return tmp_path


def installs(clone: Path, target: str, **variables: str) -> list[str]:
    """Return the locks that a target would install by the pip of its own lock, in order."""
    environ = os.environ | {"MAKEFLAGS": "", "PYTHON": sys.executable} | variables
    command = ["make", "--dry-run", "--no-print-directory", target]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    return re.findall(r"/pip .* --requirement requirements/(\S+)", done.stdout)


def test_tests_add_to_what_a_server_needs() -> None:
    """`make test` keeps the packages of `make run`: both locks have the same versions of them."""
    server, dev = locked("server.txt"), locked("dev.txt")
    assert server
    assert server - dev == set()


def test_make_run_installs_what_a_server_needs(clone: Path) -> None:
    """`make run` installs no packages of tests, and the targets for tests add theirs once."""
    assert installs(clone, "run") == ["server.txt"]
    assert installs(clone, "type") == ["server.txt", "dev.txt"]
    (clone / ".venv").mkdir()
    for stamp in ("runtime", "server"):
        (clone / ".venv" / stamp).touch()
    assert installs(clone, "run") == []
    assert installs(clone, "type") == ["dev.txt"]
    for stamp in ("locked", "ready"):
        (clone / ".venv" / stamp).touch()
    assert installs(clone, "type") == []


def test_looking_for_python_prints_nothing(clone: Path) -> None:
    """`make` finds a Python without a word about those that are absent."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS")}
    command = ["make", "--dry-run", ".venv/runtime"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^python3\S* -m venv --clear --without-pip .venv ", done.stdout, re.MULTILINE)


def copyleft(package: str) -> bool:
    """Return whether the metadata of an installed package names a licence with copyleft."""
    found = metadata(package)
    fields = [each for name in ("License-Expression", "License", "Classifier") for each in found.get_all(name, [])]
    return any(re.search(r"GPL|MPL|Mozilla|GNU|EUPL|CDDL|Eclipse", field) for field in fields)


def test_the_docs_name_each_licence_with_copyleft() -> None:
    """deployment.md names the packages of a server that have no permissive licence."""
    installed = {canonicalize_name(each.metadata["Name"]) for each in distributions()}
    names = {each.partition("==")[0] for each in locked("server.txt")} & installed
    assert len(names) > 40
    licences = (ROOT / "docs/guides/deployment.md").read_text().partition("## Licences")[2]
    found = {name for name in names if copyleft(name)}
    assert found == {"pathspec", "python-stdnum"}
    assert [name for name in found if name not in licences] == []
