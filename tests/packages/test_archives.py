"""What the archives of a release contain, and which version they have."""

import json
import os
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NODE = ROOT / "client/node"


PACKAGES = [ROOT / each for each in ("client/idalloc", "server/idalloc_server", "server/idalloc_xproto")]


def test_the_wheel_has_all_packages_and_nothing_else(python_dist: list[Path]) -> None:
    """The wheel has all files of the packages, the licence, and the metadata."""
    info = f"idalloc-{PROJECT['version']}.dist-info"
    files = {file.relative_to(folder.parent) for folder in PACKAGES for file in files_in(folder)}
    metadata = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    with zipfile.ZipFile(python_dist[1]) as wheel:
        assert {*wheel.namelist()} == {*map(str, files)} | metadata
        assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert {*map(Path, ("idalloc/py.typed", "idalloc_server/py.typed", "idalloc/v1/service_config.json"))} <= files


def test_the_sdist_has_what_the_wheel_is_built_from(python_dist: list[Path]) -> None:
    """The sdist has the packages and the files of the project: no other client, no test."""
    files = {str(file.relative_to(ROOT)) for folder in PACKAGES for file in files_in(folder)}
    others = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    with tarfile.open(python_dist[0]) as archive:
        assert {each.name.partition("/")[2] for each in archive if each.isfile()} == files | others


def files_in(folder: Path) -> list[Path]:
    """Return the files of a package, without compiled ones."""
    found = [Path(parent, name) for parent, _, names in os.walk(folder, followlinks=True) for name in names]
    return [each for each in found if each.suffix != ".pyc"]


@pytest.mark.parametrize("file", ["package.json", "package-lock.json"])
def test_the_npm_package_has_the_version_of_the_project(file: str) -> None:
    """The version is written in pyproject.toml; package.json and its lock have the same one."""
    manifest = json.loads((NODE / file).read_text())
    assert manifest["version"] == PROJECT["version"]
    assert manifest.get("packages", {"": manifest})[""]["version"] == PROJECT["version"]
