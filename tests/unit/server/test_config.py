"""Settings that are refused: what is told of them, and what must not be, since a secret may stand there."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from idalloc_server.auth.access_file import AccessFile
from idalloc_server.config import load
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.tls import Certificates
from idalloc_server.store.urls import open_store

PATHS = ("tls_cert", "tls_key", "tls_client_ca", "access")
# A key in place of its file: as it is, and on one line, as files of variables want it.
KEY = "-----BEGIN PRIVATE KEY-----\npLaNtEd/key==\n-----END PRIVATE KEY-----\n"
LINES = (KEY.replace("\n", " ").strip(), KEY.replace("\n", "\\n"), "idalloc_pLaNtEd", "pLaNtEd/" * 600)


def refused(given: dict[str, Any], way: str, folder: Path) -> str:
    """Gives settings in one of three ways, and returns what is said."""
    file = folder / "idalloc.toml"
    file.write_text("".join(f"{name} = {toml(value)}\n" for name, value in given.items()))
    with pytest.raises(StartRefused) as error:
        if way == "file":
            load({}, str(file), {})
        elif way == "environment":
            load({}, None, {f"IDALLOC_{name.upper()}": value for name, value in given.items()})
        else:
            load(given, None, {})
    return str(error.value)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + "}"
    return repr(value).replace("'", '"')


@pytest.mark.parametrize("way", ["environment", "file", "flag"])
@pytest.mark.parametrize("name", PATHS)
def test_a_secret_in_place_of_its_file_is_not_told(tmp_path: Path, name: str, way: str) -> None:
    said = refused({name: KEY}, way, tmp_path)
    origin = {"environment": f"IDALLOC_{name.upper()}", "file": f"{name} in {tmp_path}/idalloc.toml"}
    assert said == f"{origin.get(way, '--' + name.replace('_', '-'))}: must be UTF-8 without control characters"


@pytest.mark.parametrize("way", ["environment", "file", "flag"])
@pytest.mark.parametrize("key", LINES[:2])
def test_a_key_on_one_line_is_refused_before_anything_shows_it(tmp_path: Path, key: str, way: str) -> None:
    said = refused({"tls_key": key}, way, tmp_path)
    assert said.endswith(": must be the path of a file, not what is in it")


@pytest.mark.parametrize("value", [["pLaNtEd"], {"key": "pLaNtEd"}])
@pytest.mark.parametrize("name", [*PATHS, "store"])
def test_nor_is_one_that_is_no_text(tmp_path: Path, name: str, value: object) -> None:
    said = refused({name: value}, "file", tmp_path)
    assert said.startswith(f"{name} in {tmp_path}/idalloc.toml: input should be a valid string")
    assert "pLaNtEd" not in said


def test_other_values_are_told(tmp_path: Path) -> None:
    assert refused({"node_prefix": "70000"}, "flag", tmp_path).endswith(", not '70000'")
    assert refused({"listen": "here\n"}, "flag", tmp_path).endswith(r", not 'here\n'")


@pytest.mark.parametrize("value", LINES)
def test_what_names_no_file_is_told_only_where_it_is_a_whole_path(tmp_path: Path, value: str) -> None:
    def said(read: Any) -> str:
        with pytest.raises(StartRefused) as error:
            read()
        return str(error.value)

    there = tmp_path / "there"
    there.write_text("")
    for given, shown in ((value, False), (f"{tmp_path}/none", True)):
        for told in (
            said(AccessFile(given).read),
            said(Certificates(given, str(there)).credentials),
            said(Certificates(str(there), given).credentials),
            said(Certificates(str(there), str(there), given).credentials),
            said(lambda given=given: open_store(f"crate://u@h/?password_file={quote(given)}", SystemClock(), 1.0)),
        ):
            assert "cannot read" in told
            assert (given in told) is shown
            assert "pLaNtEd" not in told
