"""Depth-first search over all choices of a scenario, by replay."""

import time
from dataclasses import dataclass

from tests.support.exploration.scenario import Scenario
from tests.support.exploration.world import Budget, Move, Violation, World


@dataclass
class Exploration:
    """What a search found."""

    executions: int = 0  # the number of executions
    states: int = 0  # the number of distinct states with a choice
    outcomes: frozenset[int] = frozenset()  # the final states
    is_complete: bool = False  # whether no choice is left
    # The first sequence of moves that breaks a promise; empty without one.
    trace: tuple[Move, ...] = ()
    problem: str = ""  # the broken promise
    seconds: float = 0.0  # how long the search took


def explore(
    scenario: Scenario, budget: Budget, *, seconds: float = 60.0, merges: bool = True, most_moves: int | None = None
) -> Exploration:
    """Explore a scenario until nothing is left, a promise is broken, or the time is over.

    Args:
        scenario: The scenario.
        budget: What may go wrong.
        seconds: When to give up.
        merges: Whether a state that was reached before is explored once only.
        most_moves: The longest execution; longer ones are cut.
    """
    began = time.monotonic()
    found = Exploration()
    seen: dict[int, int] = {}
    outcomes: set[int] = set()
    path: list[Move] = []
    left: list[list[Move]] = []
    while True:
        world = World(scenario, Budget(budget.jumps, budget.extra))
        performed = 0
        try:
            for move in path:  # all but the last move were checked before
                performed += 1
                world.perform(move)
            world.check()
            while most_moves is None or len(path) < most_moves:
                moves = world.moves()
                if not moves:
                    world.finish()
                    outcomes.add(world.state())
                    break
                if len(moves) > 1 and merges:
                    state = world.state()
                    if state in seen and (most_moves is None or seen[state] <= len(path)):
                        break
                    seen[state] = len(path)
                path.append(moves[0])
                left.append(moves[1:])
                performed += 1
                world.perform(moves[0])
                world.check()
        except Violation as violation:
            found.trace, found.problem = tuple(path[:performed]), str(violation)
        finally:
            world.end()
        found.executions += 1
        if found.problem:
            break
        while left and not left[-1]:
            left.pop()
            path.pop()
        if not left:
            found.is_complete = True
            break
        if time.monotonic() - began > seconds:
            break
        path[-1] = left[-1].pop(0)
    found.states, found.outcomes = len(seen), frozenset(outcomes)
    found.seconds = time.monotonic() - began
    return found
