"""Prints all that the command prints: no text of a server, a file or an argument changes the terminal."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from idalloc._core.text import escaped

if TYPE_CHECKING:
    from google.protobuf.message import Message

# So many ids are put into one text: enough for speed, and no memory to speak of.
AT_ONCE = 50_000


def write_lines(texts: Iterable[str]) -> None:
    """Prints texts one on a line, in one write."""
    lines = list(texts)
    # Looked at in one piece, as escaping each of many ids costs ten times as much as printing them.
    _write_lines(lines if "".join(lines).isprintable() else map(escaped, lines))


def write_columns(cells: Iterable[str]) -> None:
    """Prints texts on one line, divided by tabs."""
    sys.stdout.write("\t".join(map(escaped, cells)) + "\n")


def say(message: str) -> None:
    """Prints a message as one line on standard error."""
    sys.stderr.write(_encodable(escaped(" ".join(message.split())), sys.stderr) + "\n")


def write_range(ids: range, *, as_range: bool) -> None:
    """Prints a range: its ids one on a line, or its first and last id and its step on one."""
    if as_range:
        sys.stdout.write(f"{ids[0]} {ids[-1]} {ids.step}\n")
        return
    for start in range(0, len(ids), AT_ONCE):
        _write_lines(map(str, ids[start : start + AT_ONCE]))


def write_json(message: "Message", *, one_line: bool = False) -> None:
    """Prints a message in the JSON mapping of proto3."""
    from google.protobuf.json_format import MessageToJson

    sys.stdout.write(MessageToJson(message, indent=None if one_line else 2, ensure_ascii=True) + "\n")


def to_json(content: Any) -> str:
    """Returns a report as JSON, all of it ASCII."""
    return json.dumps(content, indent=2) + "\n"


def write_report(text: str) -> None:
    """Prints a report whose lines are safe already."""
    sys.stdout.write(_encodable(text, sys.stdout))


def write_fields(message: "Message") -> None:
    """Prints the fields of a message that has no others inside, but for those that it leaves out, and empty texts."""
    fields = (
        (field.name.replace("_", " "), str(getattr(message, field.name)))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    )
    write_pairs((name, value) for name, value in fields if value)


def write_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Prints names and their values: as a table on a terminal, else one on a line."""
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
    """Prints a table on a terminal.

    Args:
        columns: Their headings.
        numbers: Which of them have numbers.
        rows: The style of each row, and its cells.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        number = column in numbers
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for style, cells in rows:
        # As Text: a name may hold what Rich takes for markup.
        table.add_row(*(Text(escaped(cell)) for cell in cells), style=style)
    Console().print(table)


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar with rate and remaining time on a terminal that does not also get the output.

    Yields:
        What to call with each number of ids that came.
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
    # Rich would otherwise take the output for its own and print it where the bar is.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def wait(seconds: float) -> None:
    """Waits until a change holds on all nodes; shows a bar on a terminal."""
    end = time.monotonic() + seconds
    if not sys.stderr.isatty():
        if seconds > 1:
            say(f"waiting {seconds:.0f} s until it holds on all nodes (--no-wait does not)")
        time.sleep(max(0.0, seconds))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("until it holds on all nodes"), BarColumn(), TimeRemainingColumn())
    # It goes away when it is done: what follows on the terminal is the answer.
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("", total=seconds)
        while (left := end - time.monotonic()) > 0:
            bar.update(task, completed=seconds - left)
            time.sleep(min(left, 0.1))


def _write_lines(safe: Iterable[str]) -> None:
    sys.stdout.write("\n".join(safe) + "\n")


def _encodable(text: str, stream: TextIO) -> str:
    """Escapes what the encoding of a stream does not have."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
