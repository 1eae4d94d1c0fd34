"""Errors of statements on documents as MySQL's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from idalloc_server.documents import errors
from idalloc_server.xproto.errors import XError, not_supported, unknown_collection, unknown_schema

# The errors whose text does not depend on the error.
_ERRORS: dict[type[errors.DocumentsError], Callable[[], XError]] = {
    errors.DuplicateKey: lambda: XError(5116, "Document contains a field value that is not unique but required to be"),
    errors.NotADocument: lambda: XError(5115, "Document is missing a required field"),
    errors.TooDeep: lambda: XError(3157, "The JSON document exceeds the maximum depth.", "22032"),
    errors.Busy: lambda: XError(1205, "Lock wait timeout exceeded; try restarting transaction"),
    errors.WriteConflict: lambda: XError(
        1213, "Deadlock found when trying to get lock; try restarting transaction", "40001"
    ),
    errors.InvalidEscape: lambda: XError(1210, "Incorrect arguments to ESCAPE"),
    errors.NoJsonToLookFor: lambda: XError(
        3146,
        "Invalid data type for JSON data in argument 2 to function json_contains;"
        " a JSON string or JSON type is required.",
        "22032",
    ),
    errors.NoNumberInJson: lambda: XError(
        3156, "Invalid JSON value for CAST to DOUBLE from column json_extract at row 1", "22018"
    ),
    errors.NumberTooLarge: lambda: XError(
        3155, "Out of range JSON value for CAST to DOUBLE from column json_extract at row 1", "22003"
    ),
    errors.TooManyToSort: lambda: XError(
        1038, "Out of sort memory, consider increasing server sort buffer size", "HY001"
    ),
}


@contextmanager
def mapped() -> Iterator[None]:
    """Raise errors of the domain as MySQL's."""
    try:
        yield
    except errors.UnknownSchema as error:
        raise unknown_schema(error.schema) from error
    except errors.UnknownCollection as error:
        raise unknown_collection(error.schema, error.name) from error
    except errors.NotServed as error:
        raise not_supported(error.what) from error
    except errors.NotANumber as error:
        raise XError(1292, f"Truncated incorrect DOUBLE value: '{error.text}'", "22007") from error
    except errors.InvalidJson as error:
        where = (
            "1 to function cast_as_json"
            if isinstance(error, errors.InvalidLiteral)
            else "2 to function json_merge_patch"
        )
        text = f'Invalid JSON text in argument {where}: "{error.reason}" at position {error.position}.'
        raise XError(3141, text, "22032") from error
    except errors.DocumentsError as error:
        if type(error) not in _ERRORS:
            raise XError(1105, str(error)) from error
        raise _ERRORS[type(error)]() from error
