"""`--past-table`: the largest id in a column of a table in CrateDB."""

import logging
import os
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

from idalloc.cli import _output

FORM = "crate://user@host:4200/schema.table.column"
# Where the user's password is: the variable that CrateDB's own shell, crash, reads.
PASSWORD = "CRATEPW"  # noqa: S105  # a name


class Column(NamedTuple):
    """A column, and the database that it is in."""

    host: str
    user: str | None
    schema: str
    table: str
    column: str

    @property
    def relation(self) -> str:
        """The table as SQL names it."""
        return f"{_quoted(self.schema)}.{_quoted(self.table)}"


def read_url(text: str | Column) -> Column:
    """Reads where the column is. In a name, reserved characters and dots are percent-encoded."""
    if isinstance(text, Column):
        return text
    if ":" in text.partition("://")[2].rpartition("@")[0]:
        raise typer.BadParameter(
            f"a list of processes would show its password to all on this machine: put it into the variable {PASSWORD}"
        )
    try:
        parts = urlsplit(text)
        port = parts.port or 4200
    except ValueError:
        raise _refused() from None
    names = [unquote(name) for name in parts.path.removeprefix("/").split(".")]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = options.pop("tls", "false")
    wrong = parts.scheme != "crate" or not parts.hostname or parts.fragment
    if wrong or options or tls not in ("true", "false"):
        raise _refused()
    if len(names) != 3 or not all(names):
        raise typer.BadParameter(f"must name schema, table and column: {FORM}")
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    host = f"{'https' if tls == 'true' else 'http'}://{name}:{port}"
    return Column(host, unquote(parts.username) if parts.username else None, *names)


def furthest(column: Column, *, smallest: bool, timeout: float) -> int | None:
    """Finds the largest id in the column, or the smallest one; None where there is none.

    Raises:
        typer.Exit: It cannot be read; why was said.
    """
    try:
        from crate.client import exceptions
        from crate.client.http import Client
    except ModuleNotFoundError as error:
        raise _gave_up("--past-table needs the package crate: pip install 'idalloc[crate]'", 2) from error
    logging.getLogger("crate").addHandler(logging.NullHandler())  # what it would print is said below, in one line
    name = _quoted(column.column)
    # Not connect(): of why it failed, that leaves nothing but one long text.
    password = os.environ.get(PASSWORD) if column.user else None
    client = Client(column.host, username=column.user, password=password, timeout=timeout)
    try:
        # A search sees what was refreshed, up to a second ago: without this, rows just written would be missed.
        client.sql(f"REFRESH TABLE {column.relation}")
        reply: Any = client.sql(f"SELECT {'MIN' if smallest else 'MAX'}({name}) FROM {column.relation}")  # noqa: S608  # quoted
        found = reply["rows"][0][0]
    except exceptions.ConnectionError as error:
        raise _gave_up(f"cannot reach CrateDB at {column.host}: {_cause(error)}", 1) from error
    except exceptions.Error as error:
        raise _gave_up(f"CrateDB at {column.host}: {str(error).partition(chr(10))[0]}", 1) from error
    finally:
        client.close()
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise _gave_up(f"{column.relation}.{name} holds no whole numbers, but {found!r}", 1)
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cause(error: BaseException) -> str:
    """What the system said, without what each package on the way here put around it."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return getattr(error, "strerror", None) or str(error)


def _refused() -> typer.BadParameter:
    # Nothing of it is repeated: there may be a password in it.
    return typer.BadParameter(f"must be written {FORM}, with ?tls=true behind it for TLS")


def _gave_up(message: str, code: int) -> typer.Exit:
    _output.say(message)
    return typer.Exit(code)
