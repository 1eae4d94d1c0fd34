"""Writes docs/operations/mutants.md, the mutants and what finds each."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version

from bench.markdown import table
from tests.support.mutants.catalog import MUTANTS
from tests.support.mutants.killers import KILLERS, TIMEOUT, Verdict

_HEAD = """\
# Mutants

This page shows that the tests notice faults. A *mutant* is the code with one seeded fault: an edit of a line or two
that breaks a promise of the [guarantees](../explanation/guarantees.md), or a mechanism that keeps it.

`make mutants` runs the tests below against each mutant, one kind after the other until one kills it, and writes this
page (here on {date} with idalloc {idalloc}, {machine}, in {minutes:.0f} minutes). It fails if a mutant survives all of
them. An edit whose place no longer exists is an error, also in `make test`. An edit that breaks a node in normal use is
an error, too.

| Column | What runs under the mutant |
|---|---|
{killers}

{killed} of {count} mutants were killed. A dash means that tests of this kind did not run, since those before had killed
the mutant, or since the exploration [cannot see it](#what-the-exploration-cannot-see).

"""

_UNEXPLORED = """
## What the exploration cannot see

"""

_WHAT = {
    "exploration": "every order of events of the scenarios that fit the mutant, for six seconds",
    "unit": "the unit tests of the domain",
    "state machine": "a simulated cluster under calls, changes and faults in random order: 100 examples",
}


def page(results: Mapping[str, Mapping[str, Verdict]], seconds: float) -> str:
    """Return the page as Markdown.

    Args:
        results: The verdicts by mutant and killer.
        seconds: How long all took.
    """
    names = [killer.name for killer in KILLERS]
    rows = [
        [
            f"`{name}`",
            MUTANTS[name].attacks,
            MUTANTS[name].what,
            *(_word(verdicts.get(each, Verdict(None))) for each in names),
        ]
        for name, verdicts in results.items()
    ]
    head = _HEAD.format(
        date=datetime.now(UTC).date(),
        idalloc=version("idalloc"),
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        minutes=seconds / 60,
        killers="\n".join(f"| {name.capitalize()} | {_WHAT[name]} |" for name in names),
        killed=sum(any(each.killed for each in verdicts.values()) for verdicts in results.values()),
        count=len(results),
    )
    titles = [name.capitalize() for name in names]
    reasons = [f"- `{name}`: {MUTANTS[name].unexplored}.\n" for name in results if MUTANTS[name].unexplored]
    mutants = table(["Mutant", "Attacks", "Fault", *titles], "lll" + "l" * len(titles), rows)
    return head + mutants + _UNEXPLORED + "".join(reasons)


def _word(verdict: Verdict) -> str:
    if verdict.note == TIMEOUT:
        return "killed (timeout)"
    return {True: "killed", False: "missed", None: "-"}[verdict.killed]
