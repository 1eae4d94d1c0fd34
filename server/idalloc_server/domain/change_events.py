"""Change events: tell a listener, such as the audit log, what an administrative call changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from enum import Enum
from typing import Any

from idalloc_server.domain.store.records import Row

ChangedSettings = dict[str, Any]
# Called with the old and new values of the settings that changed.
ChangeListener = Callable[[ChangedSettings, ChangedSettings], None]

# A context variable: tasks inherit it, and a change runs in a task that may outlive its call.
_listener: ContextVar[ChangeListener | None] = ContextVar("change_listener", default=None)


@contextmanager
def listening(listener: ChangeListener) -> Iterator[None]:
    """Call a listener for each change that this block makes, or a task that it starts."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def publish_settings(before: ChangedSettings, after: ChangedSettings) -> None:
    """Call the listener, if there is one, with the settings whose values differ."""
    listener = _listener.get()
    if listener is not None:
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        listener(
            {name: before[name] for name in names if name in before},
            {name: after[name] for name in names if name in after},
        )


def publish_sequence(before: Row | None, after: Row) -> None:
    """Call the listener, if there is one, with the changes of a sequence.

    ``before`` is None for a new sequence.
    """
    if _listener.get() is None:
        return
    values: list[ChangedSettings] = []
    for row in (before, after):
        settings: ChangedSettings = {}
        if row is not None:
            settings = {each.name: getattr(row.sequence, each.name) for each in fields(row.sequence)}
            settings["labels"] = dict(row.sequence.labels)
            settings = {name: value.name if isinstance(value, Enum) else value for name, value in settings.items()}
            settings |= {"last_value": row.last_value, "generation": row.generation, "deleted": row.deleted}
        values.append(settings)
    publish_settings(*values)
