"""The pages of docs/reference/, and the function that returns each."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from scripts.reference import api, cli, errors, limits, log_events, metrics, python_api, settings
from scripts.reference.markdown import ROOT

FOLDER = ROOT / "docs/reference"
PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings.page,
    "cli.md": cli.page,
    "errors.md": errors.page,
    "api.md": api.page,
    "python-api.md": python_api.page,
    "limits.md": limits.page,
    "log-events.md": log_events.page,
    "metrics.md": metrics.page,
}
# The pages in git. The others are built with the site only.
IN_GIT = frozenset({"settings.md", "errors.md", "api.md"})


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    for name in PAGES:
        (folder / name).write_text(read(FOLDER / name), encoding="utf-8")


@cache
def read(path: Path) -> str:
    """Return the text of a file; that of a page of the reference comes from its generator."""
    return PAGES[path.name]() if path.parent == FOLDER else path.read_text(encoding="utf-8")
