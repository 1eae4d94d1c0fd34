"""What the module of the Go client contains. The consumers use it: test_go.py."""

import json
import zipfile
from pathlib import Path

import pytest

from tests.packages.go_module import MODULE, missing, number, write_proxy


def test_the_module_has_the_sources_alone_and_the_version(tmp_path: Path) -> None:
    """The archive has Go's files, the retry policy and the license; twice the same bytes."""
    if reason := missing():
        pytest.skip(reason)
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
