"""Writes docs/operations/fault-tests.md, the results of the fault scenarios."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

# Name of the report property that carries a scenario's evidence.
PROPERTY = "evidence"
# Name of the report property that carries an exploration.
EXPLORATION = "exploration"

_HEAD = """\
# Fault tests

This page lists the faults that the tests inject into idalloc, the effect of each, and how to repeat the tests.

`make faults` writes it (here with idalloc {idalloc}, {machine}). Each scenario runs real
server processes on a real store, and clients that log every range that they receive. It injects a fault, and then runs
`idalloc verify` on all logs, the nodes' own counts and the store's counters. A scenario fails if an id is repeated, out
of order, or past the store's counter; the end of the page lists failed scenarios. All processes share these cores:
stalls are shorter on separate machines.

## How to repeat them

```sh
make faults                       # all: about {minutes:.0f} minutes, two at a time
make faults ARGS="-k pause"       # some of them: the others keep their rows
make soak                         # 25 minutes
```

`IDALLOC_TEST_CRATEDB_URL='crate://…' make faults` also runs the scenarios that need a real CrateDB.
The scenarios of OpenSearch start its nodes themselves. They are skipped if JDK 21 or Maven is not installed.

## Results

| Column | Meaning |
|---|---|
| Ids | ids in the clients' logs |
| Faults | processes killed or paused, connections cut, statements that failed |
| Repeated | ids in two records |
| Burned | granted ids that no client received |
| Uncounted | burned ids that no node counted: a killed node held them, or a reply was lost |
| Stall | the longest time between two answers to one client |
"""

_EXPLORED = """\
## Every order of events

The scenarios below run the allocator, the administration, request ids and document ids of the
server, unchanged, in simulated time. `tests/support/exploration` chooses each next event: the store
applies a call, its answer arrives or is lost, a call is applied late or twice, time passes, a
caller gives up, a node is killed or paused. It tries every order of these events within the limits
of the row, and checks P1 to P9 after each event. All searches below were complete and found no
broken promise.

| Column | Meaning |
|---|---|
| Nodes | nodes at the beginning |
| Steps | calls, changes and accidents, in any order |
| Jumps | jumps of time that the scenario needs; time does not move otherwise |
| More | what else may go wrong in one execution: a fault, another jump, or a preemption |
| Executions | sequences of events that ran to their end, or to a known state |
| Left out | what this row does not try |

A preemption is an event between two turns of a node's event loop: a pause, a call, an answer, a
cancelled caller. `make test` runs each scenario with 0 more, `make test-long` with 1;
`make explore SECONDS=600` goes deeper.

| Scenario | About | For | Nodes | Steps | Jumps | More | Executions | States | Left out | Run |
|---|---|---|-:|-:|-:|-:|-:|-:|---|---|"""


def write(file: Path, name: str, reports: list[Any]) -> None:
    """Update the page with one test's results.

    The JSON file beside it keeps the latest results of all tests, a line each.

    Args:
        name: The test's node id, which is its key in the JSON file.
        reports: The test's reports of setup, call and teardown.
    """
    kept = file.with_suffix(".json")
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    explored = [value for report in reports if report.when == "teardown" for value in _properties(report, EXPLORATION)]
    evidence = [value for report in reports if report.when == "teardown" for value in _properties(report, PROPERTY)]
    skipped = next((_reason(report) for report in reports if report.skipped), None)
    failed = any(report.failed for report in reports)
    if not evidence and not explored and not skipped and not failed:
        return
    results[name] = {
        "date": str(datetime.now(UTC).date()),
        "seconds": sum(report.duration for report in reports),
        "evidence": [] if failed else evidence,
        "explored": [] if failed else explored,
        "skipped": skipped,
        "failed": failed,
    }
    lines = (f"{json.dumps(each)}: {json.dumps(result, ensure_ascii=False)}" for each, result in results.items())
    kept.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    file.write_text(page(results))


def page(results: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    lines = [[*line, each["date"]] for each in results.values() for line in each["evidence"]]
    parts = [
        _HEAD.format(
            idalloc=version("idalloc"),
            machine=f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
            minutes=sum(each["seconds"] for each in results.values()) / 120,
        ),
        _table(sorted(lines, key=lambda line: line[0])),
    ]
    if explored := _explored(results):
        parts.append(explored)
    for title, names in (
        ("Failed in their last run", [_title(name) for name in results if results[name]["failed"]]),
        ("Skipped", sorted({each["skipped"] for each in results.values() if each["skipped"]})),
    ):
        if names:
            parts.append(f"## {title}\n")
            parts.append("\n".join(f"- {name}" for name in names) + "\n")
    return "\n".join(parts)


def _properties(report: pytest.TestReport, name: str) -> list[Any]:
    return [value for key, value in report.user_properties if key == name]


def _explored(results: dict[str, Any]) -> str:
    """Return the section of the explorations; empty without one."""
    found = [(each, result["date"]) for result in results.values() for each in result.get("explored", [])]
    if not found:
        return ""
    rows = [_EXPLORED]
    for each, date in sorted(found, key=lambda row: (row[0]["scenario"], row[0]["extra"])):
        promises = ", ".join(f"P{number}" for number in each["promises"])
        cut = "faults, preemptions" if not each["extra"] else "two at once" + ", preemptions" * (not each["preempts"])
        sizes = (each[name] for name in ("nodes", "steps", "jumps", "extra", "executions", "states"))
        cells = [each["scenario"], each["about"], promises, *(f"{size:,}" for size in sizes), cut, date]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _title(name: str) -> str:
    return name.rpartition("::")[2].replace("_", " ").removeprefix("test ")


def _reason(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"{_title(report.nodeid)}: {reason.removeprefix('Skipped: ')}"


def _table(lines: list[Any]) -> str:
    rows = [
        "| No. | Scenario | Ids | Faults | Repeated | Burned | Uncounted | Stall | Note | Run |",
        "|-:|---|-:|-:|-:|-:|-:|-:|---|---|",
    ]
    for number, title, each, date in lines:
        what = f"{title}: {each['what']}" if each["what"] else title
        rows.append(
            f"| {number} | {what} | {each['ids']:,} | {each['faults']:,} | {each['duplicates']} "
            f"| {each['burned']:,} | {each['unattributed']:,} | {each['stall']:.1f} s | {each['note']} | {date} |"
        )
    return "\n".join(rows) + "\n"
