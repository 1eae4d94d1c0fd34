"""Recorded statements on documents with MySQL 8.0.31's answers; data/x has a README."""

import json
from pathlib import Path
from typing import Any, NamedTuple

_DATA = Path(__file__).parent / "data" / "x"
_INSERT, _DELETE, _FIND, _UPDATE = 18, 20, 17, 19
_WARNING_NOTICE = 1

# The documents of raw.c before each case.
DOCUMENTS = [
    {"_id": "a1", "n": 1, "s": "x"},
    {"_id": "a2", "n": 2, "s": "y", "o": {"p": 1}},
    {"_id": "a3", "n": 3},
]


class Exchange(NamedTuple):
    """A message of the client and the frames of the reply, without warnings."""

    kind: int
    payload: bytes
    reply: list[bytes]
    doc_ids: list[str]


class Case(NamedTuple):
    """A case, with its exchanges in order."""

    name: str
    exchanges: list[Exchange]


def cases() -> list[Case]:
    """Return all cases whose messages are statements on documents."""
    found = []
    for name in ("frames-crud.jsonl", "frames-values.jsonl"):
        for line in (_DATA / name).read_text().splitlines():
            case = json.loads(line)
            found.append(Case(case["case"], _exchanges(case["frames"])))
    return [case for case in found if all(each.kind in (_INSERT, _FIND, _UPDATE, _DELETE) for each in case.exchanges)]


def _exchanges(frames: list[dict[str, Any]]) -> list[Exchange]:
    exchanges: list[Exchange] = []
    for frame in frames:
        content = bytes.fromhex(frame["hex"])
        if frame["dir"] == "c2s":
            exchanges.append(Exchange(content[4], content[5:], [], []))
        elif not (frame["name"] == "Notice" and frame["decoded"]["type"] == _WARNING_NOTICE):
            exchanges[-1].reply.append(content)
            payload = frame["decoded"].get("payload", {}) if frame["decoded"] else {}
            if payload.get("param") == "GENERATED_DOCUMENT_IDS":
                exchanges[-1].doc_ids.extend(value["V_OCTETS"] for value in payload["value"])
    return exchanges
