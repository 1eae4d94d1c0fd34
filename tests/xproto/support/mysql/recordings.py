"""Conversations with a real MySQL in the folder data; its README describes them."""

from pathlib import Path
from typing import Any, NamedTuple

from tests.support.mysql.recordings import lines

_DATA = Path(__file__).parent / "data"


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
    return [_conversation(line) for line in lines(_DATA / "frames.jsonl")]


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
