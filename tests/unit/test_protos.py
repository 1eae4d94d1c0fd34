"""The protos compile elsewhere: Go packages share a path, and Google's imported file is here."""

import re
from importlib.metadata import version
from importlib.resources import files

from scripts.reference.errors import read_proto
from tests.support.paths import ROOT

GOOGLEAPIS = ROOT / "third_party" / "googleapis"


def test_googles_protos_equal_the_installed_package() -> None:
    """Each copy of Google's protos equals the installed one; its README names the version."""
    for package, file in (("api", "field_behavior.proto"), ("rpc", "status.proto")):
        copied = (GOOGLEAPIS / "google" / package / file).read_bytes()
        assert copied == files(f"google.{package}").joinpath(file).read_bytes()
    assert f"googleapis-common-protos {version('googleapis-common-protos')} " in (GOOGLEAPIS / "README.md").read_text()


def test_only_imported_files_of_google_are_copied() -> None:
    """Only the files of Google that the protos import are copied."""
    copied = {str(file.relative_to(GOOGLEAPIS)) for file in GOOGLEAPIS.rglob("*") if file.is_file()}
    assert copied == {"LICENSE", "README.md", "google/api/field_behavior.proto", "google/rpc/status.proto"}


def test_go_packages_share_one_prefix() -> None:
    """Every proto's Go package lies directly below the path of the Go module."""
    module = re.search(r"^module (\S+)$", (ROOT / "client/go/go.mod").read_text(), re.MULTILINE)
    assert module
    protos = list((ROOT / "protos").rglob("*.proto"))
    assert len(protos) == 10
    for proto in protos:
        package = "".join(proto.parent.parts[-2:])  # idallocv1 of idalloc/v1
        assert f'option go_package = "{module[1]}/{package}";' in proto.read_text()


def test_each_error_reason_has_an_example() -> None:
    """Each reason has an example as the server sends it, with its comment's metadata keys."""
    comments = read_proto()
    assert len(comments) == 20
    for reason, comment in comments.items():
        assert (comment.example["reason"], comment.example["domain"]) == (reason, "idalloc")
        listed = re.sub(r" \([^)]*\)", "", comment.metadata)
        assert set(comment.example["metadata"]) == (set(listed.split(", ")) if listed else set())
