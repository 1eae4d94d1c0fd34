"""Errors of the X Protocol, with MySQL's codes, SQL states and texts."""

from collections.abc import Callable
from typing import Any

from idalloc_server.domain.errors import QuotaExceeded, Refusal, StoreOutcomeUnknown, StoreUnavailable
from idalloc_xproto.documents import errors


class XError(Exception):
    """An error that the client receives."""

    def __init__(self, code: int, message: str, sql_state: str = "HY000", *, fatal: bool = False) -> None:
        super().__init__(message)
        self.code = code  # MySQL's
        self.message = message
        self.sql_state = sql_state  # of five characters
        self.fatal = fatal  # whether it ends the connection

    def __eq__(self, other: object) -> bool:
        return isinstance(other, XError) and vars(self) == vars(other)

    __hash__ = Exception.__hash__


def parse_error() -> XError:
    """Return the error of a frame that cannot be parsed."""
    return XError(5000, "Parse error unserializing protobuf message", fatal=True)


def not_supported(what: str) -> XError:
    """Return the error of a feature of MySQL that idalloc does not serve."""
    return XError(1235, f"This version of idalloc doesn't yet support '{what}'", "42000")


def no_schema() -> XError:
    """Return the error of a collection without a schema."""
    return XError(1046, "No database selected", "3D000")


def unknown_schema(schema: str) -> XError:
    """Return the error of a schema that does not exist."""
    return XError(1049, f"Unknown database '{schema}'", "42000")


def unknown_collection(schema: str, name: str) -> XError:
    """Return the error of a collection that does not exist."""
    return XError(1146, f"Table '{schema}.{name}' doesn't exist", "42S02")


def text_of(content: bytes) -> str:
    """Decode a text that a client sent as UTF-8.

    Raises:
        XError: The content is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise XError(1300, f"Invalid utf8mb4 character string: '{content[error.start :][:6].hex().upper()}'") from None


def from_refusal(refusal: Refusal) -> XError:
    """Return the error for a refusal: 1226 for a quota, otherwise 1105 with its first line."""
    if isinstance(refusal, QuotaExceeded):
        return XError(1226, str(refusal), "42000")
    lines = str(refusal).splitlines() or [""]
    if isinstance(refusal, StoreOutcomeUnknown):
        return XError(1105, f"the outcome is unknown, the statement may have been applied: {lines[0]}")
    if isinstance(refusal, StoreUnavailable):
        return XError(1105, f"the store is unavailable, and nothing was written: {lines[0]}")
    return XError(1105, lines[0])


# The errors whose text in MySQL has a part of the error in it.
_ERRORS: dict[type[errors.DocumentsError], Callable[[Any], XError]] = {
    errors.UnknownSchema: lambda error: unknown_schema(error.schema),
    errors.UnknownCollection: lambda error: unknown_collection(error.schema, error.name),
    errors.NotServed: lambda error: not_supported(error.what),
    errors.PatternTooComplex: lambda error: not_supported(error.what),
    errors.NotANumber: lambda error: XError(1292, f"Truncated incorrect DOUBLE value: '{error.text}'", "22007"),
}
# MySQL's codes, texts and SQL states of the errors whose text is always the same.
_TEXTS: dict[type[errors.DocumentsError], tuple[int, str, str]] = {
    errors.DuplicateKey: (5116, "Document contains a field value that is not unique but required to be", "HY000"),
    errors.NotADocument: (5115, "Document is missing a required field", "HY000"),
    errors.TooDeep: (3157, "The JSON document exceeds the maximum depth.", "22032"),
    errors.Busy: (1205, "Lock wait timeout exceeded; try restarting transaction", "HY000"),
    errors.WriteConflict: (1213, "Deadlock found when trying to get lock; try restarting transaction", "40001"),
    errors.InvalidEscape: (1210, "Incorrect arguments to ESCAPE", "HY000"),
    errors.NoNumberInJson: (3156, "Invalid JSON value for CAST to DOUBLE from column json_extract at row 1", "22018"),
    errors.NumberTooLarge: (
        3155,
        "Out of range JSON value for CAST to DOUBLE from column json_extract at row 1",
        "22003",
    ),
    errors.TooManyToSort: (1038, "Out of sort memory, consider increasing server sort buffer size", "HY001"),
    errors.CallerLeft: (1317, "Query execution was interrupted", "70100"),
    errors.TookTooLong: (3024, "Query execution was interrupted, maximum statement execution time exceeded", "HY000"),
    errors.DocumentTooLarge: (3150, "The JSON value is too big to be stored in a JSON column.", "22032"),
}
# The codes and SQL states of the errors that keep idalloc's text.
_CODES: dict[type[errors.DocumentsError], tuple[int, str]] = {
    errors.TooMuchWork: (1104, "42000"),
    errors.ArgumentsTooLarge: (1153, "08S01"),
    errors.ResultTooLarge: (1301, "HY000"),
    errors.TooManyValues: (3150, "22032"),
}


def to_xerror(error: errors.DocumentsError) -> XError:
    """Return MySQL's error for one of ``documents``."""
    if isinstance(error, errors.InvalidJson):
        where = (
            "1 to function cast_as_json"
            if isinstance(error, errors.InvalidLiteral)
            else "2 to function json_merge_patch"
        )
        text = f'Invalid JSON text in argument {where}: "{error.reason}" at position {error.position}.'
        return XError(3141, text, "22032")
    if known := _ERRORS.get(type(error)):
        return known(error)
    if fixed := _TEXTS.get(type(error)):
        code, text, state = fixed
        return XError(code, text, state)
    code, state = _CODES.get(type(error), (1105, "HY000"))
    return XError(code, str(error), state)


class _AsXErrors:
    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, errors.DocumentsError):
            raise to_xerror(error) from error


as_xerrors = _AsXErrors()  # raises MySQL's errors in place of those of ``documents`` in a ``with``
