"""What an administrative call changed, told to whoever keeps a record of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from enum import Enum
from typing import Any

from idalloc_server.domain.records import Row

ChangedSettings = dict[str, Any]
# Called with what was before, and what it is now, of the settings that changed.
ChangeListener = Callable[[ChangedSettings, ChangedSettings], None]

# A change is made in a task of its own, which may outlive the call: tasks take this over from who began them.
_witness: ContextVar[ChangeListener | None] = ContextVar("witness", default=None)


@contextmanager
def listening(witness: ChangeListener) -> Iterator[None]:
    """Has a witness told of what is changed in this block, and in the tasks that it begins."""
    before = _witness.set(witness)
    try:
        yield
    finally:
        _witness.reset(before)


def publish_settings(before: ChangedSettings, after: ChangedSettings) -> None:
    """Tells the witness of the present call, if any, of settings; those that are the same are left out."""
    witness = _witness.get()
    if witness is not None:
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        witness(
            {name: before[name] for name in names if name in before},
            {name: after[name] for name in names if name in after},
        )


def publish_sequence(before: Row | None, after: Row) -> None:
    """Tells the same of a sequence; ``before`` is None where there was none."""
    if _witness.get() is not None:
        publish_settings({} if before is None else _settings(before), _settings(after))


def _settings(row: Row) -> ChangedSettings:
    settings = {each.name: getattr(row.sequence, each.name) for each in fields(row.sequence)}
    settings["labels"] = dict(row.sequence.labels)
    plain = {name: value.name if isinstance(value, Enum) else value for name, value in settings.items()}
    return plain | {"last_value": row.last_value, "generation": row.generation, "deleted": row.deleted}
