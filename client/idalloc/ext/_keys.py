"""Sequences for the keys of tables: created past existing rows, or compared with them."""

import os
import shlex
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import chain

import grpc

from idalloc._core.defaults import DEFAULT_TIMEOUT
from idalloc._core.errors import IdallocError, InvalidConfig, PermissionDenied, SequenceExists, SequenceNotFound
from idalloc._core.types import Sequence
from idalloc._sync.client import Client

# The largest id of a sequence.
MAX_ID = 2**63 - 2
# A larger statement gets its ids by a stream, which no server's max_ids_per_call limits.
_LARGEST_CALL = 10_000
# The options of the connection, and the command's variables in whose place they are.
_VARIABLES = {
    "server": "IDALLOC_SERVER",
    "token_file": "IDALLOC_TOKEN_FILE",
    "token_insecure": "IDALLOC_TOKEN_INSECURE",
    "tls": "IDALLOC_TLS",
    "tls_ca": "IDALLOC_CA",
    "tls_cert": "IDALLOC_CERT",
    "tls_key": "IDALLOC_KEY",
    "tls_server_name": "IDALLOC_SERVER_NAME",
}
_OPTIONS = {**_VARIABLES, "sequence": "", "existing": "check", "margin": "0", "timeout": f"{DEFAULT_TIMEOUT:g}"}


class KeyConflict(IdallocError, reason="KEY_CONFLICT", code=grpc.StatusCode.FAILED_PRECONDITION):
    """A table's sequence does not fit its rows or its column. The message has the next step."""


class KeySource:
    """The client and the options of a program whose tables have a sequence each.

    Args:
        given: Options, as text; the others come from the environment, or have their defaults.
        pattern: The default of the option ``sequence``.
        prefix: What errors put before the name of an option.

    Raises:
        InvalidConfig: An option is unknown or invalid.
    """

    def __init__(self, given: Mapping[str, str], *, pattern: str, prefix: str = "") -> None:
        self._prefix = prefix
        for name in given.keys() - _OPTIONS.keys():
            close = get_close_matches(name, _OPTIONS, 1)
            raise self._invalid(name, f"is unknown{f'; did you mean {prefix}{close[0]}?' if close else ''}")
        options = {**_OPTIONS, "sequence": pattern, **given}
        self._pattern = options["sequence"]
        self._existing = options["existing"]
        try:
            self.name("", "")
        except (LookupError, ValueError, AttributeError):
            raise self._invalid("sequence", f"may have {{schema}} and {{table}}, not {self._pattern!r}") from None
        if self._existing not in ("check", "ignore"):
            raise self._invalid("existing", f"must be check or ignore, not {self._existing!r}")
        if not options["margin"].isdecimal():
            raise self._invalid("margin", f"must be a number of ids, not {options['margin']!r}")
        self._margin = int(options["margin"])
        try:
            self.timeout = float(options["timeout"])
        except ValueError:
            raise self._invalid("timeout", f"must be a number of seconds, not {options['timeout']!r}") from None
        own = {_VARIABLES[name]: value for name, value in given.items() if name in _VARIABLES}
        if "token_file" in given:
            own["IDALLOC_TOKEN"] = ""
        self.client = Client.from_environment(timeout=self.timeout, environ={**os.environ, **own})

    def name(self, schema: str, table: str) -> str:
        """Return the name of a table's sequence."""
        return self._pattern.format(schema=schema, table=table)

    def prepare(self, name: str, *, column: str, largest: int | None, limit: int) -> None:
        """Create the sequence of a table past its rows, or compare it with them if it exists.

        Args:
            name: The sequence.
            column: The table's key, as errors name it.
            largest: The key's largest value, read before this call; None for an empty table.
            limit: The largest value of the column's type.

        Raises:
            KeyConflict: The sequence would issue keys that rows have, or that do not fit.
        """
        try:
            found = self.client.sequences.get(name)
        except SequenceNotFound:
            found = self._create(name, column, largest, limit)
        self._compare(found, column, largest)

    def allocate(self, name: str, count: int) -> Iterator[int]:
        """Return new ids, by one call."""
        if count <= _LARGEST_CALL:
            return iter(self.client.allocate_range(name, count))
        return chain.from_iterable([*self.client.stream_ranges(name, count, timeout=self.timeout)])

    def _create(self, name: str, column: str, largest: int | None, limit: int) -> Sequence:
        # By one call: a sequence that begins at 1 and is advanced later stays at 1 if this process
        # dies in between.
        start = max(largest or 0, 0) + 1 + self._margin
        create = f"idalloc sequences create {shlex.quote(name)}"
        past = f"{create} --start {start}"
        if start > limit:
            step = f"declare it BigInteger; or, if the database has a BIGINT, create the sequence: {past}"
            if start > MAX_ID:
                step = f"create a sequence below them, {create}, and set {self._prefix}existing=ignore"
            raise KeyConflict(f"{column} has {largest}, and keys from {start} exceed its limit, {limit}: {step}")
        try:
            return self.client.sequences.create(name, start=start, max_value=limit)
        except SequenceExists:  # another process was first
            return self.client.sequences.get(name)
        except PermissionDenied as error:
            bound = f" --max-value {limit}" if limit < MAX_ID else ""
            raise KeyConflict(f"sequence {name!r} does not exist, and {error}; create it: {past}{bound}") from error

    def _compare(self, found: Sequence, column: str, largest: int | None) -> None:
        if found.reset not in ("", "never") or (found.step or 1) < 0:
            raise KeyConflict(f"sequence {found.name!r} restarts or counts down: it cannot number {column}")
        last = (found.start or 1) - 1 if found.last_value is None else found.last_value
        if self._existing == "check" and largest is not None and largest > last:
            raise KeyConflict(
                f"{column} has {largest}, past the last value of sequence {found.name!r}, {last}: it would issue keys "
                f"that rows have; run: idalloc sequences advance {shlex.quote(found.name)} --past {largest} "
                f"(or set {self._prefix}existing=ignore)"
            )

    def _invalid(self, name: str, problem: str) -> InvalidConfig:
        return InvalidConfig(f"{self._prefix}{name}: {problem}", metadata={"field": name})
