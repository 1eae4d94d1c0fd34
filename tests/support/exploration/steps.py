"""The steps of actors: calls of a node, acts of operators, and accidents."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from idalloc_server.backup.export_file import read_export
from idalloc_server.backup.exporter import export_lines
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.store.identity import Opening
from idalloc_server.domain.store.retirement import RETIREMENT
from tests.support.exploration.node import ExploredNode
from tests.support.exploration.scenario import Step
from tests.support.exploration.world import World

Given = tuple[int, str] | dict[str, Any] | None


def allocate(node: int, id_count: int = 1, name: str = "a", when: Callable[[World], bool] | None = None) -> Step:
    """A caller takes ids."""

    def call(world: World, at: ExploredNode) -> Coroutine[Any, Any, None]:
        return world.calls.allocate(at, name, id_count)

    return Step(f"a caller asks n{node} for {id_count} of {name!r}", node, call, when=when)


def allocate_once(node: int, request_id: str, id_count: int = 1, name: str = "a") -> Step:
    """A caller takes ids with a request id."""

    def call(world: World, at: ExploredNode) -> Coroutine[Any, Any, None]:
        return world.calls.allocate_once(at, name, id_count, request_id)

    return Step(f"a caller asks n{node} for {id_count} of {name!r} as request {request_id}", node, call)


def make_doc_ids(
    node: int, id_count: int = 1, increment: int = 0, when: Callable[[World], bool] = lambda _: True
) -> Step:
    """A caller takes document ids of a node that has started."""

    def call(world: World, at: ExploredNode) -> Coroutine[Any, Any, None]:
        return world.calls.make_doc_ids(at, id_count, 0, increment)

    def is_possible(world: World) -> bool:
        return world.nodes[node - 1].doc_ids is not None and when(world)

    return Step(f"a caller asks n{node} for {id_count} document ids", node, call, when=is_possible)


def change(
    node: int, kind: str, given: Given = None, name: str = "a", request_id: str = "", *, must: bool = True
) -> Step:
    """An operator changes a sequence, or may change it: create, update, delete or advance."""

    async def call(world: World, at: ExploredNode) -> None:
        change_key = at.service.change_key(request_id, repr((kind, name, given)).encode())
        await world.calls.change(at, name, kind, given, change_key)

    return Step(f"an operator asks n{node} to {kind} {name!r}" + (f": {given}" if given else ""), node, call, must=must)


def bring_in(node: int, lines: list[bytes]) -> Step:
    """An operator imports an export."""
    assert not read_export(lines).problems

    def call(world: World, at: ExploredNode) -> Coroutine[Any, Any, None]:
        return world.calls.bring_in(at.connection, at.clock, lines)

    return Step(f"n{node} imports an export", node, call)


def export(node: int, name: str = "a") -> Step:
    """An operator exports the store. All ids issued before are at or before its counter."""

    async def call(world: World, at: ExploredNode) -> None:
        issued = [each.ids[-1] for each in world.promises.issued[name, ""]]
        at.see("issued", *issued)  # what is checked is not in the history of the node otherwise
        lines = [line.encode() async for line in export_lines(at.connection)]
        (item,) = read_export(lines).items
        last_value = item.row.last_value
        assert last_value is not None
        assert max(issued, default=last_value) <= last_value, f"{issued} are issued, and {last_value} is exported (P2)"

    return Step(f"n{node} exports the store", node, call)


def retire(node: int, *names: str) -> Step:
    """An operator retires the store, in which these sequences are used."""
    return Step(f"n{node} retires the store", node, lambda world, at: world.calls.retire(at, names))


def is_retired(world: World) -> bool:
    """Whether the retirement of the store has begun."""
    return RETIREMENT in world.store.rows


def check_idle(node: int) -> Step:
    """The node closes sequences that were not used since its last check."""
    return Step(f"n{node} closes idle sequences", node, lambda _, at: at.allocator.check_idle_sequences())


def prune(node: int) -> Step:
    """The node removes answers of request ids whose window is over."""
    return Step(f"n{node} removes old request ids", node, lambda _, at: at.request_ids.prune())


def abandon(node: int) -> Step:
    """The node reaches the time limit of its stop, before it has given anything back."""

    def event(world: World) -> None:
        at = world.nodes[node - 1]
        at.request_ids.abandon()
        at.allocator.abandon()

    return Step(f"the stop of n{node} reaches its time limit", node, event=event)


def stop(node: int) -> Step:
    """The node stops, and gives its tails back."""

    async def call(_: World, at: ExploredNode) -> None:
        finish = (at.service.finish_changes(), at.request_ids.finish_recording(), at.allocator.return_leases())
        await asyncio.gather(*finish)
        is_alone = len(at.callers) == 1  # this one
        assert not (is_alone and at.connection.pending), "a stop leaves calls to the store behind (P7, P9)"

    return Step(f"n{node} stops", node, call)


def claim(node: int) -> Step:
    """The node claims its start timestamp."""

    async def call(world: World, at: ExploredNode) -> None:
        await at.claim_start()
        world.promises.record_start(at)

    return Step(f"n{node} claims a start timestamp", node, call)


def set_prefix(node: int, prefix: int) -> Step:
    """An operator changes the prefix of a node."""
    return Step(f"n{node} changes its prefix to {prefix}", node, lambda world, at: world.calls.set_prefix(at, prefix))


def start(prefix: int = 0) -> Step:
    """A further node starts."""

    def event(world: World) -> None:
        world.add_node(prefix)

    return Step("a node starts", event=event)


def kill(node: int) -> Step:
    """The node is killed as by SIGKILL."""
    return Step(f"n{node} is killed", node, event=lambda world: world.kill(world.nodes[node - 1]))


def fork(node: int, *, repeats_pid: bool = False, is_noticed: bool = True) -> Step:
    """The node may become the child of a fork. Its parent and its calls in flight end."""
    how = "with its old process id" if repeats_pid else "with a new process id"
    return Step(
        f"n{node} forks {how}" + ", unnoticed" * (not is_noticed),
        node,
        event=lambda world: world.fork(world.nodes[node - 1], repeats_pid=repeats_pid, is_noticed=is_noticed),
        when=lambda world: not is_child(world, node),
        must=False,
    )


def is_child(world: World, node: int) -> bool:
    """Whether a node has become the child of a fork."""
    return world.nodes[node - 1] in world.promises.children


def set_clock(node: int, seconds: float) -> Step:
    """Somebody sets a node's wall clock."""

    def event(world: World) -> None:
        at = world.nodes[node - 1]
        at.clock.offset += seconds

    return Step(f"the clock of n{node} is set by {seconds:+g} s", node, event=event)


def restore() -> Step:
    """An operator restores the older copy of the store."""
    return Step("an operator restores the older copy of the store", event=lambda world: world.restore())


def exchange(*, whole: bool) -> Step:
    """An operator may exchange the whole store for an empty one, or lose the sequences alone."""

    def event(world: World) -> None:
        world.store.exchange(whole=whole)
        world.promises.record_restore(is_noticed=True)

    what = "exchanges the store" if whole else "loses the sequences"
    return Step(f"an operator {what}", event=event, must=False)


def open_store(node: int, first: int = 0) -> Step:
    """A process opens the store: a fresh one, or a worker of a server with the worker ``first``."""

    async def call(world: World, at: ExploredNode) -> None:
        opening = Opening(name=f"store of n{node}")
        if first:
            opening = Opening(creates=False, expected=world.nodes[first - 1].connection.opened)
        with suppress(StartRefused):
            await at.connection.open(opening)
            at.has_opened = True

    return Step(f"n{node} opens the store", node, call)


def has_opened(world: World, node: int) -> bool:
    """Whether a process has opened the store."""
    return len(world.nodes) >= node and world.nodes[node - 1].has_opened


def lose_marks() -> Step:
    """The witness loses all its marks."""

    def event(world: World) -> None:
        assert world.witness is not None
        world.witness.marks.clear()
        world.loses_marks = True

    return Step("the witness loses all marks", event=event)


def cancel(actor: int) -> Step:
    """A caller may give up."""

    def event(world: World) -> None:
        task = world.actors[actor].task
        assert task is not None
        world.actors[actor].node(world).see("cancel", actor, world.now)
        task.cancel()

    def is_waiting(world: World) -> bool:
        task = world.actors[actor].task
        return task is not None and not task.done()

    return Step(f"caller {actor + 1} gives up", event=event, of=actor, when=is_waiting, must=False)
