"""Errors of settings: what they show, and the secrets that they must not show."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from idalloc_server.auth.access_file import AccessFile
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.tls import Certificates
from idalloc_server.settings.model import Settings
from idalloc_server.settings.sources import load
from idalloc_server.store.urls import open_store

PATHS = ("tls_cert", "tls_key", "tls_client_ca", "access_file")
# A key instead of its file: unchanged, and on one line, as in files of variables.
KEY = "-----BEGIN PRIVATE KEY-----\npLaNtEd/key==\n-----END PRIVATE KEY-----\n"
LINES = (KEY.replace("\n", " ").strip(), KEY.replace("\n", "\\n"), "idalloc_pLaNtEd", "pLaNtEd/" * 600)


def refused(given: dict[str, Any], source: str, folder: Path) -> str:
    """Load settings from one source, and return the error."""
    file = folder / "idalloc.toml"
    file.write_text("".join(f"{name} = {toml(value)}\n" for name, value in given.items()))
    with pytest.raises(StartRefused) as error:
        if source == "file":
            load({}, str(file), {})
        elif source == "environment":
            load({}, None, {f"IDALLOC_{name.upper()}": value for name, value in given.items()})
        else:
            load(given, None, {})
    return str(error.value)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + "}"
    return repr(value).replace("'", '"')


@pytest.mark.parametrize("source", ["environment", "file", "flag"])
@pytest.mark.parametrize("name", PATHS)
def test_key_instead_of_its_file_is_not_shown(tmp_path: Path, name: str, source: str) -> None:
    """The error for a key instead of its file does not show the key."""
    message = refused({name: KEY}, source, tmp_path)
    origin = {"environment": f"IDALLOC_{name.upper()}", "file": f"{name} in {tmp_path}/idalloc.toml"}
    assert message == f"{origin.get(source, '--' + name.replace('_', '-'))}: must be UTF-8 without control characters"


@pytest.mark.parametrize("source", ["environment", "file", "flag"])
@pytest.mark.parametrize("key", LINES[:2])
def test_key_on_one_line_is_refused(tmp_path: Path, key: str, source: str) -> None:
    """A key on one line is refused before its value could be shown."""
    message = refused({"tls_key": key}, source, tmp_path)
    assert message.endswith(": must be the path of a file, not its content")


@pytest.mark.parametrize("value", [["pLaNtEd"], {"key": "pLaNtEd"}])
@pytest.mark.parametrize("name", [*PATHS, "store", "witness"])
def test_secret_that_is_not_text_is_not_shown(tmp_path: Path, name: str, value: object) -> None:
    """The error for a list or table instead of a path does not show it."""
    message = refused({name: value}, "file", tmp_path)
    assert message.startswith(f"{name} in {tmp_path}/idalloc.toml: input should be a valid string")
    assert "pLaNtEd" not in message


def test_other_values_are_shown(tmp_path: Path) -> None:
    """The error for a setting without secrets shows its value."""
    assert refused({"node_prefix": "70000"}, "flag", tmp_path).endswith(", not '70000'")
    assert refused({"listen": "here\n"}, "flag", tmp_path).endswith(r", not 'here\n'")


def test_former_settings_name_what_replaces_them(tmp_path: Path) -> None:
    """A removed setting has no effect; a renamed one has, unless the new name is beside it."""
    file = tmp_path / "idalloc.toml"
    file.write_text('access = "old"\nnode_prefix = 7\nxproto_max_connections = "none"')
    variables = {"IDALLOC_MAX_CONNECTIONS_PER_ADDRESS": "-1", "IDALLOC_ACCESS": "old", "IDALLOC_ACCESS_FILE": "new"}
    loaded = load({"xproto_max_message": "1"}, str(file), variables)
    assert (loaded.settings.access_file, loaded.settings.node_prefix) == ("new", 7)
    assert load({}, str(file), {}).settings.access_file == "old"
    assert load({}, None, {"IDALLOC_ACCESS": "old"}).origins == {"access_file": "IDALLOC_ACCESS"}
    assert loaded.deprecated == {
        f"access in {file}": f"use access_file in {file}",
        f"xproto_max_connections in {file}": "remove it: a process has connections for a quarter of its open files",
        "IDALLOC_MAX_CONNECTIONS_PER_ADDRESS": "remove it: an address has at most a quarter of a port's connections",
        "IDALLOC_ACCESS": "remove it: access_file is set",
        "--xproto-max-message": "remove it: messages have at most 64 MiB, as in MySQL",
    }


@pytest.mark.parametrize("value", LINES)
def test_only_absolute_missing_paths_are_shown(tmp_path: Path, value: str) -> None:
    """A missing file is named only by an absolute path, since other text may be a secret."""

    def error_of(read: Any) -> str:
        with pytest.raises(StartRefused) as error:
            read()
        return str(error.value)

    def certificates(cert: object, key: object, client_ca: object = "") -> Certificates:
        return Certificates(
            Settings.model_construct(tls_cert=str(cert), tls_key=str(key), tls_client_ca=str(client_ca))
        )

    there = tmp_path / "there"
    there.write_text("")
    for given, shown in ((value, False), (f"{tmp_path}/none", True)):
        for message in (
            error_of(AccessFile(given).read),
            error_of(certificates(given, there).credentials),
            error_of(certificates(there, given).credentials),
            error_of(certificates(there, there, given).credentials),
            error_of(lambda given=given: open_store(f"crate://u@h/?password_file={quote(given)}", SystemClock(), 1.0)),
        ):
            assert "cannot read" in message
            assert (given in message) is shown
            assert "pLaNtEd" not in message


@pytest.mark.parametrize("value", ["here", "127.0.0.1:70000", "unix:/run/idalloc.sock"])
def test_the_http_port_is_no_unix_socket(value: str, tmp_path: Path) -> None:
    """The error of an invalid ``http_listen`` proposes only what it can be."""
    rule = f"must be HOST:PORT such as 127.0.0.1:50080, or empty, not {value!r}"
    assert refused({"http_listen": value}, "flag", tmp_path).endswith(rule)
