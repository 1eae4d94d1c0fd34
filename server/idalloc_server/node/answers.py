"""What a process answers to the status page and to other processes, as JSON values.

A number of ids is a text.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from idalloc_server.domain.administration.index import SortKey
from idalloc_server.domain.administration.summary import SequenceSummary
from idalloc_server.node.issuers import Issuers
from idalloc_server.node.rates import RATES
from idalloc_server.telemetry import recent

# Answers a question from its arguments.
Answer = Callable[[Mapping[str, Any]], Awaitable[Any]]
# The most labels of a sequence in an answer, and the longest description: an answer must fit into
# a message.
MAX_LABELS, MAX_DESCRIPTION = 8, 200


def answers_of(issuers: Issuers) -> dict[str, Answer]:
    """Return what answers each question, by its name."""
    return {name: partial(answer, issuers) for name, answer in _ANSWERS.items()}


async def _find_sequences(issuers: Issuers, arguments: Mapping[str, Any]) -> Any:
    """Return a part of the list of sequences, see ``SequenceIndex.find``."""
    found = issuers.index.find(**{**arguments, "sort": SortKey(arguments["sort"])})
    return {
        "sequences": [_sequence(each) for each in await issuers.sequences.at_present_rates(found.sequences)],
        "total": found.total,
        "is_complete": found.is_complete,
        "as_of": found.as_of,
    }


async def _describe_in_memory(issuers: Issuers, arguments: Mapping[str, Any]) -> Any:
    """Return the ids in memory, the reserve and the burned ids by cause, by sequence."""
    allocator, burned = issuers.allocator, issuers.allocator.burned.by_sequence
    return {
        name: {
            "lease_ids": allocator.ids_in_memory(name),
            "reserve_seconds": allocator.reserve_seconds(name),
            "reserve_limit": allocator.reserve_limit(name),
            "burned": dict(burned.get(name, {})),
        }
        for name in arguments["names"]
    }


async def _measure_rates(issuers: Issuers, arguments: Mapping[str, Any]) -> Any:
    """Return how fast this process issues ids, see ``Allocator.rates``."""
    return issuers.allocator.rates(arguments["counters"])


async def _list_recent(issuers: Issuers, arguments: Mapping[str, Any]) -> Any:
    """Return the last failed calls and events."""
    return recent.lines()


_ANSWERS = {
    "sequences": _find_sequences,
    "in_memory": _describe_in_memory,
    RATES: _measure_rates,
    "recent": _list_recent,
}


def _sequence(summary: SequenceSummary) -> dict[str, Any]:
    row, settings = summary.row, summary.row.sequence
    return {
        "name": row.name,
        "kind": settings.kind.name.lower(),
        "period": summary.period,
        "last_value": None if summary.last_value is None else str(summary.last_value),
        "remaining": str(summary.remaining),
        "used_ratio": summary.used_ratio,
        "ids_per_second": summary.ids_per_second,
        "exhaust_time": summary.exhaust_time,
        "labels": dict(list(settings.labels.items())[:MAX_LABELS]),
        "description": settings.description[:MAX_DESCRIPTION],
    }
