"""The printer of all commands.

It escapes control characters in texts of servers, files and arguments.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

import typer

from idalloc._core.text import escaped

OUTPUTS = ("table", "text", "json")
# The number of ids in one write.
IDS_PER_WRITE = 50_000
# Returns a result as JSON; it is called only if that is printed.
Content = Callable[[], Mapping[str, Any]]


class Printer:
    """Prints the results of a command on standard output, as tables, as texts or as JSON.

    The context of each command has one, including commands of other packages: ``context.obj``.

    Args:
        output: One of ``OUTPUTS``; None for tables on a terminal, else texts.
    """

    def __init__(self, output: str | None) -> None:
        self.output = output or ("table" if sys.stdout.isatty() else "text")

    def lines(self, lines: range | Iterable[str], content: Content, *, one_line: bool = False) -> None:
        """Print ids or a report: a line each, also in a table.

        Args:
            lines: The ids, or the lines of the report.
            content: Returns the same for JSON.
            one_line: Whether the JSON object is one of several, each on a line.
        """
        if self.output == "json":
            _write(to_json(content(), None if one_line else 2))
        elif isinstance(lines, range):
            for start in range(0, len(lines), IDS_PER_WRITE):
                _write("\n".join(map(str, lines[start : start + IDS_PER_WRITE])) + "\n")
        else:
            texts = list(lines)
            # One check of the joined text: escaping each id would cost ten times as much as
            # printing them.
            _write("\n".join(texts if "".join(texts).isprintable() else map(escaped, texts)) + "\n")

    def record(self, fields: Iterable[tuple[str, str]], content: Content) -> None:
        """Print names and values: a line 'NAME: VALUE' each, or a table of two columns."""
        if self.output != "table":
            self.lines((f"{name}: {value}" for name, value in fields), content)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(show_header=False, box=None)
        for name, value in fields:
            table.add_row(Text(escaped(name), style="dim"), Text(escaped(value)))
        _write_table(table)

    def rows(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        content: Content,
        *,
        numbers: Sequence[str] = (),
        text: Iterable[str] | None = None,
    ) -> None:
        """Print a table with headings, or a line each with columns separated by tabs.

        Args:
            columns: The headings.
            rows: The cells of each row.
            content: Returns the same for JSON.
            numbers: The headings of columns that hold numbers, which are aligned right.
            text: The lines to print in place of columns separated by tabs.
        """
        if self.output == "json":
            _write(to_json(content()))
        elif self.output == "text":
            lines = ("\t".join(escaped(cell) or "-" for cell in row) for row in rows)
            _write("".join(f"{line}\n" for line in (lines if text is None else map(escaped, text))))
        else:
            from rich.table import Table
            from rich.text import Text

            table = Table(box=None, header_style="bold", pad_edge=False)
            for column in columns:
                number = column in numbers
                table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
            for row in rows:
                # Text: Rich would interpret markup in a plain string.
                table.add_row(*(Text(escaped(cell)) for cell in row))
            _write_table(table)


def to_json(content: Mapping[str, Any], indent: int | None = 2) -> str:
    """Return an object as JSON in ASCII."""
    return json.dumps(content, indent=indent) + "\n"


def write_stderr(message: str) -> None:
    """Print a message as one line on standard error."""
    _write(escaped(" ".join(message.split())) + "\n", sys.stderr)


def failure(message: str, code: int = 1) -> typer.Exit:
    """Print a message as one line on standard error, and return the exit of the command."""
    write_stderr(message)
    return typer.Exit(code)


def _write_table(table: Any) -> None:
    from rich.console import Console

    console = Console()
    with console.capture() as captured:
        console.print(table)
    _write(captured.get())


def _write(text: str, stream: TextIO | None = None) -> None:
    """Write a text; characters that the stream's encoding lacks are escaped."""
    stream = stream or sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))
