"""Writes docs/faults.md: what was tried, and what came of it, as the run itself saw it."""

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

# What a scenario's evidence travels under, from the test to the end of the run.
PROPERTY = "evidence"

_HEAD = """\
# What was done to it, and what came of it

Written by `make faults` itself ({date}, idalloc {idalloc}, {machine}): real server
processes on a real store, clients that log each range that they get, a fault, and then `idalloc verify` over all logs,
the nodes' own counts and the store's counters. Where a scenario shows one id twice, out of order, or past the store's
counter, it fails, and this page is not written.

```sh
make faults                       # about {minutes:.0f} minutes
make faults ARGS="-k paused"      # one of them; the page stays as it is
make soak                         # ten minutes
```

`IDALLOC_TEST_CRATEDB_URL='crate://…' make faults` tries on that CrateDB what needs a real one.
"""

_LEGEND = """\
**ids**: as many are in the clients' logs. **faults**: how often something was killed, stopped, cut or broken.
**twice**: ids that two records have. **burned**: ids that were taken and that nobody has, and how many of them no node
counted: what a node held that was killed, or a reply that did not arrive. **stall**: the longest time between two
answers of one client.
"""


def write(file: Path, reports: Iterable[Any]) -> None:
    """Writes the page from the reports of a run, if all that was asked for ran and passed."""
    reports = list(reports)
    ended = [report for report in reports if report.when == "call" or not report.passed]
    failed = [report for report in ended if report.failed]
    lines = [value for report in reports if report.when == "teardown" for value in _evidence(report)]
    if failed or not lines:
        return
    seconds = sum(report.duration for report in reports)
    parts = [
        _HEAD.format(
            date=datetime.now(UTC).date(),
            idalloc=version("idalloc"),
            machine=f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
            minutes=seconds / 60,
        ),
        _table(sorted(lines, key=lambda line: line[0])),
        _LEGEND,
    ]
    if skipped := [report for report in ended if report.skipped]:
        parts.append("Not tried here:\n")
        parts.append("\n".join(f"- {_reason(report)}" for report in skipped) + "\n")
    file.write_text("\n".join(parts))


def _evidence(report: pytest.TestReport) -> list[Any]:
    return [value for name, value in report.user_properties if name == PROPERTY]


def _reason(report: Any) -> str:
    name = report.nodeid.rpartition("::")[2].replace("_", " ").removeprefix("test ")
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"{name}: {reason.removeprefix('Skipped: ')}"


def _table(lines: list[Any]) -> str:
    rows = ["| | what | ids | faults | twice | burned, of these uncounted | stall | |", "|-:|---|-:|-:|-:|-:|-:|---|"]
    for number, title, each in lines:
        what = f"{title}: {each['what']}" if each["what"] else title
        rows.append(
            f"| {number} | {what} | {each['ids']:,} | {each['faults']:,} | {each['duplicates']} "
            f"| {each['burned']:,}, {each['unattributed']:,} | {each['stall']:.1f} s | {each['note']} |"
        )
    return "\n".join(rows) + "\n"
