"""The messages of supervisor and workers, and their codec.

A line is a JSON array of the message's name and its fields, which have JSON values. Both processes
run the same code, so a message needs no version.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Message:
    """A message between the supervisor and a worker."""


# From a worker.


@dataclass(frozen=True)
class Ready(Message):
    """The worker can serve."""

    store: Mapping[str, str]  # what it opened, see ``Store.opened``


@dataclass(frozen=True)
class StartFailed(Message):
    """The worker cannot start; ``reason`` is that of the store's failure, if it is one."""

    reason: str
    error: str


@dataclass(frozen=True)
class Serving(Message):
    """The worker serves."""

    address: str
    store: str
    prefix: int


@dataclass(frozen=True)
class Report(Message):
    """What the worker measures, each second and at its end."""

    counts: Mapping[str, Any]  # its metrics, see ``Counts.to_json``
    checks: Mapping[str, str]  # of its readiness
    candidates: Mapping[str, int]  # the ids of sequences that may get their own series of metrics


@dataclass(frozen=True)
class Applied(Message):
    """The worker uses this revision of the node's settings."""

    revision: int


@dataclass(frozen=True)
class Closed(Message):
    """The worker accepts no connections."""


@dataclass(frozen=True)
class Drained(Message):
    """The worker has drained."""


# From the supervisor.


@dataclass(frozen=True)
class Start(Message):
    """What a worker needs to start."""

    number: int
    settings: Mapping[str, Any]
    node_settings: Mapping[str, Any]  # the arguments of ``NodeSettingsFile``
    requires_authentication: bool
    store: Mapping[str, str] | None  # what the first worker opened; None before


@dataclass(frozen=True)
class Serve(Message):
    """All workers are ready."""


@dataclass(frozen=True)
class NodeState(Message):
    """The state of the node: before ``Serve``, at each change, and after each ``Report``."""

    revision: int  # the number of changes of the settings
    settings: Mapping[str, int]  # the newest ones, by field
    applied: Sequence[int]  # the newest revisions that the workers have applied; 0 for none
    other_leases: int = 0  # how many leases the other workers hold
    series: Sequence[str] = ()  # the sequences with their own series of metrics


@dataclass(frozen=True)
class Reload(Message):
    """Reload the files."""


@dataclass(frozen=True)
class Stop(Message):
    """The whole server stops."""


@dataclass(frozen=True)
class AllClosed(Message):
    """No worker accepts connections."""


@dataclass(frozen=True)
class Exit(Message):
    """The worker may exit: with all others, or alone."""

    with_all: bool


# From both.


@dataclass(frozen=True)
class Asked(Message):
    """A question, see ``Pipe.ask``."""

    number: int
    question: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Answered(Message):
    """The answer to a question."""

    number: int
    error: str
    result: Any


@dataclass(frozen=True)
class AuthenticationRequired(Message):
    """An access file has identities: all workers require authentication."""


_TYPES = {each.__name__: each for each in Message.__subclasses__()}


def encode(message: Message) -> bytes:
    """Return the line of a message."""
    return json.dumps([type(message).__name__, vars(message)]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line."""
    name, fields = json.loads(line)
    return _TYPES[name](**fields)
