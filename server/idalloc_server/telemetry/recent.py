"""The last failed calls and events of this process, as its log has them, for the status page."""

from collections import deque
from typing import Any

MAX_KEPT = 50  # of each kind
MAX_TEXT = 300  # the longest text of one

_WARNINGS = frozenset(("warning", "error", "critical"))
# Events below the level warning that are kept.
_NOTABLE = frozenset(("reloading", "access_reloaded", "certificates_reloaded", "draining", "worker_started"))
_HEAD = frozenset(("timestamp", "level", "event", "logger", "exc_info", "exception"))

Line = dict[str, Any]
refusals: deque[Line] = deque(maxlen=MAX_KEPT)
events: deque[Line] = deque(maxlen=MAX_KEPT)


def record(logger: object, method: str, line: Any) -> Any:
    """Keep a log line if it is notable.

    This is a processor of structlog, see ``logs.configure``.
    """
    event = line.get("event")
    time = line.get("timestamp", "")
    if event == "calls_failed":
        kept = {key: line.get(key, "") for key in ("method", "code", "reason", "why")}
        refusals.append({"time": time, **{key: _cut(value) for key, value in kept.items()}, "count": line["count"]})
    elif line.get("level") in _WARNINGS or event in _NOTABLE or line.get("logger") == "idalloc.audit":
        fields = [f"{name}={value}" for name, value in line.items() if name not in _HEAD]
        if isinstance(error := line.get("exc_info"), BaseException):
            fields.append(f"exception={type(error).__name__}")
        text = _cut(", ".join(fields))
        events.append({"time": time, "level": line.get("level", ""), "event": _cut(event), "text": text})
    return line


def lines() -> dict[str, list[Line]]:
    """Return the last failed calls and events of this process, as JSON values."""
    return {"refusals": list(refusals), "events": list(events)}


def newest(*lists: list[Line]) -> list[Line]:
    """Return the newest lines of several lists, newest first."""
    lines = [line for each in lists for line in each]
    return sorted(lines, key=lambda line: str(line["time"]), reverse=True)[:MAX_KEPT]


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
