"""What a scenario is made of: actors, whose steps are calls of nodes or events."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.support.exploration.node import ExploredNode
from tests.support.exploration.world import World
from tests.support.promises.calls import unless_refused


@dataclass(frozen=True)
class Step:
    """A step of an actor."""

    words: str  # what happens, for people
    node: int = 0  # the number of the node that it needs; 0 for none
    # Returns the call; None for an event.
    call: Callable[[World, ExploredNode], Coroutine[Any, Any, Any]] | None = None
    event: Callable[[World], None] | None = None
    of: int = -1  # the number of the actor whose call it concerns; -1 for none
    when: Callable[[World], bool] | None = None  # whether it can begin now; None for always
    must: bool = True  # whether it happens at some time, if it can


@dataclass
class Actor:
    """Somebody who does one thing after another."""

    name: str  # its name, for people
    steps: tuple[Step, ...]  # what it does
    done: int = 0  # how many steps it has begun
    task: "asyncio.Task[Any] | None" = None  # its last call
    at: int = 0  # the number of the node of that call

    def node(self, world: World) -> ExploredNode:
        """Return the node of the last call."""
        return world.nodes[self.at - 1]

    def next(self, world: World) -> bool | None:
        """Return whether the next step can begin; None if it can, and need not."""
        while self.done < len(self.steps):
            step = self.steps[self.done]
            if self.task is not None and not self.task.done() and not self.node(world).is_gone:
                return False
            if step.node > len(world.nodes) or (step.when is not None and not step.when(world)):
                return False
            if not step.node or not world.nodes[step.node - 1].is_gone:
                return True if step.must else None
            self.done += 1  # its node was killed
        return False

    def concerns(self, world: World) -> ExploredNode | None:
        """Return the node that the next step concerns."""
        step = self.steps[self.done]
        number = step.node or (world.actors[step.of].at if step.of >= 0 else 0)
        return world.nodes[number - 1] if 0 < number <= len(world.nodes) else None

    def start(self, world: World) -> None:
        """Begin the next step."""
        step = self.steps[self.done]
        self.done += 1
        if step.node:
            node = world.nodes[step.node - 1]
            node.see("start", self.name, self.done, world.now)
            if step.call is not None:
                self.at = step.node
                self.task = world.call(node, unless_refused(step.call, world, node))
        if step.event is not None:
            step.event(world)


@dataclass(frozen=True)
class Scenario:
    """A small situation whose every order of events is explored."""

    name: str
    about: str  # what it is about, for people
    set_up: Callable[[World], None]  # adds sequences, nodes and actors to a world
    promises: tuple[int, ...]  # the numbers of the promises that it is for; all are checked
    jumps: tuple[float, ...] = ()  # the jumps of time that may happen, in seconds
    needed: int = 0  # how many of them the scenario needs
    preempts: bool = True  # whether an event may happen between two turns of a node's event loop
    # Whether something else may go wrong in ``make test-long``, see ``Budget.extra``.
    has_more: bool = True
    serves_after: bool = False  # whether each node must issue an id in the end
    is_long: bool = False  # whether it is explored in ``make test-long`` only
