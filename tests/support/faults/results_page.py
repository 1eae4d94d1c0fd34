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

_HEAD = """\
# Fault tests

This page shows which faults idalloc was tested against, what each of them cost, and how to repeat the tests.

`make faults` writes it (here with idalloc {idalloc}, {machine}). Each scenario runs real
server processes on a real store, and clients that log every range that they receive. It injects a fault, and then runs
`idalloc verify` on all logs, the nodes' own counts and the store's counters. A scenario fails if an id is repeated, out
of order, or past the store's counter; failed scenarios are listed at the end. All processes share these cores: stalls
are shorter on separate machines.

## How to repeat them

```sh
make faults                       # all: about {minutes:.0f} minutes, two at a time
make faults ARGS="-k pause"       # some of them: the others keep their rows
make soak                         # ten minutes
```

`IDALLOC_TEST_CRATEDB_URL='crate://…' make faults` also runs the scenarios that need a real CrateDB.
Those of OpenSearch start its nodes themselves. They are skipped where no JDK 21 or no Maven is installed.

## Results

| Column | Meaning |
|---|---|
| Ids | ids in the clients' logs |
| Faults | processes killed or paused, connections cut, statements that failed |
| Repeated | ids in two records |
| Burned | granted ids that no client received |
| Uncounted | burned ids that no node counted: a killed node held them, or a reply did not arrive |
| Stall | the longest time between two answers to one client |
"""


def write(file: Path, name: str, reports: list[Any]) -> None:
    """Updates the page with the results of one test; the JSON file beside it keeps the latest results of all tests.

    Args:
        file: The page.
        name: The test's node id, which is its key in the JSON file.
        reports: The test's reports of setup, call and teardown.
    """
    kept = file.with_suffix(".json")
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    evidence = [value for report in reports if report.when == "teardown" for value in _evidence(report)]
    skipped = next((_reason(report) for report in reports if report.skipped), None)
    failed = any(report.failed for report in reports)
    if not evidence and not skipped and not failed:
        return
    results[name] = {
        "date": str(datetime.now(UTC).date()),
        "seconds": sum(report.duration for report in reports),
        "evidence": [] if failed else evidence,
        "skipped": skipped,
        "failed": failed,
    }
    kept.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    file.write_text(page(results))


def page(results: dict[str, Any]) -> str:
    """Returns the page as Markdown."""
    lines = [[*line, each["date"]] for each in results.values() for line in each["evidence"]]
    parts = [
        _HEAD.format(
            idalloc=version("idalloc"),
            machine=f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
            minutes=sum(each["seconds"] for each in results.values()) / 120,
        ),
        _table(sorted(lines, key=lambda line: line[0])),
    ]
    for title, names in (
        ("Failed in their last run", [_title(name) for name in results if results[name]["failed"]]),
        ("Skipped", sorted({each["skipped"] for each in results.values() if each["skipped"]})),
    ):
        if names:
            parts.append(f"## {title}\n")
            parts.append("\n".join(f"- {name}" for name in names) + "\n")
    return "\n".join(parts)


def _evidence(report: pytest.TestReport) -> list[Any]:
    return [value for name, value in report.user_properties if name == PROPERTY]


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
