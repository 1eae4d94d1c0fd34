"""The pages of docs/reference/, and the function that returns each."""

from collections.abc import Callable

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
