"""Every order of events of small scenarios keeps the promises: no sample, but all of them.

``make explore SECONDS=600`` goes deeper. A failure prints the shortest trace in words and a command
that replays it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.store.records import RowVersion
from tests.support.exploration.__main__ import explanation
from tests.support.exploration.scenario import Actor, Scenario, Step
from tests.support.exploration.scenarios import SCENARIOS
from tests.support.exploration.search import Exploration, explore
from tests.support.exploration.steps import allocate, stop
from tests.support.exploration.words import from_text, replay, to_text
from tests.support.exploration.world import Budget, World
from tests.support.fake_store import MemoryStore
from tests.support.faults.results_page import EXPLORATION

# The time that a search may take on a slow machine.
SECONDS = 600.0
# Small enough to be finished without merging equal states.
TINY = ("cancel", "idle-close", "abandon", "period-clock")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
def search(record_property: Callable[[str, object], None]) -> Callable[[Scenario, int], Exploration]:
    """Explore a scenario completely, and record the result for docs/operations/fault-tests.md."""

    def run(scenario: Scenario, extra: int) -> Exploration:
        budget = Budget(scenario.needed, extra)
        found = explore(scenario, budget, seconds=SECONDS)
        assert not found.problem, explanation(scenario, budget, found)
        assert found.is_complete
        world = World(scenario, budget)
        world.end()
        row = {
            "scenario": scenario.name,
            "about": scenario.about,
            "promises": scenario.promises,
            "nodes": len(world.nodes),
            "steps": sum(len(actor.steps) for actor in world.actors),
            "jumps": scenario.needed,
            "extra": extra,
            "preempts": scenario.preempts,
            "executions": found.executions,
            "states": found.states,
            "seconds": found.seconds,
        }
        record_property(EXPLORATION, row)
        return found

    return run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.test_long, pytest.mark.timeout(SECONDS)] if each.is_long else [])
        for name, each in SCENARIOS.items()
    ],
)
def test_every_order_of_events_keeps_the_promises(name: str, search: Callable[[Scenario, int], Exploration]) -> None:
    """P1 to P9: in each scenario, every order of its events keeps the promises."""
    assert search(SCENARIOS[name], 0).executions > 1


@pytest.mark.test_long
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", [name for name, each in SCENARIOS.items() if each.has_more])
def test_every_order_with_a_fault_keeps_the_promises(name: str, search: Callable[[Scenario, int], Exploration]) -> None:
    """P1 to P9: so does every order with one fault, one further jump of time, or one preemption."""
    assert search(SCENARIOS[name], 1).executions > 100


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("name", "extra"),
    [*((name, 0) for name in TINY), *(pytest.param(name, 1, marks=pytest.mark.test_long) for name in TINY[:2])],
)
def test_merging_of_equal_states_loses_no_outcome(name: str, extra: int) -> None:
    """A state that was reached before has no other ends than before."""
    scenario = SCENARIOS[name]
    merged, whole = (
        explore(scenario, Budget(scenario.needed, extra), seconds=SECONDS, merges=merges) for merges in (True, False)
    )
    assert merged.is_complete
    assert whole.is_complete
    assert merged.outcomes == whole.outcomes
    assert merged.executions < whole.executions


def test_an_execution_is_deterministic() -> None:
    """The same moves lead to the same state."""
    scenario, budget = SCENARIOS["request-id"], Budget(0, 1)
    states = set()
    for _ in range(3):
        world = World(scenario, replace(budget))
        while moves := world.moves():
            world.perform(moves[len(moves) // 2])
        states.add(world.state())
        world.end()
    assert len(states) == 1


class _ForgetfulStore(MemoryStore):
    """Gives a tail back also if the row was written since."""

    def _give_back(self, name: str, count: int, version: RowVersion) -> bool:
        row = self.rows[name]
        return super()._give_back(name, count, (row.version, 1, row.generation))


def _tail_beside_a_grant(world: World) -> None:
    world.store = _ForgetfulStore(world.store.clock)
    world.add_sequence("a", min_lease_size=3)
    for node in (world.add_node(), world.add_node()):
        for _ in range(2):
            world.run(node, world.calls.allocate(node, "a", 1))
    world.actors += [Actor("one", (stop(2),)), Actor("two", (allocate(1, 3), allocate(1, 3)))]


@pytest.mark.parametrize(("error", "text"), [(AssertionError(), "AssertionError()"), (KeyError("x"), "'x'")])
def test_no_broken_check_is_overlooked(error: Exception, text: str) -> None:
    """A check without a text, or an error of another kind, ends the search as a violation."""

    async def fail(_: World, node: object) -> None:
        raise error

    def set_up(world: World) -> None:
        world.add_node()
        world.actors.append(Actor("one", (Step("a call fails", 1, fail),)))

    assert explore(Scenario("planted", "", set_up, (1,)), Budget()).problem == text


def test_a_violation_is_explained_and_replayed() -> None:
    """A planted fault of the store is found, with its shortest trace and a command to repeat it."""
    scenario, budget = Scenario("planted", "", _tail_beside_a_grant, (2,)), Budget()
    found = explore(scenario, budget)
    assert "P" in found.problem
    lines = explanation(scenario, budget, found).splitlines()
    trace = from_text(lines[-1].rpartition(" ")[2])
    assert lines[:-1] == [*replay(scenario, budget, trace)]
    assert len(trace) <= len(found.trace)
    assert found.problem.partition("(P")[2][:1] == lines[-2].partition("(P")[2][:1]
    assert any("the store applies give_back" in line for line in lines)
    assert from_text(to_text(trace)) == trace
