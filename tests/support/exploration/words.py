"""Traces: in words for people, and as text that replays them."""

from collections.abc import Iterable, Iterator

from tests.support.exploration.node import Message
from tests.support.exploration.scenario import Scenario
from tests.support.exploration.search import explore
from tests.support.exploration.world import Budget, Move, Violation, World


def shortest(scenario: Scenario, budget: Budget, trace: tuple[Move, ...], seconds: float) -> tuple[Move, ...]:
    """Return the shortest trace that breaks a promise, as far as it can be found in time."""
    while True:
        found = explore(scenario, budget, seconds=seconds, most_moves=len(trace) - 1)
        if not found.trace:
            return trace
        trace = found.trace


def replay(scenario: Scenario, budget: Budget, trace: Iterable[Move]) -> Iterator[str]:
    """Perform the moves of a trace, and yield each in words; last the broken promise, if any.

    Raises:
        ValueError: A move is not possible at its place.
    """
    world = World(scenario, Budget(budget.jumps, budget.extra))
    try:
        for move in trace:
            if move not in (possible := world.moves()):
                raise ValueError(f"{to_text([move])} is not possible here; possible are {to_text(possible)}")
            yield describe(world, move)
            world.perform(move)
            world.check()
        if not world.moves():
            world.finish()
    except Violation as violation:
        yield str(violation)
    finally:
        world.end()


def describe(world: World, move: Move) -> str:
    """Return a move in words, before it is performed."""
    kind, subject = move
    match kind:
        case "turn":
            return f"n{subject} runs one turn of its event loop"
        case "jump":
            busy = [f"n{node.number}" for node in world.nodes if node.loop.is_busy]
            return f"{' and '.join(busy)} is paused for {subject:g} s" if busy else f"{subject:g} s pass"
        case "start":
            actor = world.actors[subject]
            return actor.steps[actor.done].words
        case "deliver":
            return world.channels[subject].words
    message = next(message for message in world.messages if message.number == subject)
    call = f"{_words(message)} of n{message.node.number}"
    late = "" if message.is_awaited else ", late"
    return {
        "apply": f"the store applies {call}{late}",
        "again": f"the store applies {call} once more",
        "answer": f"the store answers {call}: {message.refusal or message.result}",
        "twice": f"the store applies {call} once more, and gives the second answer",
        "lose": f"n{message.node.number} loses its connection during {call}",
        "refuse": f"n{message.node.number} cannot reach the store for {call}",
    }[kind]


def to_text(trace: Iterable[Move]) -> str:
    """Return a trace as one word."""
    return ",".join(f"{kind}:{subject:g}" for kind, subject in trace)


def from_text(text: str) -> tuple[Move, ...]:
    """Return the trace of ``to_text``."""
    moves = (move.partition(":") for move in text.split(","))
    return tuple((kind, float(subject) if kind == "jump" else int(subject)) for kind, _, subject in moves)


def _words(message: Message) -> str:
    arguments = ", ".join(str(each) for each in message.arguments if isinstance(each, int | str))
    return f"{message.method}({arguments})"
