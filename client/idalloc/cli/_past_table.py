"""`--past-table`: the largest id in a column of a table in CrateDB."""

import logging
import os
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

from idalloc.cli._printer import failure

FORM = "crate://user@host:4200/schema.table.column"
# The environment variable of the user's password, which CrateDB's own shell, crash, reads.
PASSWORD = "CRATEPW"  # noqa: S105  # a name


class Column(NamedTuple):
    """A column of a table, and the CrateDB host to query."""

    host: str
    user: str | None
    schema: str
    table: str
    column: str

    @property
    def relation(self) -> str:
        """The table's quoted name in SQL."""
        return f"{_quoted(self.schema)}.{_quoted(self.table)}"


def parse_url(text: str | Column) -> Column:
    """Parse the URL of a column. Reserved characters and dots in names are percent-encoded."""
    if isinstance(text, Column):
        return text
    if ":" in text.partition("://")[2].rpartition("@")[0]:
        raise typer.BadParameter(
            f"contains a password, which every user of this machine could see: set it in the variable {PASSWORD}"
        )
    # The message does not repeat the URL: it may contain a password.
    invalid_url = typer.BadParameter(f"must have the form {FORM}; append ?tls=true for TLS")
    try:
        parts = urlsplit(text)
        port = parts.port or 4200
    except ValueError:
        raise invalid_url from None
    names = [unquote(name) for name in parts.path.removeprefix("/").split(".")]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = options.pop("tls", "false")
    if parts.scheme != "crate" or not parts.hostname or parts.fragment or options or tls not in ("true", "false"):
        raise invalid_url
    if len(names) != 3 or not all(names):
        raise typer.BadParameter(f"must name schema, table and column: {FORM}")
    schema, table, column = names
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    host = f"{'https' if tls == 'true' else 'http'}://{name}:{port}"
    user = unquote(parts.username) if parts.username else None
    return Column(host, user, schema=schema, table=table, column=column)


def query_last_id(column: Column, *, smallest: bool, timeout: float) -> int | None:
    """Query the largest id of a column, or the smallest one; None if the column has no value.

    Raises:
        typer.Exit: The column cannot be read within `timeout` seconds. The error was printed.
    """
    try:
        from crate.client import exceptions
        from crate.client.http import Client
    except ModuleNotFoundError as error:
        raise failure("--past-table needs the package crate: pip install 'idalloc[crate]'", 2) from error
    logging.getLogger("crate").addHandler(logging.NullHandler())  # the errors below report the same in one line
    name = _quoted(column.column)
    # Not crate.client.connect(): its errors lack the cause.
    password = os.environ.get(PASSWORD) if column.user else None
    client = Client(column.host, username=column.user, password=password, timeout=timeout)
    try:
        # Without a refresh, a query misses rows written in the last second.
        client.sql(f"REFRESH TABLE {column.relation}")
        reply: Any = client.sql(f"SELECT {'MIN' if smallest else 'MAX'}({name}) FROM {column.relation}")  # noqa: S608  # quoted
        value = reply["rows"][0][0]
    except exceptions.ConnectionError as error:
        raise failure(f"cannot reach CrateDB at {column.host}: {_cause(error)}") from error
    except exceptions.Error as error:
        raise failure(f"CrateDB at {column.host}: {str(error).partition(chr(10))[0]}") from error
    finally:
        client.close()
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise failure(f"{column.relation}.{name} must hold whole numbers, not {value!r}")
    return value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cause(error: BaseException) -> str:
    """Return the message of the innermost exception, which is the operating system's."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return getattr(error, "strerror", None) or str(error)
