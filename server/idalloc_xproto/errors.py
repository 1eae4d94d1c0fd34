"""Errors of the X Protocol, with MySQL's codes, SQL states and texts."""

from idalloc_server.domain.errors import QuotaExceeded, Refusal, StoreOutcomeUnknown, StoreUnavailable


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
