"""Ids that a real MySQL issued, recorded in the folder data; its README describes them."""

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
        for line in lines(_DATA / "transitions.jsonl")
    ]


def notices() -> list[Notice]:
    return [
        Notice(line["source"], line["ids"], bytes.fromhex(line["frame"])) for line in lines(_DATA / "notices.jsonl")
    ]


def restarts() -> list[Restart]:
    return [
        Restart(line["case"], [(boot["clock"], boot["drawn"]) for boot in line["boots"]])
        for line in lines(_DATA / "restarts.jsonl")
    ]


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a recording."""
    with file.open() as opened:
        yield from map(json.loads, opened)
