"""What the archives of a release contain, and which version they have."""

import json
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NODE = ROOT / "client/node"


def test_the_sdist_has_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    """The sdist has the two packages and the files of the project: no other client, no test."""
    hatchling = Path(sys.executable).with_name("hatchling")
    command = [str(hatchling), "build", "--target", "sdist", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [archive] = tmp_path.iterdir()
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    packages = ("client/idalloc/", "server/idalloc_server/")
    files = {name for name in names if not name.startswith(packages)}
    assert files == {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    assert {"client/idalloc/py.typed", "server/idalloc_server/app.py"} <= names


@pytest.mark.parametrize("file", ["package.json", "package-lock.json"])
def test_the_npm_package_has_the_version_of_the_project(file: str) -> None:
    """The version is written in pyproject.toml; package.json and its lock have the same one."""
    manifest = json.loads((NODE / file).read_text())
    assert manifest["version"] == PROJECT["version"]
    assert manifest.get("packages", {"": manifest})[""]["version"] == PROJECT["version"]
