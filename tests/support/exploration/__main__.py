"""Explores scenarios deeper than the tests do, or replays the trace of a violation.

python -m tests.support.exploration [--seconds S] [--extra N] [SCENARIO…]
python -m tests.support.exploration SCENARIO --extra N --replay start:0,apply:1,…
"""

import argparse
import sys

import structlog

from tests.support.exploration.scenario import Scenario
from tests.support.exploration.scenarios import SCENARIOS
from tests.support.exploration.search import Exploration, explore
from tests.support.exploration.words import from_text, replay, shortest, to_text
from tests.support.exploration.world import Budget

# How long the shortest trace of a violation is looked for.
SHORTEN_SECONDS = 30.0


def main() -> int:
    """Run the command, and return its exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        "python -m tests.support.exploration", description="Explore every order of events of small scenarios."
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"all by default: {', '.join(SCENARIOS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to explore in total (60)")
    parser.add_argument("--extra", type=int, help="faults, further jumps and preemptions; as many as there is time for")
    parser.add_argument("--brief", action="store_true", help="print no trace of a violation")
    parser.add_argument("--replay", metavar="TRACE", help="print a trace in words")
    arguments = parser.parse_args()
    if unknown := set(arguments.scenarios) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}; the scenarios are {', '.join(SCENARIOS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    scenarios = [SCENARIOS[name] for name in arguments.scenarios or SCENARIOS]
    if arguments.replay:
        budget = Budget(scenarios[0].needed, 1 if arguments.extra is None else arguments.extra)
        try:
            for line in replay(scenarios[0], budget, from_text(arguments.replay)):
                print(line)
        except ValueError as error:
            parser.error(f"--replay: {error}")
        return 0
    return max([_deepen(each, arguments, arguments.seconds / len(scenarios)) for each in scenarios])


def _deepen(scenario: Scenario, arguments: argparse.Namespace, seconds: float) -> int:
    """Explore a scenario with more and more faults, while there is time."""
    extra: int | None = arguments.extra
    for more in range(10) if extra is None else [extra]:
        budget = Budget(scenario.needed, more)
        found = explore(scenario, budget, seconds=seconds)
        print(summary(scenario, budget, found), flush=True)
        if found.problem:
            if not arguments.brief:
                print(explanation(scenario, budget, found))
            print(f"FAILED {scenario.name} - {found.problem}")
            return 1
        seconds -= found.seconds
        if not found.is_complete:
            break
    return 0


def summary(scenario: Scenario, budget: Budget, found: Exploration) -> str:
    """Return what a search did, on one line."""
    end = "complete" if found.is_complete else "a promise is broken" if found.problem else "cut"
    did = f"{found.executions:,} executions, {found.states:,} states, {found.seconds:.1f} s"
    return f"{scenario.name}, {budget.jumps} jumps and {budget.extra} extra: {did}, {end}"


def explanation(scenario: Scenario, budget: Budget, found: Exploration) -> str:
    """Return the shortest trace of a violation in words, and a command that replays it."""
    trace = shortest(scenario, budget, found.trace, SHORTEN_SECONDS)
    command = f"python -m tests.support.exploration {scenario.name} --extra {budget.extra} --replay {to_text(trace)}"
    return "\n".join([*replay(scenario, budget, trace), command])


if __name__ == "__main__":
    sys.exit(main())
