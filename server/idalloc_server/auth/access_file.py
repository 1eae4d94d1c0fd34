"""The access file: identities, roles and quotas in TOML, read at start and after each change."""

import os
import re
import stat
import tomllib
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from idalloc_server.auth.access import ADMIN, ALLOCATE, ANONYMOUS, READ, AccessPolicy, Identity, SequenceQuota
from idalloc_server.domain.errors import StartRefused, shown_path, unreadable
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.domain.sequences.text import is_safe
from idalloc_server.files.watch import FileWatch

# After how many checks the log repeats the error of an invalid file. The previous policy stays
# active until the file is valid.
POLLS_UNTIL_LOGGED_AGAIN = 120

# The types of names in certificates (SANs).
NAME_TYPES = ("dns", "uri", "ip", "email")

_DIGEST = re.compile(r"[0-9a-f]{64}")
# The form of the tokens that `idalloc token new` creates.
_TOKEN = re.compile(r"idalloc_[\w-]{43}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Errors do not show a longer unknown key: it may be a token, or its SHA-256. The longest known key
# has 16 characters.
_LONGEST_SHOWN_KEY = 20
_log = structlog.get_logger("idalloc")


def _check_digest(value: str) -> str:
    value = value.lower()
    if not _DIGEST.fullmatch(value):
        # The value may be the token itself: never print it.
        raise ValueError("must be the SHA-256 of a token: 64 hexadecimal digits, as `idalloc token new` prints it")
    return value


def _check_pattern(value: str) -> str:
    if not 0 < len(value) <= 255 or _CONTROL.search(value):
        raise ValueError("must be 1 to 255 characters without control characters")
    return value


def _check_name(value: str) -> str:
    if not is_safe(_check_pattern(value)):
        raise ValueError("must not contain line separators or bidirectional marks: errors and the audit log show it")
    return value


def _check_certificates(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in map(_check_name, values):
        if _TOKEN.search(value):
            # Never print a token.
            raise ValueError("must be names in certificates; a token's SHA-256 goes into token_sha256")
    typed = tuple(map(_add_type, values))
    for value in values:
        if value.partition(":")[0] not in NAME_TYPES:
            line = ", ".join(map(dumps, typed))
            raise ValueError(f"{value!r} has no type, such as dns: or uri:; write certificate = [{line}]")
    return typed


def _add_type(value: str) -> str:
    """Return a name in a certificate with its type; a missing type is guessed."""
    name_type, _, name = value.partition(":")
    if name_type == "ip":
        try:
            return f"ip:{ip_address(name)}"
        except ValueError:
            raise ValueError(f"{value!r} is not an IP address") from None
    if name_type.lower() in NAME_TYPES:
        return f"{name_type.lower()}:{name}"
    with suppress(ValueError):
        return f"ip:{ip_address(value)}"
    return f"{'uri' if '://' in value else 'email' if '@' in value else 'dns'}:{value}"


# Patterns may contain what names may not: an older version may have created a sequence with such a
# name.
_Patterns = tuple[Annotated[str, AfterValidator(_check_pattern)], ...]
_Limit = Annotated[int, Field(ge=1, le=2**53, strict=True)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _IdentityEntry(_Entry):
    name: Annotated[str, AfterValidator(_check_name)]
    token_sha256: tuple[Annotated[str, AfterValidator(_check_digest)], ...] = ()
    certificate: Annotated[tuple[str, ...], AfterValidator(_check_certificates)] = ()
    allocate: _Patterns = ()
    read: _Patterns = ()
    admin: _Patterns = ()
    ids_per_second: _Limit | None = None
    calls_per_second: _Limit | None = None
    streams: _Limit | None = None

    @model_validator(mode="after")
    def _check_credentials(self) -> "_IdentityEntry":
        if not self.token_sha256 and not self.certificate:
            raise ValueError("token_sha256 or certificate is required")
        if self.name == ANONYMOUS.name:
            raise ValueError(f"name: {self.name!r} is reserved for unauthenticated callers; choose another name")
        return self


class _QuotaEntry(_Entry):
    sequence: Annotated[str, AfterValidator(_check_pattern)]
    ids_per_second: _Limit | None = None
    calls_per_second: _Limit | None = None

    @model_validator(mode="after")
    def _check_limits(self) -> "_QuotaEntry":
        if self.ids_per_second is None and self.calls_per_second is None:
            raise ValueError("ids_per_second or calls_per_second is required")
        return self


class AccessFile:
    """The access file at a path."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        # Many editors remove or empty a file just before they write it: a second check decides.
        self.watch = FileWatch([self._path], self._load, is_settled=lambda policy: not policy.is_empty)
        self._is_readable = False  # whether any user of the machine may read it
        # Whether a file that is missing or has no entry gives an empty policy, which rejects every
        # call, as it does after the start; otherwise it is an error.
        self._may_be_empty = False

    def read(self, *, may_be_empty: bool = False) -> AccessPolicy:
        """Read the file at start; it must have an entry, unless ``may_be_empty``.

        Raises:
            FileUnreadable: The file cannot be read.
            StartRefused: The file is invalid, or any user may write it. The message names the entry
                and the fix, and never contains a secret.
        """
        self._may_be_empty = may_be_empty
        policy = self.watch.read()
        self._may_be_empty = True
        return policy

    def _load(self) -> AccessPolicy:
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read()
        except OSError as error:
            if not self._may_be_empty or not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise unreadable("access_file", self._path, error) from None
            mode = 0
            content = b""
        if mode & stat.S_IWOTH:
            path = shown_path(self._path)
            raise StartRefused("access_file", f"any user of this machine may write {path}; run chmod o-w on it")
        self._is_readable = bool(mode & stat.S_IROTH)
        return parse(content, str(self._path), may_be_empty=self._may_be_empty)

    async def follow(self, apply: Callable[[AccessPolicy], None]) -> None:
        """Pass each new policy to ``apply`` until cancelled.

        While the file is invalid, the previous policy stays. Begins with a warning if any user of
        the machine may read the file.
        """
        if self._is_readable:
            _log.warning("access_file_readable", path=str(self._path))
        event = error = ""
        polls = 0
        async for found, forced in self.watch.poll():
            logged = "" if forced else error
            polls += 1
            if isinstance(found, StartRefused):
                event = "access_not_reloaded"
                error = str(found)
            elif found is not None:
                apply(found)
                event = "access_empty"
                error = f"{self._path} has no [[identity]] and no [[quota]]: the server rejects every call"
                if not found.is_empty:
                    error = ""
                    _log.info("access_reloaded", identities=len(found.identities), quotas=len(found.quotas))
            if error and (error != logged or polls % POLLS_UNTIL_LOGGED_AGAIN == 0):
                polls = 0
                _log.error(event, error=error)


def parse(content: bytes, path: str, *, may_be_empty: bool = False) -> AccessPolicy:
    """Return the policy in the content of an access file.

    Args:
        content: The file's bytes.
        path: The file's path, for errors.
        may_be_empty: Whether a file without an entry gives an empty policy; otherwise it is an
            error.

    Raises:
        StartRefused: The content is invalid.
    """
    try:
        tables = tomllib.loads(content.decode())
    # ValueError: invalid TOML or UTF-8, or a number with more digits than Python reads.
    except (ValueError, RecursionError) as error:
        # Only the position of the error, not the text there: it may be a secret.
        match = re.search(r"\(at [^)]*\)$", str(error))
        problem = match[0].strip("()") if match else type(error).__name__
        raise StartRefused("access_file", f"{path} is not TOML: {problem}") from None
    for name, value in tables.items():
        if name not in ("identity", "quota"):
            raise StartRefused(
                "access_file", f"{path}: unknown table {_shown_key(name)}; write [[identity]] or [[quota]]"
            )
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise StartRefused(
                "access_file", f"{path}: {name!r} must be an array of tables; write [[{name}]] with two brackets"
            )
    if not any(tables.values()) and not may_be_empty:
        raise StartRefused(
            "access_file", f"{path} has no [[identity]] and no [[quota]]; `idalloc token new` creates an identity"
        )
    identities = _parse_entries(_IdentityEntry, "identity", tables, path)
    quotas = _parse_entries(_QuotaEntry, "quota", tables, path)
    _check_unique(identities, path)
    return AccessPolicy(
        [_to_identity(each) for each in identities],
        [SequenceQuota(Patterns([each.sequence]), each.ids_per_second, each.calls_per_second) for each in quotas],
    )


def _parse_entries(kind: type[Any], table: str, tables: dict[str, Any], path: str) -> list[Any]:
    entries = []
    for number, values in enumerate(tables.get(table, []), start=1):
        try:
            entries.append(kind(**values))
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            message = first["msg"].removeprefix("Value error, ")
            location = first["loc"]
            if first["type"] == "extra_forbidden":
                message = f"unknown key {_shown_key(str(location[0]))}; known keys: {', '.join(kind.model_fields)}"
                location = ()
            if first["type"] == "tuple_type":
                message = 'must be a list, such as ["…"]'
            keys = [f"{key}: " if isinstance(key, str) else f"number {key + 1}: " for key in location]
            where = f"{path}: {_describe(table, number, values)}: {''.join(keys)}"
            raise StartRefused("access_file", f"{where}{message[:1].lower()}{message[1:]}") from None
    return entries


def _shown_key(key: str) -> str:
    return repr(key) if len(key) <= _LONGEST_SHOWN_KEY else f"of {len(key)} characters"


def _describe(table: str, number: int, values: dict[str, Any]) -> str:
    name = values.get("name")
    return f"[[{table}]] number {number}" + (f" ({name!r})" if isinstance(name, str) else "")


def _check_unique(identities: list[_IdentityEntry], path: str) -> None:
    for key in ("name", "token_sha256", "certificate"):
        owners: dict[str, _IdentityEntry] = {}
        for number, each in enumerate(identities, start=1):
            for value in [each.name] if key == "name" else getattr(each, key):
                if value in owners:
                    entry = _describe("identity", number, {"name": each.name})
                    why = f"duplicate: identity {owners[value].name!r} has the same"
                    if key == "name":
                        why += " (further tokens of one identity go into its list token_sha256)"
                    raise StartRefused("access_file", f"{path}: {entry}: {key}: {why}")
                owners[value] = each


def _to_identity(entry: _IdentityEntry) -> Identity:
    return Identity(
        name=entry.name,
        tokens=tuple(bytes.fromhex(digest) for digest in entry.token_sha256),
        certificates=entry.certificate,
        roles={ALLOCATE: Patterns(entry.allocate), READ: Patterns(entry.read), ADMIN: Patterns(entry.admin)},
        ids_per_second=entry.ids_per_second,
        calls_per_second=entry.calls_per_second,
        streams=entry.streams,
    )
