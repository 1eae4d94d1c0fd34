"""`idalloc protos`: what other languages need of the contract."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from idalloc.cli import _protos
from idalloc.v1 import id_allocator_pb2, sequences_pb2
from tests.support.command_line import Command
from tests.support.paths import ROOT


def test_protos_writes_the_files_of_the_repository(run: Command, tmp_path: Path) -> None:
    """The .proto files, Google's included, and the retry policy are those of the repository."""
    printed = run("protos", str(tmp_path / "new" / "folder")).splitlines()
    written = {Path(line).relative_to(tmp_path / "new" / "folder"): Path(line) for line in printed}
    kinds = ("*.proto", "service_config.json")
    expected = {file.relative_to(ROOT / "protos"): file for kind in kinds for file in (ROOT / "protos").rglob(kind)}
    google = ROOT / "third_party" / "googleapis"
    expected |= {file.relative_to(google): file for file in google.rglob("*.proto")}
    assert written.keys() == {*expected, Path("idalloc.binpb")}
    assert all(written[name].read_bytes() == file.read_bytes() for name, file in expected.items())


def test_written_protos_compile(run: Command, tmp_path: Path) -> None:
    """A compiler needs nothing but the folder."""
    run("protos", str(tmp_path / "protos"))
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run([buf, "build", tmp_path / "protos"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_descriptor_set_has_all_files_and_json_names(run: Command, tmp_path: Path) -> None:
    """The descriptor set has what each file imports, before it, and the names that JSON uses."""
    run("protos", str(tmp_path))
    found = FileDescriptorSet.FromString((tmp_path / "idalloc.binpb").read_bytes()).file
    names = [file.name for file in found]
    assert {"google/api/field_behavior.proto", "google/protobuf/timestamp.proto"} <= set(names)
    for generated in (id_allocator_pb2, sequences_pb2):
        [file] = [each for each in found if each.name == generated.DESCRIPTOR.name]
        assert {each.name for each in file.service} == set(generated.DESCRIPTOR.services_by_name)
        assert all(names.index(each) < names.index(file.name) for each in file.dependency)
    fields = {field.name: field.json_name for file in found for message in file.message_type for field in message.field}
    assert fields["first_id"] == "firstId"


def test_protos_replaces_older_files(run: Command, tmp_path: Path) -> None:
    """A second run, as after an update, replaces the files of the first; they are writable."""
    policy = tmp_path / "idalloc" / "v1" / "service_config.json"
    run("protos", str(tmp_path))
    policy.write_text("old")
    run("protos", str(tmp_path))
    assert "methodConfig" in json.loads(policy.read_text())
    assert policy.stat().st_mode & stat.S_IWUSR


def test_protos_refuses_an_installation_without_them(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in place of the symbolic links, as from a zip, are an error, and nothing is written."""
    source = tmp_path / "idalloc" / "protos"
    source.mkdir(parents=True)
    for name in ("google", "idalloc", "idalloc.binpb"):
        (source / name).write_text("../../../protos/idalloc")
    monkeypatch.setattr(_protos, "files", lambda package: tmp_path / package)
    line = run.error_line(1, "protos", str(tmp_path / "new"))
    assert "install a wheel" in line
    assert not (tmp_path / "new").exists()


def test_protos_names_a_folder_that_it_cannot_write(run: Command, tmp_path: Path) -> None:
    """An error is one line with the path."""
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in run.error_line(1, "protos", str(tmp_path / "file"))
