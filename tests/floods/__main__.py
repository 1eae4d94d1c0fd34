"""Measures every flood of every port: ``make floods``.

Each flood meets a server of its own, with steady callers and probes each second, from another
address than the flooder. One row for each server has a flooder with the callers' address, as behind
NAT.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.floods import page
from tests.floods.measure import Result, measure
from tests.floods.targets import KINDS, floods_of, running_target

SAME_ADDRESS = "silent"


def main() -> int:
    """Run the command, and return its exit code: 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.floods", description=__doc__.splitlines()[0])
    parser.add_argument("--server", action="append", choices=KINDS, help="only this one; may be repeated")
    parser.add_argument("--flood", action="append", help="only this one, such as 'rapid resets'; may be repeated")
    parser.add_argument("--seconds", type=float, default=20, help="how long each flood lasts")
    parser.add_argument("--document", type=Path, metavar="FILE", help="write the results as Markdown")
    options = parser.parse_args()
    results: dict[str, list[Result]] = {}
    machine = page.machine_now() if options.document else ""
    for name in options.server or KINDS:
        try:
            results[name] = [*_measured(name, options.flood, options.seconds)]
        except pytest.skip.Exception as skipped:
            print(f"{KINDS[name].title}: skipped: {skipped}", flush=True)
    missed = [
        f"{KINDS[name].title}, {each.flood}: {'; '.join(each.misses())}"
        for name, rows in results.items()
        for each in rows
        if KINDS[name].has_goal and each.misses()
    ]
    print("\nMissed goals:", *missed or ["none"], sep="\n", flush=True)
    if options.document:
        page.write(options.document, results, options.seconds, machine)
    return bool(missed)


def _measured(name: str, only: list[str] | None, seconds: float) -> Iterator[Result]:
    """Yield the results of a server, and print them; the first is without a flood."""
    print(f"\n{KINDS[name].title}\n", *page.head(name), sep="\n", flush=True)
    floods = [flood for flood in floods_of(name) if not only or flood in only]
    tries = [("", False), *((each, False) for each in floods)]
    if SAME_ADDRESS in floods_of(name):
        tries.append((SAME_ADDRESS, True))
    for flood, same_address in tries:
        with tempfile.TemporaryDirectory() as folder, running_target(name, Path(folder)) as target:
            result = measure(target, name, flood, seconds, same_address=same_address)
        if same_address:
            result = result._replace(flood=f"{flood}, from the callers' address")
        print(page.row(result), flush=True)
        yield result


if __name__ == "__main__":
    sys.exit(main())
