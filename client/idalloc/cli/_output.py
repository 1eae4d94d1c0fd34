"""The printer of all commands. It escapes control characters in texts of servers, files and arguments."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TextIO

from idalloc._core.text import escaped

# The number of ids in one write.
IDS_PER_WRITE = 50_000


def write_lines(texts: Iterable[str]) -> None:
    """Print each text on a line, in one write."""
    lines = list(texts)
    # One check of the joined text: escaping each id would cost ten times as much as printing them.
    _write_lines(lines if "".join(lines).isprintable() else map(escaped, lines))


def write_columns(cells: Iterable[str]) -> None:
    """Print texts on one line, separated by tabs."""
    sys.stdout.write("\t".join(map(escaped, cells)) + "\n")


def write_stderr(message: str) -> None:
    """Print a message as one line on standard error."""
    sys.stderr.write(_encodable(escaped(" ".join(message.split())), sys.stderr) + "\n")


def write_range(ids: range, *, as_range: bool) -> None:
    """Print each id of a range on a line, or one line with its first id, last id and step."""
    if as_range:
        sys.stdout.write(f"{ids[0]} {ids[-1]} {ids.step}\n")
        return
    for start in range(0, len(ids), IDS_PER_WRITE):
        _write_lines(map(str, ids[start : start + IDS_PER_WRITE]))


def write_json(content: Any, *, one_line: bool = False) -> None:
    """Print a reply as ASCII JSON."""
    sys.stdout.write(json.dumps(content, indent=None if one_line else 2) + "\n")


def to_json(content: Any) -> str:
    """Return a report as ASCII JSON."""
    return json.dumps(content, indent=2) + "\n"


def write_report(text: str) -> None:
    """Print a report whose texts are already escaped."""
    sys.stdout.write(_encodable(text, sys.stdout))


def write_fields(reply: Any) -> None:
    """Print the fields of a dataclass. Those without a value are omitted."""
    values = ((field.name.replace("_", " "), getattr(reply, field.name)) for field in fields(reply))
    write_pairs((name, str(value)) for name, value in values if value not in (None, ""))


def write_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values: as a table on a terminal, else as a line 'NAME: VALUE' each."""
    if not sys.stdout.isatty():
        write_lines(f"{name}: {value}" for name, value in pairs)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None)
    for name, value in pairs:
        table.add_row(Text(escaped(name), style="dim"), Text(escaped(value)))
    Console().print(table)


def write_table(columns: Sequence[str], numbers: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Print a table on a terminal.

    Args:
        columns: The headings.
        numbers: The headings of columns that hold numbers, which are aligned right.
        rows: The Rich style and the cells of each row.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        number = column in numbers
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for style, cells in rows:
        # Text: Rich would interpret markup in a plain string.
        table.add_row(*(Text(escaped(cell)) for cell in cells), style=style)
    Console().print(table)


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal and standard output is not.

    Yields:
        A function to call with the number of ids of each reply.
    """
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f} ids/s")

    columns = (TextColumn("{task.completed:,.0f} of {task.total:,.0f}"), BarColumn(), Rate(), TimeRemainingColumn())
    # Redirection would make Rich print the output on the bar's console.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def wait(seconds: float) -> None:
    """Wait so many seconds until a change is effective on all nodes, with a progress bar on a terminal."""
    end = time.monotonic() + seconds
    if not sys.stderr.isatty():
        if seconds > 1:
            write_stderr(f"waiting {seconds:.0f} s until the change is effective on all nodes (skip with --no-wait)")
        time.sleep(max(0.0, seconds))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("until the change is effective on all nodes"), BarColumn(), TimeRemainingColumn())
    # The bar is transient: the answer follows it on the terminal.
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("", total=seconds)
        while (left := end - time.monotonic()) > 0:
            bar.update(task, completed=seconds - left)
            time.sleep(min(left, 0.1))


def _write_lines(escaped_lines: Iterable[str]) -> None:
    sys.stdout.write("\n".join(escaped_lines) + "\n")


def _encodable(text: str, stream: TextIO) -> str:
    """Escape characters that the stream's encoding lacks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
