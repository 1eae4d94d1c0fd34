"""The protos can be compiled elsewhere: Go packages share a path, and Google's imported file is included."""

import json
import re
from importlib.metadata import version
from importlib.resources import files

from tests.support.paths import ROOT

GOOGLEAPIS = ROOT / "third_party" / "googleapis"


def test_googles_proto_equals_the_installed_package() -> None:
    """The copy of Google's proto equals the installed package's, and its README names the version."""
    file = "field_behavior.proto"
    assert (GOOGLEAPIS / "google/api" / file).read_bytes() == files("google.api").joinpath(file).read_bytes()
    assert f"googleapis-common-protos {version('googleapis-common-protos')} " in (GOOGLEAPIS / "README.md").read_text()


def test_only_imported_files_of_google_are_copied() -> None:
    """Only the files of Google that the protos import are copied."""
    copied = {str(file.relative_to(GOOGLEAPIS)) for file in GOOGLEAPIS.rglob("*") if file.is_file()}
    assert copied == {"LICENSE", "README.md", "google/api/field_behavior.proto"}


def test_go_packages_share_one_prefix() -> None:
    """Every proto's Go import path is GO_PREFIX of the Makefile and the proto's folder."""
    makefile = (ROOT / "Makefile").read_text()
    prefix = re.search(r"^GO_PREFIX \?= (\S+)$", makefile, re.MULTILINE)
    assert prefix
    protos = list((ROOT / "protos").rglob("*.proto"))
    assert len(protos) == 5
    for proto in protos:
        folder = proto.parent.relative_to(ROOT / "protos")
        assert f'option go_package = "{prefix[1]}/{folder};' in proto.read_text()


def test_each_error_reason_has_an_example() -> None:
    """Each reason has an example as the server sends it, with the metadata keys that its comment lists."""
    proto = (ROOT / "protos/idalloc/v1/error_reason.proto").read_text()
    reasons = re.findall(r"((?:  //.*\n)+)  ERROR_REASON_(\w+) = [1-9]", proto)
    assert len(reasons) == 20
    for comment, reason in reasons:
        lines = [line.removeprefix("  //") for line in comment.splitlines()]
        example = json.loads("".join(line for line in lines if line.startswith("   ")))
        assert (example["reason"], example["domain"]) == (reason, "idalloc")
        listed = re.search(r"Metadata: (.*?)\.(?= |$)", re.sub(r" \([^)]*\)", "", "".join(lines)))
        assert set(example["metadata"]) == (set(listed[1].split(", ")) if listed else set())
