"""Recordings of a real MySQL in the folder data; its README describes them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_DATA = Path(__file__).parent / "data"


class Transitions(NamedTuple):
    """Ids issued in sequence under the same variables."""

    case: str
    offset: int
    increment: int
    timestamp_before: int
    serial_before: int
    ids: list[str]


class Notice(NamedTuple):
    """A notice of generated document ids."""

    source: str
    ids: list[str]
    frame: bytes


class Restart(NamedTuple):
    """Restarts of one server: its clock at each start, and the ids that it generated then."""

    case: str
    boots: list[tuple[float, list[str]]]


class Conversation(NamedTuple):
    """Frames that a client sent to MySQL, and MySQL's replies."""

    case: str  # the name of the case
    setup: list[dict[str, Any]]  # what was done before
    sent: list[bytes]  # the frames of the client
    replies: list[list[bytes]]  # the frames that MySQL sent, for each one sent
    unasked: list[bytes]  # the frames that MySQL sent before it received one
    closed: int | None  # the index of the frame that made MySQL close the connection, or None
    # The documents in the collection afterwards: the key and the JSON text.
    stored: list[dict[str, Any]]


def conversations() -> list[Conversation]:
    return [_conversation(line) for line in _lines("frames.jsonl")]


def _conversation(line: dict[str, Any]) -> Conversation:
    replies: list[list[bytes]] = [[] for _ in line["sent"]]
    unasked, closed = [], None
    for index, frame in line["received"]:
        if frame == "EOF":
            closed = len(line["sent"]) - 1 if index is None else index
        elif frame == "SILENCE":
            continue
        elif index is None:
            unasked.append(bytes.fromhex(frame))
        else:
            replies[index].append(bytes.fromhex(frame))
    sent = [bytes.fromhex(frame) for frame in line["sent"]]
    return Conversation(line["case"], line["setup"], sent, replies, unasked, closed, line.get("stored", []))


def transitions() -> list[Transitions]:
    return [
        Transitions(
            case=line["case"],
            offset=line["offset"],
            increment=line["increment"],
            timestamp_before=int(line["timestamp_before"], 16),
            serial_before=int(line["serial_before"], 16),
            ids=line["ids"],
        )
        for line in _lines("transitions.jsonl")
    ]


def notices() -> list[Notice]:
    return [Notice(line["source"], line["ids"], bytes.fromhex(line["frame"])) for line in _lines("notices.jsonl")]


def restarts() -> list[Restart]:
    return [
        Restart(line["case"], [(boot["clock"], boot["drawn"]) for boot in line["boots"]])
        for line in _lines("restarts.jsonl")
    ]


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with (_DATA / name).open() as lines:
        yield from map(json.loads, lines)
