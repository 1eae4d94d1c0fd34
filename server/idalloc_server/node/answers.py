"""What a process answers to the status page and to other processes, as JSON values; a number of ids is a text."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from idalloc_server.domain.administration.index import SortKey
from idalloc_server.domain.administration.summary import SequenceSummary
from idalloc_server.node.issuers import Issuers
from idalloc_server.node.rates import RATES
from idalloc_server.telemetry import recent

# Answers a question by its arguments.
Answer = Callable[[Mapping[str, Any]], Awaitable[Any]]
# The most labels of a sequence in an answer, and the longest description: an answer must fit into a
# message.
MAX_LABELS, MAX_DESCRIPTION = 8, 200


class NodeAnswers:
    """Answers the questions.

    Args:
        issuers: What this process issues ids with.
    """

    def __init__(self, issuers: Issuers) -> None:
        self._index, self._service, self._allocator = issuers.index, issuers.sequences, issuers.allocator

    def by_question(self) -> dict[str, Answer]:
        """Return what answers each question, by its name."""
        return {
            "sequences": self._sequences,
            "in_memory": self._in_memory,
            RATES: self._rates,
            "recent": self._recent,
        }

    async def _sequences(self, arguments: Mapping[str, Any]) -> Any:
        """Return a part of the list of sequences, see ``SequenceIndex.find``."""
        found = self._index.find(**{**arguments, "sort": SortKey(arguments["sort"])})
        return {
            "sequences": [_sequence(each) for each in await self._service.at_present_rates(found.sequences)],
            "total": found.total,
            "is_complete": found.is_complete,
            "as_of": found.as_of,
        }

    async def _in_memory(self, arguments: Mapping[str, Any]) -> Any:
        """Return the ids in memory, the reserve and the burned ids by cause, by the names of sequences."""
        allocator, burned = self._allocator, self._allocator.burned.by_sequence
        return {
            name: {
                "lease_ids": allocator.ids_in_memory(name),
                "reserve_seconds": allocator.reserve_seconds(name),
                "reserve_limit": allocator.reserve_limit(name),
                "burned": dict(burned.get(name, {})),
            }
            for name in arguments["names"]
        }

    async def _rates(self, arguments: Mapping[str, Any]) -> Any:
        """Return how fast this process issues ids, see ``Allocator.rates``."""
        return self._allocator.rates(arguments["counters"])

    async def _recent(self, arguments: Mapping[str, Any]) -> Any:
        """Return the last failed calls and events."""
        return recent.lines()


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
