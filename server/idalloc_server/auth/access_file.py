"""The access file: who may do what, in TOML. Read at the start, and again whenever it changes."""

import asyncio
import re
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from idalloc_server.auth.access import ADMIN, ALLOCATE, ANONYMOUS, READ, AccessPolicy, Identity, SequenceQuota
from idalloc_server.domain.errors import StartRefused, unreadable
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.domain.text import is_safe

# How often it is looked whether the file has changed.
LOOK_SECONDS = 1.0
# A file that is wrong is told again after so many looks: until it is mended, nobody is shut out by it.
LOOKS_UNTIL_TOLD_AGAIN = 60

# What a name in a certificate is: the types of names (SANs) that are compared.
NAME_TYPES = ("dns", "uri", "ip", "email")

_DIGEST = re.compile(r"[0-9a-f]{64}")
# As `idalloc token new` makes them.
_TOKEN = re.compile(r"idalloc_[\w-]{43}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# What tells that a file was changed: inode, size, times of its content and of its state; empty where it is missing.
_Stat = tuple[int, ...]
_log = structlog.get_logger("idalloc")


def _digest(value: str) -> str:
    value = value.lower()
    if not _DIGEST.fullmatch(value):
        # What stands there may be the token itself: it is never repeated.
        raise ValueError("must be the SHA-256 of a token, 64 hexadecimal digits, as `idalloc token new` prints it")
    return value


def _pattern(value: str) -> str:
    if not 0 < len(value) <= 255 or _CONTROL.search(value):
        raise ValueError("must be 1 to 255 characters, and no control characters")
    return value


def _name(value: str) -> str:
    if not is_safe(_pattern(value)):
        raise ValueError("must not have line separators or bidirectional marks: it goes into errors and the audit")
    return value


def _certificates(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in map(_name, values):
        if _TOKEN.search(value):
            # A token is never repeated.
            raise ValueError("must be names in certificates; a token's SHA-256 goes into token_sha256")
    typed = tuple(map(_typed, values))
    for value in values:
        if value.partition(":")[0] not in NAME_TYPES:
            line = ", ".join(map(dumps, typed))
            raise ValueError(f"{value!r} has no type, such as dns: or uri:; write certificate = [{line}]")
    return typed


def _typed(value: str) -> str:
    """Returns a name in a certificate with its type, or with the one that it most likely has."""
    kind, _, name = value.partition(":")
    if kind == "ip":
        try:
            return f"ip:{ip_address(name)}"
        except ValueError:
            raise ValueError(f"{value!r} is no IP address") from None
    if kind.lower() in NAME_TYPES:
        return f"{kind.lower()}:{name}"
    with suppress(ValueError):
        return f"ip:{ip_address(value)}"
    return f"{'uri' if '://' in value else 'email' if '@' in value else 'dns'}:{value}"


# A sequence that was created by an older version may have what no new name may have, so patterns may have it too.
_Names = tuple[Annotated[str, AfterValidator(_pattern)], ...]
_Limit = Annotated[int, Field(ge=1, le=2**53, strict=True)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Identity(_Entry):
    name: Annotated[str, AfterValidator(_name)]
    token_sha256: tuple[Annotated[str, AfterValidator(_digest)], ...] = ()
    certificate: Annotated[tuple[str, ...], AfterValidator(_certificates)] = ()
    allocate: _Names = ()
    read: _Names = ()
    admin: _Names = ()
    ids_per_second: _Limit | None = None
    calls_per_second: _Limit | None = None
    streams: _Limit | None = None

    @model_validator(mode="after")
    def _can_be_known(self) -> "_Identity":
        if not self.token_sha256 and not self.certificate:
            raise ValueError("token_sha256: must be given, or certificate: how else is the caller to be known?")
        if self.name == ANONYMOUS.name:
            raise ValueError(f"name: {self.name!r} means those whom nobody knows; take another one")
        return self


class _Quota(_Entry):
    sequence: Annotated[str, AfterValidator(_pattern)]
    ids_per_second: _Limit | None = None
    calls_per_second: _Limit | None = None

    @model_validator(mode="after")
    def _limits(self) -> "_Quota":
        if self.ids_per_second is None and self.calls_per_second is None:
            raise ValueError("ids_per_second: must be given, or calls_per_second")
        return self


class AccessFile:
    """The file at a path.

    Args:
        path: Where it is.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        # What was read last, as a stat shows it; None before, and where that failed.
        self._seen: _Stat | None = None
        self._reloading = asyncio.Event()
        # Not the loop's own: slow readers may have all threads of that, see transport.py.
        self._reader = ThreadPoolExecutor(1, "access")

    def read(self, *, may_be_empty: bool = False) -> AccessPolicy:
        """Reads it.

        Args:
            may_be_empty: Whether a file that is missing, or has no entry, authorizes nobody; else it is refused.

        Raises:
            FileUnreadable: It cannot be read.
            StartRefused: Something in it is wrong: the message names the entry and the fix, and nothing that may be
                secret.
        """
        self._seen = None  # until it was read: what fails now is tried again
        try:
            seen: _Stat = _stat(self._path)
            content = self._path.read_bytes()
        except OSError as error:
            if not may_be_empty or not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise unreadable("access", self._path, error) from None
            seen, content = (), b""
        self._seen = seen
        return parse(content, str(self._path), may_be_empty=may_be_empty)

    def read_again(self, *, forced: bool = False) -> AccessPolicy | None:
        """Reads it if it has changed since it was last read; None where it has not.

        One that is missing or has no entry authorizes nobody, if the next call finds it so, too.

        Args:
            forced: Whether to read it also where it has not changed.

        Raises:
            StartRefused: See ``read``.
        """
        try:
            seen: _Stat | None = _stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            seen = ()
        except OSError:
            seen = None
        before = self._seen
        if not forced and seen is not None and seen == before:
            return None
        access = self.read(may_be_empty=True)
        if access.is_empty and before is not None and not forced:
            # Many editors remove or empty a file just before they write it: the next look decides.
            self._seen = None
            return None
        return access

    def reload(self) -> None:
        """Has ``follow`` read it now, also where it has not changed."""
        self._reloading.set()

    async def follow(self, use: Callable[[AccessPolicy], None]) -> None:
        """Has each change used, for ever. Its owner cancels it. A file that is wrong changes nothing."""
        event, fault, looks = "", "", 0
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reloading.wait(), LOOK_SECONDS)
            forced = self._reloading.is_set()
            self._reloading.clear()
            logged, access = "" if forced else fault, None
            looks += 1
            try:
                reading = partial(self.read_again, forced=forced)
                access = await asyncio.get_running_loop().run_in_executor(self._reader, reading)
            except StartRefused as refused:
                event, fault = "access_not_reloaded", str(refused)
            if access is not None:
                use(access)
                if access.is_empty:
                    event, fault = "access_empty", f"{self._path} has no entry: no call is authorized"
                else:
                    fault = ""
                    _log.info("access_reloaded", identities=len(access.identities), quotas=len(access.quotas))
            if fault and (fault != logged or looks % LOOKS_UNTIL_TOLD_AGAIN == 0):
                looks = 0
                _log.error(event, error=fault)


def _stat(path: Path) -> _Stat:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def parse(content: bytes, path: str, *, may_be_empty: bool = False) -> AccessPolicy:
    """Reads the content of an access file.

    Args:
        content: The content.
        path: Where it is from, for messages.
        may_be_empty: Whether a file without an entry authorizes nobody; else it is refused.

    Raises:
        StartRefused: Something in it is wrong.
    """
    try:
        tables = tomllib.loads(content.decode())
    # ValueError is of TOML, of UTF-8, and of numbers with more digits than Python reads.
    except (ValueError, RecursionError) as error:
        raise StartRefused("access", f"{path} is not TOML: {_where(error)}") from None
    for name, value in tables.items():
        if name not in ("identity", "quota"):
            raise StartRefused("access", f"{path}: there is no {name!r}; write [[identity]] or [[quota]]")
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise StartRefused("access", f"{path}: write [[{name}]], with two brackets")
    if not any(tables.values()) and not may_be_empty:
        raise StartRefused("access", f"{path} has no [[identity]] and no [[quota]]: `idalloc token new` makes one")
    identities = [_read(_Identity, "identity", each, number, path) for number, each in _numbered(tables, "identity")]
    quotas = [_read(_Quota, "quota", each, number, path) for number, each in _numbered(tables, "quota")]
    _check_unique(identities, path)
    return AccessPolicy([_identity(each) for each in identities], [_quota(each) for each in quotas])


def _where(error: Exception) -> str:
    """Returns what is wrong with the TOML, without any of it: a secret may stand there."""
    match = re.search(r"\(at [^)]*\)$", str(error))
    return match[0].strip("()") if match else type(error).__name__


def _numbered(tables: dict[str, Any], name: str) -> Iterable[tuple[int, dict[str, Any]]]:
    return enumerate(tables.get(name, []), start=1)


def _read(kind: type[Any], table: str, values: dict[str, Any], number: int, path: str) -> Any:
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"there is no such key; there are {', '.join(kind.model_fields)}"
        if first["type"] == "tuple_type":
            message = 'must be a list, such as ["…"]'
        where = ": ".join(str(part) if isinstance(part, str) else f"number {part + 1}" for part in first["loc"])
        where = f"{where}: " if where else ""
        raise StartRefused("access", f"{path}: {_entry(table, number, values)}: {where}{_lower(message)}") from None


def _entry(table: str, number: int, values: dict[str, Any]) -> str:
    name = values.get("name")
    return f"[[{table}]] number {number}" + (f" ({name!r})" if isinstance(name, str) else "")


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _check_unique(identities: list[_Identity], path: str) -> None:
    for what, of in (
        ("name", lambda each: (each.name,)),
        ("token_sha256", lambda each: each.token_sha256),
        ("certificate", lambda each: each.certificate),
    ):
        owners: dict[str, _Identity] = {}
        for number, each in enumerate(identities, start=1):
            for value in of(each):
                if value in owners:
                    entry = _entry("identity", number, {"name": each.name})
                    why = f"stands twice, {owners[value].name!r} has the same: no two may share one"
                    if what == "name":
                        why += " (a second token of one goes into its list token_sha256)"
                    raise StartRefused("access", f"{path}: {entry}: {what}: {why}")
                owners[value] = each


def _identity(entry: _Identity) -> Identity:
    return Identity(
        entry.name,
        tuple(bytes.fromhex(digest) for digest in entry.token_sha256),
        entry.certificate,
        {ALLOCATE: Patterns(entry.allocate), READ: Patterns(entry.read), ADMIN: Patterns(entry.admin)},
        entry.ids_per_second,
        entry.calls_per_second,
        entry.streams,
    )


def _quota(entry: _Quota) -> SequenceQuota:
    return SequenceQuota(Patterns([entry.sequence]), entry.ids_per_second, entry.calls_per_second)
