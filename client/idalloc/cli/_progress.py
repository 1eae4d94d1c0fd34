"""Progress bars on standard error, if it is a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from idalloc.cli._printer import write_stderr


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of a stream, unless standard output is a terminal, too.

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
    """Wait this many seconds until a change is effective on all nodes."""
    if seconds <= 0:
        return
    end = time.monotonic() + seconds
    if not sys.stderr.isatty():
        if seconds > 1:
            write_stderr(f"waiting {seconds:.0f} s until the change is effective on all nodes (skip with --no-wait)")
        time.sleep(seconds)
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
