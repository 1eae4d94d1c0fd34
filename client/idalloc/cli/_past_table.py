"""`--past-table`: the largest id in a column of a table in CrateDB."""

import sys
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

FORM = "crate://user@host:4200/schema.table.column"


class Column(NamedTuple):
    """A column, and the database that it is in."""

    host: str
    user: str | None
    password: str | None
    schema: str
    table: str
    column: str

    @property
    def relation(self) -> str:
        """The table as SQL names it."""
        return f"{_quoted(self.schema)}.{_quoted(self.table)}"


def read_url(text: str | Column) -> Column:
    """Reads where the column is. In a password or a name, reserved characters and dots are percent-encoded."""
    if isinstance(text, Column):
        return text
    try:
        parts = urlsplit(text)
        port = parts.port or 4200
    except ValueError:
        raise _refused() from None
    names = [unquote(name) for name in parts.path.removeprefix("/").split(".")]
    if len(names) == 2:
        names.insert(0, "doc")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = options.pop("tls", "false")
    wrong = parts.scheme != "crate" or not parts.hostname or parts.fragment or len(names) != 3 or not all(names)
    if wrong or options or tls not in ("true", "false"):
        raise _refused()
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    host = f"{'https' if tls == 'true' else 'http'}://{name}:{port}"
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return Column(host, user, password, *names)


def furthest(column: Column, *, smallest: bool, timeout: float) -> int | None:
    """Finds the largest id in the column, or the smallest one; None where there is none.

    Raises:
        typer.Exit: It cannot be read; why was said.
    """
    try:
        from crate import client
        from crate.client.exceptions import Error
    except ModuleNotFoundError as error:
        raise _gave_up("--past-table needs the package crate: pip install 'idalloc[crate]'", 2) from error
    name = _quoted(column.column)
    connection = None
    try:
        connection = client.connect(
            column.host, username=column.user, password=column.password, timeout=timeout, error_trace=False
        )
        cursor = connection.cursor()
        # A search sees what was refreshed, up to a second ago: without this, rows just written would be missed.
        cursor.execute(f"REFRESH TABLE {column.relation}")
        cursor.execute(f"SELECT {'MIN' if smallest else 'MAX'}({name}) FROM {column.relation}")  # noqa: S608  # quoted
        found: Any = cursor.fetchone()[0]
    except Error as error:
        raise _gave_up(f"CrateDB at {column.host}: {error}", 1) from error
    finally:
        if connection is not None:
            connection.close()
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise _gave_up(f"{column.relation}.{name} holds no whole numbers, but {found!r}", 1)
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _refused() -> typer.BadParameter:
    # Nothing of it is repeated: there may be a password in it.
    return typer.BadParameter(f"must be written {FORM}, with ?tls=true behind it for TLS")


def _gave_up(message: str, code: int) -> typer.Exit:
    print(" ".join(message.split()), file=sys.stderr)
    return typer.Exit(code)
