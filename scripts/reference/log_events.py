"""log-events.md: each event that the server's source logs, with its meaning in log_events.toml."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

from idalloc_server.domain.allocation.burned import BurnCause
from scripts.reference import links
from scripts.reference.markdown import ROOT, block, document, prose, table

SERVER = ROOT / "server"
MEANINGS = Path(__file__).with_name("log_events.toml")

_LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
# More keys are in a table.
_MANY_KEYS = 6
_HEAD = """\
# Log events

Find a line of the server's log by its `event`, and what to do about it.

The server logs to standard error, and [`serving`](#serving) to standard output. The setting
[`log_level`](settings.md#log_level) selects the lowest level. Events marked *always* are logged at any level.

## Schema

Each line is one JSON object, also what libraries log, warnings of Python, and the start. On a terminal a line is text
with colours.

| key | type | meaning |
|---|---|---|
| `timestamp` | string | ISO 8601 in UTC, with microseconds |
| `level` | string | `debug`, `info`, `warning`, `error` or `critical` |
| `event` | string | one of the names below |
| `logger` | string | the part of the server, such as `idalloc.rpc`, or the library's logger |
| `worker` | number | of several [workers](settings.md#workers): the worker that logs, or that the line is about |
| `exception` | string | a traceback, where there is one |

The other keys are those of the event. Keys that this page does not explain are named after a setting or a field.
"""
_EXAMPLE = {
    "error": "access_file: /etc/idalloc/access.toml is not TOML: at line 5, column 4",
    "event": "access_not_reloaded",
    "level": "error",
    "logger": "idalloc",
    "timestamp": "2026-11-22T19:05:37.778662Z",
}
_OTHERS = """\
## What is not an event

An error in the command line, such as an unknown flag, is one line of text: `idalloc: ` and the message. So are the
errors of all other commands. The client logs nothing: it raises exceptions. Its log of issued ids (`--log`, `log=`) has
a [format of its own](../guides/verify.md).
"""


class Event(NamedTuple):
    """An event, as the source logs it."""

    levels: tuple[str, ...]  # its levels, in the order of the source
    keys: tuple[str, ...]  # its keys; those of a mapping are not among them
    always: bool  # whether the setting log_level does not apply
    has_mapping: bool  # whether a call passes a mapping


def page() -> str:
    """Return the page."""
    found, meanings = events(), read_meanings()
    check(found, meanings)
    rows = [
        (f"[`{name}`](#{name})", _levels(event), _first(meanings[name]["meaning"])) for name, event in found.items()
    ]
    return document(
        _HEAD,
        block("json", dumps(_EXAMPLE)),
        "## All events",
        table(("event", "level", "meaning"), rows),
        *(_section(name, event, meanings[name]) for name, event in found.items()),
        _OTHERS,
    )


def read_meanings() -> dict[str, Any]:
    """Return the meaning, the next step and further keys of each event."""
    return tomllib.loads(MEANINGS.read_text())


def check(found: dict[str, Event], meanings: dict[str, Any]) -> None:
    """Check that each event has a meaning, and each warning and error a next step.

    Raises:
        ValueError: It names the event and the file.
    """
    if wrong := found.keys() ^ meanings.keys():
        raise ValueError(
            f"scripts/reference/{MEANINGS.name} must describe the events that the server logs: {sorted(wrong)}"
        )
    for name, event in found.items():
        if {*event.levels} & {"warning", "error", "critical"} and not meanings[name].get("next_step"):
            raise ValueError(f"{MEANINGS.name}: {name} needs a next_step, since it is a warning or an error")
        keys = meanings[name].get("keys", {}).keys()
        if event.has_mapping and not keys:
            raise ValueError(f"{MEANINGS.name}: {name} needs keys: the source logs a mapping")
        if not event.has_mapping and keys - {*event.keys}:
            raise ValueError(f"{MEANINGS.name}: {name} has no key {sorted(keys - {*event.keys})}")


@cache
def events() -> dict[str, Event]:
    """Return each event of the server's source, by name."""
    found: dict[str, list[Event]] = {}
    for path in sorted(SERVER.rglob("*.py")):
        for name, event in _events_of(ast.parse(path.read_text())):
            found.setdefault(name, []).append(event)
    return {name: _merge(found[name]) for name in sorted(found)}


def _events_of(tree: ast.Module) -> Iterator[tuple[str, Event]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        logger, level = node.func.value, node.func.attr
        if not isinstance(logger, ast.Name) or not logger.id.endswith("_log") or level not in _LEVELS:
            continue
        first = node.args[1] if level == "log" else node.args[0]
        keys = [each.arg for each in node.keywords if each.arg and each.arg != "exc_info"]
        if level == "exception" or any(each.arg == "exc_info" for each in node.keywords):
            keys.append("exception")
        shown = {"exception": "error", "log": "that of the record"}.get(level, level)
        event = Event((shown,), tuple(keys), logger.id != "_log", any(each.arg is None for each in node.keywords))
        for name in _texts(first, tree):
            yield name, event


def _texts(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    """Yield the values of an expression: a text, or a variable to which texts are assigned."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        for each in ast.walk(tree):
            if isinstance(each, ast.Assign):
                targets = getattr(each.targets[0], "elts", each.targets)
                for target, value in zip(targets, getattr(each.value, "elts", [each.value]), strict=False):
                    is_named = isinstance(target, ast.Name) and target.id == node.id
                    if is_named and isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                        yield value.value
    else:
        raise ValueError(f"an event must be a text or a variable, not {ast.unparse(node)}")


def _merge(events: list[Event]) -> Event:
    return Event(
        tuple(dict.fromkeys(level for each in events for level in each.levels)),
        tuple(dict.fromkeys(key for each in events for key in each.keys)),
        any(each.always for each in events),
        any(each.has_mapping for each in events),
    )


def _levels(event: Event) -> str:
    return ", ".join(event.levels) + (" (*always*)" if event.always else "")


def _section(name: str, event: Event, meaning: dict[str, Any]) -> str:
    keys = meaning.get("keys", {})
    keys |= dict.fromkeys((key for key in event.keys if key not in keys), "")
    rows = [(f"`{key}`", prose(text, links.ALL)) for key, text in keys.items()]
    is_long = len(rows) > _MANY_KEYS
    shown = "see below" if is_long else ", ".join(f"{key} ({text})" if text else key for key, text in rows)
    step = meaning.get("next_step")
    return document(
        f"## `{name}`",
        f"Level: {_levels(event)}. Keys: {shown or 'none'}.",
        prose(meaning["meaning"], links.ALL),
        f"**Next step:** {prose(step, links.ALL)}" if step else "",
        table(("key", "meaning"), rows) if is_long else "",
        table(("cause", "meaning"), _causes()) if name == "burned" else "",
    )


def _causes() -> list[tuple[str, str]]:
    """Return the causes of burned ids, with the comments in the source."""
    lines = (SERVER / "idalloc_server/domain/allocation/burned.py").read_text().splitlines()
    comments = {line.split(" = ")[0].strip(): line.partition("  # ")[2] for line in lines if " = " in line}
    return [(f"`{cause}`", prose(comments[cause.name])) for cause in BurnCause]


def _first(text: str) -> str:
    return prose(text.partition(". ")[0].removesuffix("."), links.ALL)
