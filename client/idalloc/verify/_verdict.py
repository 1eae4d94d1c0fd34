"""Verifies files, and reports the result as JSON and as text."""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idalloc._core.text import escaped
from idalloc.verify._extents import Extent, ExtentKey, expected_ids
from idalloc.verify._files import Files, read_files
from idalloc.verify._logs import InvalidFile
from idalloc.verify._proof import Findings, Proof
from idalloc.verify._spans import MemoryLimits


@dataclass
class SequenceStats:
    """Counts of the ids of a sequence, or of one of its periods."""

    sequence: str
    period: str  # the period; empty without one
    ids: int  # the number of distinct ids in the logs
    ranges: int  # the number of records
    first: int
    last: int
    last_value: int | None  # the exported counter, if any
    # The number of ids in no log, from the first id to `last_value`, or to the last id without an
    # export.
    missing: int
    burned: dict[str, int]  # the number of ids that nodes reported as burned, by cause

    @property
    def unattributed(self) -> int:
        """The number of missing ids that no node reported as burned."""
        return max(0, self.missing - sum(self.burned.values()))


@dataclass
class Verdict:
    """The result of a verification."""

    logs: int
    records: int
    ids: int  # the number of distinct ids
    findings: Findings
    sequences: list[SequenceStats]  # counts by sequence and period
    doc_ids: int  # the number of distinct document ids
    stall: float  # the longest time between two consecutive replies of one log, in seconds
    seconds: float  # the duration of the verification
    truncated: list[Path]  # the logs that end in the middle of a record
    exported: bool  # whether there was an export to compare with


def verify(paths: Iterable[Path], limits: MemoryLimits | None = None) -> Verdict:
    """Verify logs of issued ids, with exports and logs of nodes, in any order.

    Raises:
        InvalidFile: A file cannot be read or is of no known kind, or no file is a log of issued
            ids.
    """
    start = time.monotonic()
    files = read_files(paths)
    proof = Proof(files, limits or MemoryLimits())
    try:
        proof.run()
    except OSError as error:  # of a log, or of the temporary folder
        raise InvalidFile(f"the files cannot be read to their end: {error}") from error
    extents = proof.extents.by_sequence()
    sequences = [_sequence_stats(files, name, proof.ids[name], extents[name]) for name in extents]
    return Verdict(
        logs=len(files.logs),
        records=proof.records,
        ids=sum(proof.ids.values()),
        findings=proof.findings,
        sequences=sorted(sequences, key=lambda stats: (stats.sequence, stats.period)),
        doc_ids=sum(ids for name, ids in proof.ids.items() if name & 1),
        stall=proof.stall / 1e9,
        seconds=time.monotonic() - start,
        truncated=[log.path for log in files.logs if log.truncated],
        exported=files.exported.files > 0,
    )


def to_json(verdict: Verdict) -> dict[str, Any]:
    findings = asdict(verdict.findings)
    messages = findings.pop("messages")
    return {
        "logs": verdict.logs,
        "records": verdict.records,
        "ids": verdict.ids,
        "findings": _camel_case(findings),
        "messages": messages,
        "sequences": [_camel_case(asdict(stats)) | {"unattributed": stats.unattributed} for stats in verdict.sequences],
        "docIds": verdict.doc_ids,
        "longestStallSeconds": round(verdict.stall, 6),
        "seconds": round(verdict.seconds, 3),
        "truncated": [str(path) for path in verdict.truncated],
    }


def _camel_case(fields: dict[str, Any]) -> dict[str, Any]:
    return {re.sub("_(.)", lambda match: match[1].upper(), name): value for name, value in fields.items()}


def to_text(verdict: Verdict) -> str:
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
    if verdict.doc_ids:
        yield f"{verdict.doc_ids:,} document ids"
    for path in verdict.truncated:
        yield f"{path} ends in the middle of a record, which was ignored"
    yield f"the longest stall took {verdict.stall:,.3f} s"
    records = _counted(verdict.records, "record")
    logs = _counted(verdict.logs, "log")
    read = f"{_counted(verdict.ids, 'id')} in {records} of {logs}, read in {verdict.seconds:.1f} s"
    if not findings.any:
        beyond = "none beyond the export" if verdict.exported else "no export to compare with"
        yield f"PROVED for {read}: none issued twice, none out of order, {beyond}"
        return
    yield (
        f"WRONG in {read}: {findings.duplicates:,} ids were issued twice, "
        f"{findings.out_of_order:,} ranges are out of order, "
        f"{findings.beyond_export:,} are beyond the export, {findings.malformed:,} are malformed"
    )
    yield from (f"  {message}" for message in findings.messages)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _sequence_stats(files: Files, name: int, ids: int, extents: dict[ExtentKey, Extent]) -> SequenceStats:
    sequence, period = files.names.parts(name)
    text = files.names.text(name)
    down = next(iter(extents)).step < 0
    low = min(each.low for each in extents.values())
    high = max(each.high for each in extents.values())
    last = low if down else high
    values = files.exported.last_values.get(text)
    last_value = (min(values) if down else max(values)) if values else None
    missing = 0
    if sequence not in files.exported.timestamps:
        end = last if last_value is None else last_value
        missing = max(0, expected_ids(extents, end, down=down) - ids)
    return SequenceStats(
        sequence=sequence,
        period=period,
        ids=ids,
        ranges=sum(each.records for each in extents.values()),
        first=high if down else low,
        last=last,
        last_value=last_value,
        missing=missing,
        burned=dict(sorted(files.burned.get(text, {}).items())),
    )
