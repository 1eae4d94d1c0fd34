"""What a serving process reports of itself: its metrics and the checks of its readiness."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from idalloc_server.auth.audit import Audit
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.survey import Survey
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.node.answers import answer
from idalloc_server.node.issuers import Issuers
from idalloc_server.telemetry import families, logs
from idalloc_server.telemetry.log_queue import Share
from idalloc_server.telemetry.metrics import CallMetrics, Counts
from idalloc_server.telemetry.series import OTHER, IssuedSeries, SeriesNames

# Texts of checks have no details: unauthenticated callers read them. The log has the errors.
STORE_UNAVAILABLE = "the last calls of the store failed"
# How many issuers of ids are sampled before other tasks of the event loop run.
SAMPLED_AT_ONCE = 500


@dataclass(eq=False)
class NodeReport:
    """Samples what calls only add to, once a second, and reports metrics and checks."""

    calls: CallMetrics
    issuers: Issuers
    audit: Audit
    store_calls: Counter[str]  # by method and outcome
    addresses: Mapping[str, Any]  # of the server and of its store
    workers: int  # how many processes the server has; only a single one decides which sequences have a series
    is_draining: Callable[[], bool]
    count_ports: Sequence[Callable[[Counts], None]]  # add the metrics of the ports
    witnessed: WitnessedStore | None = None  # the store, if it has a witness
    series: IssuedSeries = field(init=False)

    def __post_init__(self) -> None:
        self._allocator = self.issuers.allocator
        self._names = SeriesNames() if self.workers == 1 else None
        self._survey = Survey()
        self._reserve: dict[str, float] = {}
        self._limited: dict[str, float] = {}  # by reason and sequence
        self.series = IssuedSeries(self.workers)

    def pids(self) -> Mapping[str, int]:
        """Return the process id of this only process, see ``Source``."""
        return {"server": os.getpid()}

    def describe(self) -> Mapping[str, Any]:
        """Return the addresses of the server and of what it uses, see ``Source``."""
        witness = {} if self.witnessed is None else {"witness": self.witnessed.witness_address}
        return {**self.addresses, **witness}

    async def ask(self, question: str, arguments: Mapping[str, Any], timeout: float) -> Any:
        """Return the answer to a question of the HTTP port, see ``Source``."""
        async with asyncio.timeout(timeout):
            return await answer(self.issuers, question, arguments)

    async def ask_all(self, question: str, arguments: Mapping[str, Any], timeout: float) -> list[Any]:
        """Return the answer of this only process to a question of the HTTP port, see ``Source``."""
        return [await self.ask(question, arguments, timeout)]

    async def sample(self) -> None:
        """Sample issued ids and reserves every second, until cancelled."""
        while True:
            await asyncio.sleep(1)
            others = []
            for number, (sequence, ids) in enumerate(self._allocator.pop_issued(), start=1):
                self.series.add(sequence, ids)
                # A limited sequence must not make the series of all others look low.
                if sequence not in self.series.issued and not self._allocator.reserve_limit(sequence):
                    others.append(self._allocator.reserve_seconds(sequence))
                if number % SAMPLED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if self._names and not self._names.is_full and self._names.decide(self.series.candidates()):
                self.series.set_series(self._names.names)
            own = [name for name in self.series.issued if name != OTHER]
            reserves = {name: self._allocator.reserve_seconds(name) for name in own}
            reserves[OTHER] = min((each for each in others if each is not None), default=None)
            self._reserve = {name: seconds for name, seconds in reserves.items() if seconds is not None}
            self._limited = {f"{limit} {name}": 1 for name in own if (limit := self._allocator.reserve_limit(name))}

    async def survey(self) -> None:
        """Survey all sequences in use, again and again, until cancelled."""
        while True:
            await asyncio.sleep(1)
            self._survey = await self._allocator.survey()

    def checks(self) -> dict[str, str]:
        """Return the problem that each check of readiness found, by name; empty if it passes."""
        late = self._survey.late_renewals
        return {
            "shutdown": "the server drains" if self.is_draining() else "",
            "store": STORE_UNAVAILABLE if self._allocator.store_health.error else "",
            "lease-renewals": f"{late} leases near their end were not renewed" if late else "",
        }

    def final_counts(self) -> Counts:
        """Return the metrics of this process, with all issued ids."""
        for sequence, ids in self._allocator.pop_issued():
            self.series.add(sequence, ids)
        return self.counts()

    def counts(self) -> Counts:
        """Return the metrics of this process, with issued ids as of the last sample."""
        counts = Counts(self.calls, timings={families.REFILL_DURATION: self._allocator.refills})
        counts.counters |= {
            families.IDS_ISSUED: self.series.issued,
            families.DOC_IDS_ISSUED: Counter({"": self.issuers.doc_ids.issued}),
            families.IDS_BURNED: Counter({str(each): self._allocator.burned.by_cause[each] for each in BurnCause}),
            families.STORE_CALLS: self.store_calls,
            families.GENERATIONS_ENDED: Counter({"": self.issuers.sequences.generations_ended}),
            families.LOG_LINES_LOST: Counter({str(share): logs.queue.lost[share] for share in Share}),
        }
        families.count_rejections(counts.counters, self.audit.rejected)
        counts.gauges |= {
            families.WORKERS: {"": 1},
            families.START_TIMESTAMP: {str(self.issuers.doc_ids.prefix): self.issuers.doc_ids.start_timestamp},
            families.SEQUENCES_IN_MEMORY: {"": self._allocator.sequence_count},
            families.LEASES: {"": self._survey.lease_count},
            families.RESERVE: self._reserve,
            families.RESERVE_LIMITED: self._limited,
            families.STORE_UP: {"": 0 if self._allocator.store_health.error else 1},
            families.SEQUENCES_BEHIND: {"": self._survey.behind},
            families.PREFIX_CONFLICT: {"": int(self.issuers.start_timestamps.has_conflict)},
            families.EXHAUSTS_IN: self._survey.exhausts_in,
        }
        if self.witnessed is not None:
            counts.gauges[families.WITNESS_UP] = {"": int(self.witnessed.chain.is_up)}
        for count_port in self.count_ports:
            count_port(counts)
        return counts
