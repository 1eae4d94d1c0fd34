"""Tables and figures as Markdown, for the pages of benchmarks."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown.

    Args:
        head: The titles of the columns.
        align: ``l`` or ``r`` for each column.
        rows: The cells of each row.
    """
    lines = [head, ["---:" if each == "r" else "---" for each in align], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float | None, times: float = 1.0) -> str:
    """Return a figure with three digits, or all digits before the point; a dash for None."""
    if value is None:
        return "-"
    value *= times
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float | None) -> str:
    """Return a ratio with two digits; a dash for None."""
    return "-" if value is None else f"{value:.2g}" if value < 100 else number(value)


def verdict(met: bool | None) -> str:
    """Return whether a target was met, as Markdown; None if it was not measured."""
    return {None: "did not run", True: "met", False: "**missed**"}[met]
