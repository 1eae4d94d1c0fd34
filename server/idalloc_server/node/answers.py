"""What a process answers to the status page and to other processes, as JSON values.

A number of ids is a text.
"""

from collections.abc import Mapping
from typing import Any

from idalloc_server.domain.administration.index import SortKey
from idalloc_server.domain.administration.summary import SequenceSummary
from idalloc_server.node.issuers import Issuers
from idalloc_server.telemetry import recent

# The most labels of a sequence in an answer, and the longest description: an answer must fit into
# a message.
MAX_LABELS = 8
MAX_DESCRIPTION = 200


async def answer(issuers: Issuers, question: str, arguments: Mapping[str, Any]) -> Any:
    """Return the answer of this process to a question.

    - ``sequences``: a part of the list of sequences, see ``SequenceIndex.find``.
    - ``in_memory``: the ids in memory, the reserve and the burned ids by cause, by sequence.
    - ``rates``: how fast this process issues ids, see ``Allocator.rates``.
    - ``recent``: the last failed calls and events.
    """
    allocator = issuers.allocator
    match question:
        case "sequences":
            found = issuers.index.find(**{**arguments, "sort": SortKey(arguments["sort"])})
            return {
                "sequences": [_sequence(each) for each in await issuers.sequences.at_present_rates(found.sequences)],
                "total": found.total,
                "is_complete": found.is_complete,
                "as_of": found.as_of,
            }
        case "in_memory":
            return {
                name: {
                    "lease_ids": allocator.ids_in_memory(name),
                    "reserve_seconds": allocator.reserve_seconds(name),
                    "reserve_limit": allocator.reserve_limit(name),
                    "burned": dict(allocator.burned.by_sequence.get(name, {})),
                }
                for name in arguments["names"]
            }
        case "rates":
            return allocator.rates(arguments["counters"])
        case "recent":
            return recent.lines()
    raise LookupError(question)


def _sequence(summary: SequenceSummary) -> dict[str, Any]:
    row = summary.row
    settings = row.sequence
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
