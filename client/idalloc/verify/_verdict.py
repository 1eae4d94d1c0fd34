"""What came of it: for programs, and for people."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idalloc._core.text import escaped
from idalloc.verify._files import Exported, find
from idalloc.verify._logs import NoLog
from idalloc.verify._names import Names
from idalloc.verify._proof import Findings, Proof, Stretch, StretchKey
from idalloc.verify._runs import Limits


@dataclass
class Counted:
    """What is known of the ids of a sequence, or of one period of it.

    Attributes:
        sequence: Its name.
        period: The period; empty if it has none.
        ids: How many different ids are in the logs.
        ranges: In how many records.
        first: The first one.
        last: The last one.
        last_value: The counter, as exported.
        missing: How many ids no log has, from the first one to ``last_value``, or to the last one without that.
        burned: How many ids nodes said that they took and nobody got, by cause.
    """

    sequence: str
    period: str
    ids: int
    ranges: int
    first: int
    last: int
    last_value: int | None
    missing: int
    burned: dict[str, int]

    @property
    def unattributed(self) -> int:
        """How many are missing that no node told of."""
        return max(0, self.missing - sum(self.burned.values()))


@dataclass
class Verdict:
    """What came of it.

    Attributes:
        logs: How many logs were read.
        records: How many records they had.
        ids: How many different ids.
        findings: What must not be.
        sequences: What is known of each sequence.
        document_ids: How many of the ids are document ids.
        stall: The longest time between two answers that came one after another in one log, in seconds.
        seconds: How long it took.
        cut: The logs that end in the middle of a record.
        exported: Whether there was an export to compare with.
    """

    logs: int
    records: int
    ids: int
    findings: Findings
    sequences: list[Counted]
    document_ids: int
    stall: float
    seconds: float
    cut: list[Path]
    exported: bool


def verify(paths: Iterable[Path], limits: Limits | None = None) -> Verdict:
    """Reads logs of issued ids, exports and logs of nodes.

    Raises:
        NoLog: A file cannot be read, or is none of these.
    """
    began = time.monotonic()
    names = Names()
    files = find(paths, names)
    proof = Proof(files, limits or Limits())
    try:
        proof.run()
    except OSError as error:  # also of the folder for temporary files
        raise NoLog(f"the files cannot be read to their end: {error}") from error
    by_name: defaultdict[int, list[tuple[StretchKey, Stretch]]] = defaultdict(list)
    for key, stretch in proof.stretches.items():
        by_name[key.name].append((key, stretch))
    sequences = [
        _counted(names, name, proof.ids[name], stretches, files.exported, files.burned)
        for name, stretches in by_name.items()
        if not name & 1
    ]
    return Verdict(
        len(files.logs),
        proof.records,
        sum(proof.ids.values()),
        proof.findings,
        sorted(sequences, key=lambda counted: (counted.sequence, counted.period)),
        sum(ids for name, ids in proof.ids.items() if name & 1),
        proof.stall / 1e9,
        time.monotonic() - began,
        [log.path for log in files.logs if log.cut],
        files.exported is not None,
    )


def to_json(verdict: Verdict) -> dict[str, Any]:
    """The whole of it."""
    findings = verdict.findings
    return {
        "logs": verdict.logs,
        "records": verdict.records,
        "ids": verdict.ids,
        "findings": {
            "twice": findings.twice,
            "disordered": findings.disordered,
            "beyond": findings.beyond,
            "malformed": findings.malformed,
        },
        "told": findings.messages,
        "sequences": [
            {
                "sequence": counted.sequence,
                "period": counted.period,
                "ids": counted.ids,
                "ranges": counted.ranges,
                "first": counted.first,
                "last": counted.last,
                "lastValue": counted.last_value,
                "missing": counted.missing,
                "burned": counted.burned,
                "unattributed": counted.unattributed,
            }
            for counted in verdict.sequences
        ],
        "documentIds": verdict.document_ids,
        "longestStallSeconds": round(verdict.stall, 6),
        "seconds": round(verdict.seconds, 3),
        "cut": [str(path) for path in verdict.cut],
    }


def to_text(verdict: Verdict) -> str:
    """The report for people."""
    return "\n".join(map(escaped, _lines(verdict))) + "\n"


def _lines(verdict: Verdict) -> Iterator[str]:
    findings = verdict.findings
    if verdict.sequences:
        names = [f"{each.sequence} {each.period}".rstrip() for each in verdict.sequences]
        width = min(40, max(16, *map(len, names)))
        yield f"{'':{width}}{'ids':>16}{'ranges':>14}{'first':>21}{'last':>21}{'missing':>14}{'unattributed':>14}"
        for name, each in zip(names, verdict.sequences, strict=True):
            yield (
                f"{name:{width}}{each.ids:16,}{each.ranges:14,}{each.first:21}{each.last:21}"
                f"{each.missing:14,}{each.unattributed:14,}"
            )
            if each.burned:
                causes = ", ".join(f"{ids:,} {cause}" for cause, ids in sorted(each.burned.items()))
                yield f"{'':{width}}  burned: {causes}"
        yield ""
    if verdict.document_ids:
        yield f"{verdict.document_ids:,} document ids"
    for path in verdict.cut:
        yield f"{path} ends in the middle of a record, which is left out"
    yield f"the longest stall took {verdict.stall:,.3f} s"
    read = (
        f"{verdict.ids:,} ids in {verdict.records:,} records of {verdict.logs:,} logs, read in {verdict.seconds:.1f} s"
    )
    if not findings.any:
        beyond = "none beyond what was exported" if verdict.exported else "no export to compare with"
        yield f"PROVED for {read}: none came twice, none out of order, {beyond}"
        return
    yield (
        f"WRONG in {read}: {findings.twice:,} ids came twice, {findings.disordered:,} ranges are out of order, "
        f"{findings.beyond:,} are beyond what was exported, {findings.malformed:,} are malformed"
    )
    yield from (f"  {finding}" for finding in findings.messages)


def _counted(
    names: Names,
    name: int,
    ids: int,
    stretches: list[tuple[StretchKey, Stretch]],
    exported: Exported | None,
    burned: dict[str, Counter[str]],
) -> Counted:
    sequence, period = names.parts(name)
    text = names.text(name)
    down = stretches[0][0].step < 0
    low, high = min(each.low for _, each in stretches), max(each.high for _, each in stretches)
    first, last = (high, low) if down else (low, high)
    values = exported.last_values.get(text) if exported else None
    last_value = (min(values) if down else max(values)) if values else None
    missing = 0
    if exported is None or sequence not in exported.timestamps:
        end = last if last_value is None else last_value
        missing = max(0, _expected(stretches, end, down=down) - ids)
    ranges = sum(each.records for _, each in stretches)
    return Counted(
        sequence, period, ids, ranges, first, last, last_value, missing, dict(sorted(burned.get(text, {}).items()))
    )


def _expected(stretches: list[tuple[StretchKey, Stretch]], end: int, *, down: bool) -> int:
    """How many ids there are in all, from the first one to the end."""
    spans = sorted(
        ((~each.high, ~each.low) if down else (each.low, each.high)) + (abs(key.step),) for key, each in stretches
    )
    count, reach = 0, spans[0][0] - 1
    for low, high, step in spans:
        # What lies between two generations is counted in the steps of the later one.
        count += max(0, low - reach - 1) // step + (high - low) // step + 1
        reach = max(reach, high)
    return count + max(0, (~end if down else end) - reach) // spans[-1][2]
