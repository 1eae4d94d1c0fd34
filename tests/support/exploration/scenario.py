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
    """A step of an actor.

    Attributes:
        words: What happens, for people.
        node: The number of the node that it needs; 0 for none.
        call: Returns the call; None for an event.
        event: The event.
        of: The number of the actor whose call it concerns; -1 for none.
        when: Whether it can begin now; None for always.
        must: Whether it happens at some time, if it can.
    """

    words: str
    node: int = 0
    call: Callable[[World, ExploredNode], Coroutine[Any, Any, Any]] | None = None
    event: Callable[[World], None] | None = None
    of: int = -1
    when: Callable[[World], bool] | None = None
    must: bool = True


@dataclass
class Actor:
    """Somebody who does one thing after another.

    Attributes:
        name: Its name, for people.
        steps: What it does.
        done: How many steps it has begun.
        task: Its last call.
        at: The number of the node of that call.
    """

    name: str
    steps: tuple[Step, ...]
    done: int = 0
    task: "asyncio.Task[Any] | None" = None
    at: int = 0

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
        """Begins the next step."""
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
    """A small situation whose every order of events is explored.

    Attributes:
        name: Its name.
        about: What it is about, for people.
        set_up: Adds sequences, nodes and actors to a world.
        promises: The numbers of the promises that it is for; all are checked.
        jumps: The jumps of time that may happen, in seconds.
        needed: How many of them the scenario needs.
        preempts: Whether an event may happen between two turns of a node's event loop.
        has_more: Whether something else may go wrong in ``make test-long``, see ``Budget.extra``.
        serves_after: Whether each node must issue an id in the end.
        is_long: Whether it is explored in ``make test-long`` only.
    """

    name: str
    about: str
    set_up: Callable[[World], None]
    promises: tuple[int, ...]
    jumps: tuple[float, ...] = ()
    needed: int = 0
    preempts: bool = True
    has_more: bool = True
    serves_after: bool = False
    is_long: bool = False
