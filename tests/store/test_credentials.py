"""Passwords, tokens and TLS settings in URLs of stores."""

from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.credentials import has_secret
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_store import FakeClock


@pytest.mark.parametrize(
    "url",
    [
        "crate://alice:hunter2@h:x/",
        "crate://alice:hun/ter2@h/",
        "crate://alice:hunter2?@h/",
        "crate://alice:1?hunter2=3@h/",
        "crate://alice:hunter2#@h/",
        "crate://alice:hunter2@@/",
        "crate://alice:hunter2[@h/",
        "crate://alice:hunter2\u2100@h/",
        "crate://alice:hunter2@h/?schema=%",
        "crate://alice:hunter2@h/?jwt=hunter3",
        "crate://h/?jwt=hunter2%0A",
    ],
)
def test_a_refusal_contains_no_secret(url: str) -> None:
    """No part of a password or token is in the message, whatever is wrong with the URL."""
    with pytest.raises(StartRefused) as caught:
        open_store(url, FakeClock())
    message = f"{caught.value} {caught.value.__cause__}"
    assert "hun" not in message
    assert "ter2" not in message


def test_a_ca_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    """A file in ``ca`` without a PEM certificate is refused."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(StartRefused, match="must be a file of certificates in PEM"):
        open_store(f"crate://h/?ca={tmp_path}/ca.pem", FakeClock())


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("jwt_file", b"hunter2 hunter2", "the file of jwt_file has no token in it"),
        ("jwt_file", b"hunter2\n\n", "the file of jwt_file has no token in it"),
        ("jwt_file", "hunter2\N{SNOWMAN}".encode(), "the file of jwt_file has no token in it"),
        ("password_file", b"hunter2\xff", "not UTF-8 text"),
        ("password_file", b"\n", " is empty"),
        ("jwt_file", b"", " is empty"),
    ],
)
def test_an_unusable_secret_file_is_refused(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    """A file without a usable secret is refused, and the message does not contain its content."""
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(StartRefused, match=why) as caught:
        open_store(f"crate://u@h/?{name}={tmp_path}/secret", FakeClock())
    assert "hunter2" not in f"{caught.value}"
    assert caught.value.__cause__ is None


def test_a_password_file_needs_a_user(tmp_path: Path) -> None:
    """password_file without a user is refused."""
    (tmp_path / "secret").write_text("hunter2")
    with pytest.raises(StartRefused, match="password_file needs a user: crate://user@host") as caught:
        open_store(f"crate://h/?password_file={tmp_path}/secret", FakeClock())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("secret", ["r:ght /@?", " spaces ", "two\nlines", "\N{SNOWMAN}"])
async def test_a_password_is_read_from_a_file(tmp_path: Path, secret: str, end: str) -> None:
    """The content of password_file, without its last line break, is the password."""
    (tmp_path / "secret").write_bytes((secret + end).encode())
    async with CrateEmulator() as emulator:
        emulator.require_password("alice", secret)
        store = open_store(f"crate://alice@{emulator.host}/?password_file={tmp_path}/secret", FakeClock())
        await store.open()
        await store.close()
        assert store.address == f"crate://alice@{emulator.host}/?schema=doc"


async def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    """The content of jwt_file is sent as a bearer token."""
    (tmp_path / "secret").write_text("abc.def.ghi\n")
    async with CrateEmulator() as emulator:
        emulator.authorization = "Bearer abc.def.ghi"
        store = open_store(f"crate://{emulator.host}/?jwt_file={tmp_path}/secret", FakeClock())
        await store.open()
        await store.close()
        assert store.address == f"crate://{emulator.host}/?schema=doc"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("crate://u:p@h/", True),
        ("crate://u:p/q@h/", True),
        ("crate://u:p?q@h/", True),
        ("crate://u:@h,i:4200/", True),
        ("mysql://u:p@h/", True),
        ("SQLITE://u:p@h/", True),
        ("crate://h/?schema=a&jwt=x", True),
        ("crate://h/?j%77t=x", True),
        ("crate://h/?JWT=x", True),
        ("crate://u@h:4200,[::1]:4201/?schema=doc&ca=/c.pem", False),
        ("crate://u@h:4200/?password_file=/run/secrets/crate", False),
        ("crate://u@h:4200/?jwt_file=/run/secrets/crate", False),
        ("crate://h:4200", False),
        ("sqlite:///a@b/c:d@e.db", False),
        ("ids.db", False),
        ("", False),
    ],
)
def test_has_secret(url: str, expected: bool) -> None:
    """A URL with a password or a token is recognized, also if it is malformed."""
    assert has_secret(url) is expected
