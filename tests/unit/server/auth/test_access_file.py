"""The access file: the error of each mistake, and the checks for changes."""

import asyncio
import json
import tomllib
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
import structlog

from idalloc.cli import main
from idalloc_server.auth import access_file
from idalloc_server.auth.access import ADMIN, ALLOCATE, READ, AccessPolicy
from idalloc_server.auth.access_file import AccessFile, parse
from idalloc_server.domain.errors import FileUnreadable, StartRefused
from idalloc_server.files import watch
from tests.rpc.conftest import until
from tests.support.waiting import hold_for_async

A, B = "a" * 64, "b" * 64
SECRET = "idalloc_a-token-that-nobody-may-see"
TOKEN = f"{SECRET}-since-it-is-whole"

GOOD = f"""
[[identity]]
name = "billing"
token_sha256 = ["{A}", "{B.upper()}"]
certificate = ["dns:billing.example.org", "uri:spiffe://example.org/billing"]
allocate = ["invoices*", "orders"]
read = ["*"]
ids_per_second = 100_000
calls_per_second = 500
streams = 10

[[identity]]
name = "auditor"
certificate = ["ip:10.0.0.7"]

[[quota]]
sequence = "orders*"
ids_per_second = 1_000_000
"""


def test_every_key_is_read() -> None:
    """Every key of the access file is read into the policy."""
    billing, auditor = parse(GOOD.encode(), "access.toml").identities
    assert (billing.name, billing.tokens) == ("billing", (bytes.fromhex(A), bytes.fromhex(B)))
    assert billing.certificates == ("dns:billing.example.org", "uri:spiffe://example.org/billing")
    assert [billing.roles[role].patterns for role in (ALLOCATE, READ, ADMIN)] == [("invoices*", "orders"), ("*",), ()]
    assert (billing.ids_per_second, billing.calls_per_second, billing.streams) == (100_000, 500, 10)
    assert (auditor.ids_per_second, auditor.calls_per_second, auditor.streams) == (None, None, None)
    [quota] = parse(GOOD.encode(), "access.toml").quotas
    assert (quota.sequence.patterns, quota.ids_per_second, quota.calls_per_second) == (("orders*",), 1_000_000, None)


async def test_a_file_that_anybody_may_write_is_refused(tmp_path: Path) -> None:
    """Any user could take each role; a file that others can only read is a warning."""
    file = tmp_path / "access.toml"
    file.write_text(GOOD)
    access = AccessFile(str(file))
    for mode, warnings in ((0o600, 0), (0o660, 0), (0o644, 1)):
        file.chmod(mode)
        assert len(access.read().identities) == 2
        with structlog.testing.capture_logs() as lines:
            following = asyncio.create_task(access.follow(lambda policy: None))
            await asyncio.sleep(0)
            following.cancel()
        assert [line["event"] for line in lines] == ["access_file_readable"] * warnings
    file.chmod(0o666)
    with pytest.raises(StartRefused, match=f"any user of this machine may write {file}; run chmod o-w"):
        access.read()


ENTRY = f'[[identity]]\nname = "x"\ntoken_sha256 = ["{A}"]\n'
NUMBER_2 = r"access.toml: \[\[identity\]\] number 2 \('x'\): "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"access.toml has no \[\[identity\]\] and no \[\[quota\]\]; `idalloc token new` creates an identity"),
        ("identity = []", "has no"),
        (f"{ENTRY}name = 'y'\n", "access.toml is not TOML: at line 4, column 11"),
        (f"token = '{SECRET}'", r"unknown table 'token'; write \[\[identity\]\] or \[\[quota\]\]"),
        (f"{SECRET} = 1", r"unknown table of 35 characters; write \[\[identity\]\] or \[\[quota\]\]"),
        (f"[{TOKEN}.x]", r"unknown table of 53 characters; write"),
        (f"{ENTRY}{TOKEN} = ['x']", r"number 1 \('x'\): unknown key of 53 characters; known keys: name, "),
        (f"{ENTRY}{A} = 1", r"number 1 \('x'\): unknown key of 64 characters; known keys: name, "),
        (f"{ENTRY}{TOKEN}.x = 1", "unknown key of 53 characters"),
        (f"{GOOD}{TOKEN} = 1", r"\[\[quota\]\] number 1: unknown key of 53 characters; known keys: sequence, ids_per"),
        ("[identity]\nname = 'x'", r"'identity' must be an array of tables; write \[\[identity\]\] with two brackets"),
        ("identity = 5", "with two brackets"),
        (f"{GOOD}tokens = 1", r"\[\[quota\]\] number 1: unknown key 'tokens'; known keys: sequence, ids_per"),
        (f"{ENTRY}rolls = ['x']", r"\[\[identity\]\] number 1 \('x'\): unknown key 'rolls'; known keys: name, "),
        (f'[[identity]]\ntoken_sha256 = ["{A}"]', r"\[\[identity\]\] number 1: name: field required"),
        ("[[identity]]\nname = 'x'", r"\('x'\): token_sha256 or certificate is required"),
        (f"[[identity]]\nname = 'x'\ntoken_sha256 = ['{SECRET}']", "token_sha256: number 1: must be the SHA-256"),
        (f"[[identity]]\nname = 'x'\ntoken_sha256 = ['{A}', 'ab']", "token_sha256: number 2: must be the SHA-256"),
        (f"[[identity]]\nname = 'x'\ntoken_sha256 = '{A}'", r'token_sha256: must be a list, such as \["…"\]'),
        (f"{ENTRY}allocate = '*'", r'allocate: must be a list, such as \["…"\]'),
        (f"{ENTRY}allocate = ['']", "allocate: number 1: must be 1 to 255 characters"),
        (f"{ENTRY}ids_per_second = 0", "ids_per_second: input should be greater than or equal to 1"),
        (f"{ENTRY}ids_per_second = 1.5", "ids_per_second: input should be a valid integer"),
        (f"{ENTRY}streams = true", "streams: input should be a valid integer"),
        (f"{ENTRY}streams = '5'", "streams: input should be a valid integer"),
        (
            f"[[identity]]\nname = 'anonymous'\ntoken_sha256 = ['{A}']",
            "name: 'anonymous' is reserved for unauthenticated callers; choose another",
        ),
        (f'[[identity]]\nname = "a\\nb"\ntoken_sha256 = ["{A}"]', "name: must be 1 to 255 characters without control"),
        (f"{ENTRY}[[identity]]\nname = 'x'\ntoken_sha256 = ['{B}']", f"{NUMBER_2}name: duplicate: identity"),
        (
            f"{GOOD}[[identity]]\nname = 'x'\ntoken_sha256 = ['{A}']",
            "token_sha256: duplicate: identity 'billing' has the same",
        ),
        (f"{GOOD}[[identity]]\nname = 'x'\ntoken_sha256 = ['{B}']", "token_sha256: duplicate: identity 'billing'"),
        (
            f"{GOOD}[[identity]]\nname = 'x'\ncertificate = ['ip:10.0.0.7']",
            "certificate: duplicate: identity 'auditor'",
        ),
        (
            "[[identity]]\nname = 'x'\ncertificate = ['billing.example.org', 'uri:spiffe://x/y']",
            r"certificate: 'billing.example.org' has no type, such as dns: or uri:; "
            r'write certificate = \["dns:billing.example.org", "uri:spiffe://x/y"\]$',
        ),
        (
            "[[identity]]\nname = 'x'\ncertificate = ['spiffe://x/y', 'a@b.at', '10.0.0.7', '2001:db8::7', 'DNS:z']",
            r'\["uri:spiffe://x/y", "email:a@b.at", "ip:10.0.0.7", "ip:2001:db8::7", "dns:z"\]$',
        ),
        ("[[identity]]\nname = 'x'\ncertificate = ['ip:10.0.0']", "certificate: 'ip:10.0.0' is not an IP address"),
        (f"[[identity]]\nname = 'x'\ncertificate = ['{TOKEN}']", "a token's SHA-256 goes into token_sha256"),
        (f"{GOOD}[[identity]]\nname = 'x'\ncertificate = ['ip:010.0.0.7']", "'ip:010.0.0.7' is not an IP address"),
        ("[[quota]]\nids_per_second = 1", r"\[\[quota\]\] number 1: sequence: field required"),
        ("[[quota]]\nsequence = '*'", "ids_per_second or calls_per_second is required"),
    ],
)
def test_error_names_the_entry_and_the_fix_but_no_secret(content: str, message: str) -> None:
    """An error names the entry and the fix, and contains no secret."""
    with pytest.raises(StartRefused, match=message) as refused:
        parse(content.encode(), "access.toml")
    assert str(refused.value).startswith("access_file: access.toml")
    assert SECRET not in str(refused.value)
    assert A not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"\xff", f"x = {SECRET}".encode(), b"[" * 100_000])
def test_toml_error_does_not_show_the_content(content: bytes) -> None:
    """The error of invalid TOML does not show the content."""
    with pytest.raises(StartRefused, match=r"access.toml is not TOML") as refused:
        parse(content, "access.toml")
    assert SECRET not in str(refused.value)


def test_ip_names_are_normalized() -> None:
    """Names of the type ip are compared as addresses."""
    [identity] = parse(b"[[identity]]\nname = 'x'\ncertificate = ['ip:2001:DB8:0::7']", "x").identities
    assert identity.certificates == ("ip:2001:db8::7",)


def test_missing_file_prevents_the_start(tmp_path: Path) -> None:
    """A missing access file prevents the start."""
    with pytest.raises(StartRefused, match=r"access_file: cannot read .*nothing.toml: No such file"):
        AccessFile(str(tmp_path / "nothing.toml")).read()


def replace_file(path: Path, content: str) -> None:
    """Replace a file atomically."""
    other = path.with_name("other")
    other.write_text(content)
    other.replace(path)


class TestChanges:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "access.toml"
        path.write_text(ENTRY)
        path.chmod(0o600)
        return path

    def test_unreadable_file_is_read_again_until_it_succeeds(self, path: Path) -> None:
        """A failed read loses no change."""
        file = AccessFile(str(path))
        file.read()
        path.unlink()
        path.mkdir()
        for _ in range(3):
            error = file.watch.check()
            assert isinstance(error, FileUnreadable)
            assert "Is a directory" in str(error)
        path.rmdir()
        path.write_text(ENTRY)
        assert isinstance(file.watch.check(), AccessPolicy)
        assert file.watch.check() is None

    @pytest.mark.parametrize("content", ["", " \n", "# nothing\n", "identity = []\n", None])
    def test_file_without_entries_gives_an_empty_policy(self, path: Path, content: str | None) -> None:
        """An emptied or removed file gives an empty policy at the second check, not at start."""
        file = AccessFile(str(path))
        file.read()
        path.unlink()
        if content is not None:
            path.write_text(content)
        assert file.watch.check() is None  # the second check decides
        access = file.watch.check()
        assert isinstance(access, AccessPolicy)
        assert access.is_empty
        assert file.watch.check() is None
        with pytest.raises(StartRefused):
            AccessFile(str(path)).read()
        assert AccessFile(str(path)).read(may_be_empty=True).is_empty
        path.write_text(ENTRY)
        assert isinstance(file.watch.check(), AccessPolicy)

    @pytest.mark.parametrize("emptied", [True, False])
    def test_half_written_file_does_not_apply(self, path: Path, emptied: bool) -> None:
        """A check between an editor's removal and its writing of the file changes nothing."""
        file = AccessFile(str(path))
        file.read()
        for content in (GOOD, ENTRY):
            if emptied:
                path.write_text("")
            else:
                path.rename(f"{path}~")
            assert file.watch.check() is None
            path.write_text(content)
            access = file.watch.check()
            assert isinstance(access, AccessPolicy)
            assert access.identities

    def test_forced_read_of_an_empty_file_applies_at_once(self, path: Path) -> None:
        """A forced read, as on SIGHUP, accepts an empty file at once."""
        file = AccessFile(str(path))
        file.read()
        path.write_text("")
        access = file.watch.check(forced=True)
        assert isinstance(access, AccessPolicy)
        assert access.is_empty

    async def test_previous_policy_stays_while_the_file_is_invalid(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The previous policy stays active until the file is valid, and the log has no secret."""
        monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(access_file, "POLLS_UNTIL_LOGGED_AGAIN", 10**6)
        file = AccessFile(str(path))
        file.read()
        used: asyncio.Queue[AccessPolicy] = asyncio.Queue()
        with structlog.testing.capture_logs() as logs:
            following = asyncio.create_task(file.follow(used.put_nowait))
            await asyncio.to_thread(replace_file, path, f"[[identity]]\nname = 'x'\ntoken_sha256 = ['{SECRET}']")
            with suppress(TimeoutError):
                await asyncio.wait_for(used.get(), 0.5)
            await asyncio.to_thread(replace_file, path, GOOD)
            access = await asyncio.wait_for(used.get(), 20)
            following.cancel()
        assert len(access.identities) == 2
        assert [line["event"] for line in logs] == ["access_not_reloaded", "access_reloaded"]
        assert (logs[1]["identities"], logs[1]["quotas"]) == (2, 1)
        assert SECRET not in str(logs)

    async def test_error_is_logged_again_until_the_file_is_valid(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log repeats the error of an invalid file until the file is valid."""
        monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(access_file, "POLLS_UNTIL_LOGGED_AGAIN", 3)
        file = AccessFile(str(path))
        file.read()
        used: asyncio.Queue[AccessPolicy] = asyncio.Queue()
        with structlog.testing.capture_logs() as logs:
            following = asyncio.create_task(file.follow(used.put_nowait))
            await asyncio.to_thread(replace_file, path, "[[identity]]")
            await until(lambda: len(logs) >= 3)
            await asyncio.to_thread(replace_file, path, GOOD)
            await asyncio.wait_for(used.get(), 20)
            count = len(logs)
            await hold_for_async(0.2, "20 polls of the valid file")
            following.cancel()
        assert {line["error"] for line in logs[: count - 1]} == {logs[0]["error"]}
        assert [line["event"] for line in logs[count - 1 :]] == ["access_reloaded"]


class TestTokens:
    def test_entry_of_a_new_token_authenticates_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The printed entry of a new token authenticates that token, and does not contain it."""
        assert (
            main(["token", "new", 'the "new" one', "--allocate", "orders*", "--allocate", "größe", "--read", "*"]) == 0
        )
        token, entry = capsys.readouterr()
        token = token.removesuffix("\n")
        assert token.startswith("idalloc_")
        assert len(token) == len("idalloc_") + 43
        assert token not in entry
        [values] = tomllib.loads(entry)["identity"]
        assert values["token_sha256"] == [sha256(token.encode()).hexdigest()]
        identity = parse(entry.encode(), "x").find_by_token(token)
        assert identity is not None
        assert identity.name == 'the "new" one'
        assert identity.roles[ALLOCATE].patterns == ("orders*", "größe")
        assert not identity.roles[ADMIN]

    def test_json_has_token_and_entry(self, capsys: pytest.CaptureFixture[str]) -> None:
        """--json prints the token and its entry, and each token is different."""
        made = []
        for _ in range(2):
            assert main(["token", "new", "billing", "--json"]) == 0
            made.append(json.loads(capsys.readouterr().out))
        assert made[0]["token"] != made[1]["token"]
        assert parse(made[0]["entry"].encode(), "x").find_by_token(made[0]["token"]) is not None

    def test_invalid_identity_name_makes_no_token(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A name that the access file rejects creates no token."""
        for name in ("", "a\nb", "anonymous"):
            assert main(["token", "new", name]) == 2
            out, err = capsys.readouterr()
            assert not out
            assert "name: " in err


@pytest.mark.parametrize("mark", ["\u202e", "\u200f", "\u2028", "\u061c"])
def test_identity_name_with_bidirectional_mark_is_rejected(mark: str) -> None:
    """An identity's name is safe to print; a pattern may match an older sequence's unsafe name."""
    digest = "ab" * 32
    entry = '[[identity]]\nname = "{}"\ntoken_sha256 = ["{}"]\nread = ["{}*"]\n'
    with pytest.raises(StartRefused, match="bidirectional marks"):
        parse(entry.format(f"a{mark}", digest, "a").encode(), "access.toml")
    assert parse(entry.format("a", digest, f"a{mark}").encode(), "access.toml").identities
