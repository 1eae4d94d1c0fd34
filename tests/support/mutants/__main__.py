"""Runs each mutant against the killers, until one finds it; ``make mutants`` does.

The exit code is 1 if a mutant survives all killers, and 2 if there is no result: the place of an
edit does not exist, the happy path fails under a mutant, a killer fails without a mutant, or a
killer ends in another way than by finding a mutant or nothing.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.support.mutants import results_page
from tests.support.mutants.catalog import MUTANTS
from tests.support.mutants.edit import Mutant, PlaceError, check
from tests.support.mutants.killers import HAPPY_PATH, KILLERS, Verdict, run

# Each killer is a process that uses a core.
JOBS = 2

Results = dict[str, dict[str, Verdict]]


class NoResultError(Exception):
    """The happy path fails, or a killer fails without a mutant or ends in another way."""


def main() -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants")
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="run only these, and write no page")
    parser.add_argument("--document", type=Path, metavar="FILE", help="write the results as Markdown")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MUTANTS):
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [MUTANTS[name] for name in options.names or MUTANTS]
    began = time.monotonic()
    try:
        for mutant in mutants:
            check(mutant)
        results = _run_all(mutants)
    except (PlaceError, NoResultError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.monotonic() - began
    survivors = [name for name, verdicts in results.items() if not any(each.killed for each in verdicts.values())]
    print(f"\n{len(results) - len(survivors)} of {len(results)} mutants killed, in {seconds:.0f} s")
    if survivors:
        print(f"survived: {', '.join(survivors)}")
    if options.document and not options.names:
        options.document.write_text(results_page.page(results, seconds))
    return bool(survivors)


def _run_all(mutants: list[Mutant]) -> Results:
    """Return the verdicts by mutant and killer, without killers that did not run.

    Raises:
        NoResultError: There is no result.
    """
    results: Results = {}
    with ThreadPoolExecutor(JOBS) as pool:
        try:
            programs = {"no mutant": None, **{mutant.name: mutant for mutant in mutants}}
            happy = zip(programs, pool.map(partial(run, HAPPY_PATH), programs.values()), strict=True)
            if unhappy := [f"{name}: {ran.note}" for name, ran in happy if ran.killed or ran.is_broken]:
                raise NoResultError("\n".join(["the happy path fails under", *unhappy]))
            for killer, alone in zip(KILLERS, pool.map(lambda killer: run(killer, None), KILLERS), strict=True):
                if alone.killed or alone.is_broken:
                    raise NoResultError(f"{killer.name} fails without a mutant: {alone.note}")
            for mutant, verdicts in zip(mutants, pool.map(_run_until_killed, mutants), strict=True):
                for name, verdict in verdicts.items():
                    if verdict.is_broken:
                        raise NoResultError(f"{mutant.name}: {name} has no result: {verdict.note}")
                results[mutant.name] = verdicts
                print(*_lines(mutant, verdicts), sep="\n", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    return results


def _run_until_killed(mutant: Mutant) -> dict[str, Verdict]:
    """Return the verdicts of the killers, of which the first that finds the mutant is the last."""
    verdicts: dict[str, Verdict] = {}
    for killer in KILLERS:
        verdicts[killer.name] = verdict = run(killer, mutant)
        if verdict.killed or verdict.is_broken:
            break
    return verdicts


def _lines(mutant: Mutant, verdicts: dict[str, Verdict]) -> Iterator[str]:
    yield f"{mutant.name} ({mutant.attacks}): {mutant.what}"
    for name, verdict in verdicts.items():
        word = {True: "killed by", False: "survives", None: "does not apply"}[verdict.killed]
        yield f"    {name:14} {verdict.seconds:5.1f} s  {word} {verdict.note}"


if __name__ == "__main__":
    sys.exit(main())
