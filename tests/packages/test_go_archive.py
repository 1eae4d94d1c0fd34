"""What the module of the Go client contains. The consumers use it: test_go.py."""

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.packages.go_module import MODULE, missing, number, write_proxy, write_release
from tests.support.paths import ROOT

TAG = f"client/go/v{number()}"


@pytest.fixture(autouse=True)
def tools() -> None:
    if reason := missing():
        pytest.skip(reason)


def test_the_module_has_the_sources_alone_and_the_version(tmp_path: Path) -> None:
    """The archive has Go's files, the retry policy and the license; twice the same bytes."""
    path, version = write_proxy(tmp_path / "first")
    assert version == f"v{number()}"
    files = tmp_path / "first" / path / "@v"
    assert (files / "list").read_text() == f"{version}\n"
    assert json.loads((files / f"{version}.info").read_text())["Version"] == version
    assert (files / f"{version}.mod").read_text() == (MODULE / "go.mod").read_text()
    with zipfile.ZipFile(files / f"{version}.zip") as archive:
        names = {name.removeprefix(f"{path}@{version}/") for name in archive.namelist()}
    others = {name for name in names if not name.endswith(".go")}
    assert others == {"LICENSE", "go.mod", "go.sum", "idallocv1/service_config.json"}
    assert {"client.go", "pool.go", "idallocv1/id_allocator_grpc.pb.go"} <= names

    write_proxy(tmp_path / "second")
    for file in files.iterdir():
        assert file.read_bytes() == (tmp_path / "second" / path / "@v" / file.name).read_bytes(), file.name


class TestTag:
    """The archive of a release's tag, in a small repository with the module and another client."""

    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        folder = tmp_path / "repository"
        shutil.copytree(MODULE, folder / "client/go")
        shutil.copy(ROOT / "LICENSE", folder)
        (folder / "client/node").mkdir()
        (folder / "client/node/package.json").write_text("{}")
        git(folder, "init", "--quiet")
        return folder

    def test_it_has_the_bytes_of_the_clean_tree(self, repository: Path, tmp_path: Path) -> None:
        """The release is the clean tree at the tag, without later commits and untracked files."""
        path, version = write_proxy(tmp_path / "tree", module=repository / "client/go")
        tag(repository)
        with (repository / "client/go/client.go").open("a") as file:
            file.write("// newer\n")
        git(repository, "commit", "--quiet", "--all", "--message=newer")
        (repository / "client/go/untracked.go").write_text("package idalloc\n")
        assert write_release(tmp_path / "tag", repository, TAG) == (path, version)
        assert archive_of(tmp_path / "tag", path, version) == archive_of(tmp_path / "tree", path, version)

    def test_it_has_the_folder_and_a_licence(self, repository: Path, tmp_path: Path) -> None:
        """The release has the tagged folder alone; the licence comes from the root if need be."""
        (repository / "client/go/LICENSE").unlink()
        tag(repository)
        path, version = write_release(tmp_path / "tag", repository, TAG)
        with zipfile.ZipFile(tmp_path / "tag" / path / "@v" / f"{version}.zip") as archive:
            names = {name.removeprefix(f"{path}@{version}/") for name in archive.namelist()}
            licence = archive.read(f"{path}@{version}/LICENSE")
        module = repository / "client/go"
        files = {str(each.relative_to(module)) for each in module.rglob("*") if each.is_file()}
        assert names == files | {"LICENSE"}
        assert licence == (ROOT / "LICENSE").read_bytes()


def git(folder: Path, *command: str) -> None:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True)


def tag(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=a release")
    git(folder, "tag", "--no-sign", TAG)


def archive_of(proxy: Path, path: str, version: str) -> dict[str, bytes]:
    """Return the files of a version in a proxy."""
    return {file.name: file.read_bytes() for file in (proxy / path / "@v").iterdir()}
