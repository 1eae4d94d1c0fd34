"""From the setting ``store`` to the store, and what is refused."""

from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.cratedb.store import CrateStore
from idalloc_server.store.credentials import has_secret
from idalloc_server.store.sqlite.store import SqliteStore
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_store import FakeClock


@pytest.mark.parametrize(
    ("url", "kind", "address"),
    [
        ("sqlite:///var/lib/idalloc/ids.db", SqliteStore, "sqlite:///var/lib/idalloc/ids.db"),
        ("sqlite:///a%20b/c%3Fd.db", SqliteStore, "sqlite:///a b/c?d.db"),
        ("sqlite:////var//lib/ids.db", SqliteStore, "sqlite:///var/lib/ids.db"),
        ("crate://localhost", CrateStore, "crate://localhost:4200/?schema=doc"),
        ("crate://localhost:4201/", CrateStore, "crate://localhost:4201/?schema=doc"),
        ("crate://a,b:4201,[::1],[fe80::1]:1/", CrateStore, "crate://a:4200,b:4201,[::1]:4200,[fe80::1]:1/?schema=doc"),
        (
            "crate://al%40ice:s%2Fcret@h/?schema=my-ids&tls=true",
            CrateStore,
            "crate://al@ice@h:4200/?schema=my-ids&tls=true",
        ),
        ("crate://h?schema=ids&tls=false", CrateStore, "crate://h:4200/?schema=ids"),
        ("crate://h/?jwt=aaa.bbb.ccc", CrateStore, "crate://h:4200/?schema=doc"),
    ],
)
def test_urls_that_are_understood(url: str, kind: type, address: str) -> None:
    store = open_store(url, FakeClock())
    assert isinstance(store, kind)
    assert store.address == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "the URL has no kind"),
        ("/var/lib/ids.db", "the URL has no kind"),
        ("sqlite:/ids.db", "the URL has no kind"),
        ("postgres://h/db", "unknown kind of store 'postgres'"),
        ("SQLITE:///a.db", "unknown kind of store 'SQLITE'"),
        ("sqlite://", "absolute path"),
        ("sqlite:///", "absolute path"),
        ("sqlite://ids.db", "absolute path"),
        ("sqlite://host/ids.db", "absolute path"),
        ("sqlite:///ids.db?mode=ro", "takes no parameters"),
        ("sqlite:///ids.db#x", "takes no parameters"),
        ("sqlite:///ids%00.db", "absolute path"),
        ("sqlite:///:memory:", "memory would lose the counters"),
        ("sqlite:///~/ids.db", "~ is not expanded"),
        ("crate://", "hosts"),
        ("crate:///?schema=doc", "hosts"),
        ("crate://h,,i/", "hosts"),
        ("crate://h:0/", "hosts"),
        ("crate://h:65536/", "hosts"),
        ("crate://h:http/", "hosts"),
        ("crate://h i/", "hosts"),
        ("crate://[::1/", "reserved characters"),
        ("crate://h/doc", "only parameters"),
        ("crate://h/#doc", "only parameters"),
        ("crate://h/?shema=doc", "unknown parameter 'shema'; the parameters are schema, tls, ca, jwt, jwt_file"),
        ("crate://h/?schema=", "the parameter schema must be given once"),
        ("crate://h/?schema=a&schema=b", "the parameter schema must be given once"),
        ('crate://h/?schema=a"b', "the parameter schema must consist of letters"),
        ("crate://h/?schema=a.b", "the parameter schema must consist of letters"),
        ("crate://h/?tls=yes", "the parameter tls must be true or false"),
        ("crate://h/?tls=false&ca=/ca.pem", "the parameter tls must be true or false, and true if ca is set"),
        (
            "crate://h/?ca=/no/such/file.pem",
            "the parameter ca must be a file of certificates in PEM: /no/such/file.pem",
        ),
        ("crate://h/?jwt=a%0Ab", "the parameter jwt is not a token"),
        ("crate://h/?jwt=a b", "the parameter jwt is not a token"),
        ("crate://u:p@h/?jwt=a", "give one of a password, password_file, jwt and jwt_file, not jwt and a password"),
        ("crate://u:p@h/?password_file=/p", "not password_file and a password"),
        ("crate://u:p@h/?jwt_file=/p", "not jwt_file and a password"),
        ("crate://u@h/?jwt=a&password_file=/p", "not jwt, password_file"),
        ("crate://u@h/?jwt=a&jwt_file=/p", "not jwt, jwt_file"),
        ("crate://u@h/?password_file=/no/such", "password_file: cannot read /no/such: No such file or directory"),
        ("crate://h/?jwt_file=/", "jwt_file: cannot read /: Is a directory"),
        ("crate://h/?jwt_file=/a%00b", "jwt_file: cannot read /a"),
        ("crate://u@h/?password_file=", "the parameter password_file must be given once, with a value"),
    ],
)
def test_urls_that_are_refused_with_the_mend(url: str, why: str) -> None:
    with pytest.raises(StartRefused) as caught:
        open_store(url, FakeClock())
    assert caught.value.setting == "store"
    assert str(caught.value).startswith("store: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


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
def test_a_refusal_tells_no_password(url: str) -> None:
    with pytest.raises(StartRefused) as caught:
        open_store(url, FakeClock())
    told = f"{caught.value} {caught.value.__cause__}"
    assert "hun" not in told
    assert "ter2" not in told


def test_a_file_of_authorities_that_is_none(tmp_path: Path) -> None:
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
def test_a_file_that_holds_none(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(StartRefused, match=why) as caught:
        open_store(f"crate://u@h/?{name}={tmp_path}/secret", FakeClock())
    assert "hunter2" not in f"{caught.value}"
    assert caught.value.__cause__ is None


def test_a_password_file_needs_a_user(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    with pytest.raises(StartRefused, match="password_file needs a user: crate://user@host") as caught:
        open_store(f"crate://h/?password_file={tmp_path}/secret", FakeClock())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("secret", ["r:ght /@?", " spaces ", "two\nlines", "\N{SNOWMAN}"])
async def test_a_password_out_of_a_file(tmp_path: Path, secret: str, end: str) -> None:
    (tmp_path / "secret").write_bytes((secret + end).encode())
    async with CrateEmulator() as emulator:
        emulator.demand("alice", secret)
        store = open_store(f"crate://alice@{emulator.host}/?password_file={tmp_path}/secret", FakeClock())
        await store.open()
        await store.close()
        assert store.address == f"crate://alice@{emulator.host}/?schema=doc"


async def test_a_token_out_of_a_file(tmp_path: Path) -> None:
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
def test_which_urls_have_a_secret(url: str, expected: bool) -> None:
    assert has_secret(url) is expected
