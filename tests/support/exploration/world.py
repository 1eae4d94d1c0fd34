"""Nodes, their store and the calls between them, where every next event is chosen from outside."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from idalloc_server.domain.allocation import reserve
from idalloc_server.domain.errors import GrantLost, Refusal, StartRefused, StoreOutcomeUnknown, StoreUnreachable
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.exploration.node import READS, ExploredNode, Message
from tests.support.fake_store import Backup, MemoryStore
from tests.support.fake_witness import MemoryWitness
from tests.support.memory_rows import Row
from tests.support.promises.calls import CheckedCalls
from tests.support.promises.checker import PromiseChecker, counters, moved_back, passed_bounds
from tests.support.simulation.loop import SimulatedLoop, simulated_loop
from tests.support.simulation.node import CONFIG, REQUEST_ID_WINDOW, MachineClock

if TYPE_CHECKING:
    from tests.support.exploration.scenario import Actor, Scenario
    from tests.support.exploration.workers import Channel

# A kind of move and what it moves, such as ("apply", 3): numbers and text only, so that a trace can
# be written down.
Move = tuple[Any, ...]


# How often the last calls are answered, and time passes, before a call counts as waiting for ever.
FINAL_ROUNDS = 12
_RESERVE = reserve.GENEROSITY, reserve.LARGEST_CALLS


class Violation(AssertionError):
    """A broken promise."""


@dataclass
class Budget:
    """How much a scenario may go wrong."""

    jumps: int = 0  # jumps of time
    # Faults, further jumps and preemptions together. A preemption is an event between two turns of
    # the event loop of a node that is not idle.
    extra: int = 0


@dataclass
class World:
    """One execution of a scenario."""

    scenario: "Scenario"  # sets up nodes, sequences and actors
    budget: Budget  # what may go wrong
    now: float = 0.0  # the simulated time, in seconds
    nodes: list[ExploredNode] = field(default_factory=list)  # the nodes, also killed ones
    # The calls to the store that may still matter.
    messages: list[Message] = field(default_factory=list)
    actors: "list[Actor]" = field(default_factory=list)  # what the callers do
    # Broken promises that were found outside of a call.
    problems: list[str] = field(default_factory=list)
    moved: int = 0  # the number of ids by which grants moved the counters, less those given back
    # By how many ids the nodes may miss ids that the counters moved past, because of faults.
    slack: int = 0
    excess: int = 0  # how many ids the nodes may count as burned that no counter moved past
    backup: Backup | None = None  # the older copy of the store for ``restore``; None without one
    # The setting of nodes that start, in seconds; with 0 leases are small, so that they end soon.
    outage_reserve: float = 0.0
    witness: MemoryWitness | None = None  # the witness of nodes that start; None without one
    # Whether the witness was restored or emptied: then a restored store is not noticed.
    loses_marks: bool = False
    channels: "list[Channel]" = field(default_factory=list)  # between the processes of a server
    # What must hold once all is over; each raises an ``AssertionError``.
    final_checks: list[Callable[[], None]] = field(default_factory=list)
    patches: ExitStack = field(default_factory=ExitStack)  # of the server's code, until the end
    _numbers: int = 0
    _parents: list[SimulatedLoop] = field(default_factory=list)  # loops that were left by a fork

    def __post_init__(self) -> None:
        self.store = MemoryStore(MachineClock(lambda: self.now))
        self.promises = PromiseChecker()
        self.calls = CheckedCalls(self.promises, lambda: self.now)
        self.scenario.set_up(self)
        self.check()

    # Called by scenarios.

    def add_sequence(self, name: str, **settings: Any) -> None:
        """Add a sequence without issued ids."""
        sequence = Sequence(**settings)
        self.store.rows[name] = Row(sequence, sequence.before_start)

    def add_node(
        self, prefix: int = 0, window: float = REQUEST_ID_WINDOW, kind: type[ExploredNode] = ExploredNode
    ) -> ExploredNode:
        """Start a node; without ``outage_reserve`` only calls that wait refill its leases.

        A refill beside each call would multiply the orders of events tenfold.
        """
        if not self.outage_reserve:
            reserve.GENEROSITY = reserve.LARGEST_CALLS = 0
        config = replace(CONFIG, outage_reserve=self.outage_reserve)
        node = kind(self, len(self.nodes) + 1, prefix, window, config)
        self.nodes.append(node)
        return node

    def run(self, node: ExploredNode, work: Coroutine[Any, Any, Any]) -> None:
        """Run a call to its end, without any choice."""
        task = node.loop.create_task(work)
        self._complete(task)
        task.result()

    def serve_until(self, node: ExploredNode, method: str) -> None:
        """Answer the calls of a node to the store until it sends one of a method."""
        self._settle()
        while (
            message := next(each for each in self.messages if each.node is node and each.is_awaited)
        ).method != method:
            self._apply(message)
            self._answer(message)
            self._settle()

    def call(self, node: ExploredNode, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start a call."""
        task = node.loop.create_task(work)
        node.callers.append(task)
        task.add_done_callback(node.callers.remove)
        return task

    def send(self, node: ExploredNode, method: str, arguments: tuple[Any, ...]) -> Message:
        """Add a call to the store."""
        self._numbers += 1
        node.sent += 1
        message = Message(self._numbers, node, node.sent, method, arguments, node.loop.create_future())
        self.messages.append(message)
        if node.is_worker:
            self._apply(message)
        return message

    # Called by steps.

    def kill(self, node: ExploredNode) -> None:
        """Kill a node; calls that it has sent may still be applied."""
        awaited = [message for message in self.messages if message.node is node and message.is_awaited]
        self.slack += node.received + sum(message.requested_ids for message in awaited)
        node.is_gone = True
        node.connection.cut = True

    def fork(self, node: ExploredNode, *, repeats_pid: bool, is_noticed: bool) -> None:
        """Turn a node into the child of a fork. Its parent ends; its calls in flight are lost."""
        node.see("fork", self.now)
        self.messages = [message for message in self.messages if message.node is not node]
        self._parents.append(node.loop)
        node.loop, node.callers = simulated_loop(lambda: self.now), []
        self.promises.children.add(node)
        node.process.fork(repeats_pid=repeats_pid, is_noticed=is_noticed)

    def restore(self) -> None:
        """Restore the older copy of the store."""
        assert self.backup is not None
        self.store.restore(self.backup)
        self.promises.record_restore(is_noticed=self.witness is not None and not self.loses_marks)

    # Called by the search.

    def moves(self) -> list[Move]:
        """Return the moves that are possible now; none if the execution is over."""
        extra = self.budget.extra
        busy = next((node for node in self.nodes if node.loop.is_busy and not node.is_gone), None)
        if busy is not None and not extra:
            return [("turn", busy.number)]
        moves, optional = self._free_moves()
        if busy is None and not moves:
            return []
        optional += self._jumps()
        if extra:
            optional += self._faults()
        if busy is None:
            return moves + optional
        # Other events commute with the turns of this node.
        return [("turn", busy.number), *(move for move in moves + optional if self._touches(move, busy))]

    def perform(self, move: Move) -> None:
        """Perform a move. Replies are checked as they come; ``check`` checks the rest."""
        kind = move[0]
        preempts = kind not in ("turn", "apply") and any(node.loop.is_busy and not node.is_gone for node in self.nodes)
        if kind == "jump" and self.budget.jumps:
            self.budget.jumps -= 1
        elif kind in ("jump", "lose", "refuse", "again", "twice"):
            preempts = True
        self.budget.extra -= preempts
        getattr(self, f"_do_{kind}")(*move[1:])
        if preempts:
            for message in list(self.messages):
                self._forget(message)
        if not self.budget.extra or not self.scenario.preempts:
            self._settle()

    def check(self) -> None:
        """Check what holds between any two events."""
        self.problems += [_text(error.get("promise", error)) for node in self.nodes for error in node.loop.errors]
        if self.problems:
            raise Violation(self.problems[0])
        for node in self.nodes:
            if node.is_quiet and not node.is_gone and not node.loop.is_busy and node not in self.promises.children:
                try:
                    self.promises.check_balance(node)
                    self.promises.check_last_ids(node)
                except AssertionError as error:
                    raise Violation(_text(error)) from None

    def finish(self) -> None:
        """Let time pass, and check that every call has ended and every id is accounted for (P9).

        Raises:
            Violation: A promise is broken.
        """
        for message in [message for message in self.messages if not message.applied and not message.is_awaited]:
            self._apply(message)
        for _ in range(FINAL_ROUNDS):
            self._pass(self.now + CONFIG.store_timeout)
            while self._answer_all():
                pass
        self.check()
        for check in self.final_checks:
            try:
                check()
            except AssertionError as error:
                raise Violation(_text(error)) from None
        children = self.promises.children
        for actor in self.actors:
            if actor.task is not None and not actor.task.done():
                node = actor.node(self)
                if not node.is_gone and node not in children:
                    raise Violation(f"{actor.name} waits for ever")
        for node in self.nodes:
            if not (node.is_gone or node in children or node.is_quiet):
                raise Violation(f"{node.name} still has tasks: {[task.get_name() for task in node.loop.tasks]}")
        if self.backup is None and not children:
            self._check_unattributed()
        if self.scenario.serves_after:
            self._check_service()

    def _check_unattributed(self) -> None:
        """Check that no ids are missing but those of faults; ``check_balance`` checks each node."""
        ledgers = [node.connection.ledger for node in self.nodes]
        missing = self.moved - sum(ledger.granted - ledger.returned + ledger.unknown for ledger in ledgers)
        if not -self.excess - sum(ledger.unknown for ledger in ledgers) <= missing <= self.slack:
            raise Violation(f"{missing} ids are unattributed, by faults at most {self.slack} (P9)")

    def _check_service(self) -> None:
        for node in self.nodes:
            task = None
            for _ in range(FINAL_ROUNDS):
                if not node.is_gone and (task is None or task.exception() is not None):
                    task = node.loop.create_task(self.calls.allocate(node, "a", 1))
                    self._complete(task)
                    self._pass(self.now + CONFIG.store_timeout + 1.0)
            if task is not None and (error := task.exception()) is not None:
                raise Violation(f"{node.name} does not serve again: {error}")
        self.check()

    def state(self) -> int:
        """Return a hash of all that the rest of the execution depends on."""
        nodes = tuple((node.history, node.is_gone) for node in self.nodes)
        rows = tuple((name, *vars(row).values()) for name, row in self.store.rows.items())
        prefixes = tuple((prefix, *vars(row).values()) for prefix, row in self.store.prefixes.items())
        records = (*self.store.allocations.items(), *self.store.copies.items(), self.store.place)
        marks = tuple(self.witness.marks.items()) if self.witness else ()
        actors = tuple(actor.done for actor in self.actors)
        messages = tuple(message.state() for message in self.messages)
        budget = (self.budget.jumps, self.budget.extra, self.now, self.slack, self.excess, self.moved)
        return hash((nodes, rows, prefixes, records, marks, actors, messages, budget, self.promises.state()))

    def end(self) -> None:
        """End all tasks."""
        reserve.GENEROSITY, reserve.LARGEST_CALLS = _RESERVE
        self.patches.close()
        for node in self.nodes:
            node.connection.cut = True
        for loop in [*(node.loop for node in self.nodes), *self._parents]:
            while loop.run_ready():  # tasks that have not begun would leave coroutines that were never awaited
                pass
            for _ in range(20):
                for task in list(loop.tasks):
                    task.cancel()
                while loop.run_ready():
                    pass

    # Moves. Each is a method of the name ``_do_`` and its kind.

    def _do_turn(self, number: int) -> None:
        node = self.nodes[number - 1]
        node.see("turn", self.now)
        node.loop.run_ready()

    def _do_start(self, index: int) -> None:
        self.actors[index].start(self)

    def _do_apply(self, number: int) -> None:
        self._apply(self._message(number))

    def _do_again(self, number: int) -> None:
        message = self._message(number)
        before = self.moved
        self._apply(message)
        self.slack += max(0, self.moved - before)

    def _do_twice(self, number: int) -> None:
        """The store applies a call again before it answers, and gives the second answer."""
        message = self._message(number)
        message.result, message.refusal = self._apply(message)
        self.slack += message.requested_ids  # of the first answer

    def _do_deliver(self, index: int) -> None:
        self.channels[index].deliver()

    def _do_answer(self, number: int) -> None:
        self._answer(self._message(number))

    def _do_lose(self, number: int) -> None:
        """The caller loses its connection. The call may have been applied, or may still be."""
        message = self._message(number)
        message.node.see("lose", message.index, self.now)
        message.answer.set_exception(StoreOutcomeUnknown("the connection was reset"))
        self._forget(message)

    def _do_miss(self, number: int) -> None:
        """The answer to a joined write lacks a row."""
        message = self._message(number)
        message.node.see("miss", message.index, self.now)
        message.answer.set_exception(GrantLost(message.arguments[0], "it is missing in the answer"))
        self._forget(message)

    def _do_refuse(self, number: int) -> None:
        """The store cannot be reached."""
        message = self._message(number)
        message.node.see("refuse", message.index, self.now)
        message.answer.set_exception(StoreUnreachable("the store cannot be reached"))
        self.messages.remove(message)

    def _do_jump(self, seconds: float) -> None:
        """Time passes. A node that has callbacks to run is paused meanwhile."""
        self._pass(self.now + seconds)

    def _free_moves(self) -> tuple[list[Move], list[Move]]:
        """Return the moves that cost nothing: those that must happen, and those that may."""
        moves: list[Move] = []
        optional: list[Move] = []
        for message in self.messages:
            if message.is_awaited:
                moves.append(("answer" if message.applied else "apply", message.number))
                if message.may_be_missing:
                    moves.append(("miss", message.number))
            elif not message.applied:
                optional.append(("apply", message.number))
        moves += [("deliver", index) for index, channel in enumerate(self.channels) if channel.can_deliver]
        for index, actor in enumerate(self.actors):
            match actor.next(self):
                case True:
                    moves.append(("start", index))
                case None:
                    optional.append(("start", index))
        return moves, optional

    def _touches(self, move: Move, node: ExploredNode) -> bool:
        """Whether a move changes what a node sees in its next turn."""
        match move[0]:
            case "jump":
                return True
            case "start":
                return self.actors[move[1]].concerns(self) is node
            case "deliver":
                return self.channels[move[1]].receiver is node
            case "apply" | "answer" | "miss" | "lose" | "refuse" | "twice":
                return self._message(move[1]).node is node
        return False

    def _jumps(self) -> list[Move]:
        if not self.budget.jumps + self.budget.extra:
            return []
        return [("jump", seconds) for seconds in self.scenario.jumps]

    def _faults(self) -> list[Move]:
        faults: list[Move] = []
        for message in self.messages:
            if message.is_awaited:
                faults.append(("lose", message.number))
                if not message.applied and message.method not in READS:
                    faults.append(("refuse", message.number))
            if message.applied == 1 and message.method not in READS:
                faults.append(("again", message.number))
                if message.is_awaited:
                    faults.append(("twice", message.number))
        return faults

    def _message(self, number: int) -> Message:
        return next(message for message in self.messages if message.number == number)

    def _forget(self, message: Message) -> None:
        """Remove a message that cannot matter any more."""
        if message.is_awaited:
            return
        if message.method in READS or message.applied > 1 or (message.applied and not self.budget.extra):
            self.messages.remove(message)

    def _apply(self, message: Message) -> tuple[Any, Refusal | StartRefused | None]:
        """Apply a call once more, and return its answer."""
        before = counters(self.store.rows)
        node, name = message.node, message.arguments[0] if message.arguments else ""
        result: Any = None
        refusal: Refusal | StartRefused | None = None
        written = self.store.last_write
        try:
            if message.method.startswith("witness_") and self.witness:
                result = self.witness.apply(message.method.removeprefix("witness_"), message.arguments)
            else:
                result = self.store.apply(message.method, message.arguments)
        except (Refusal, StartRefused) as error:
            refusal = error
        self.problems += moved_back(before, self.store.rows, message.method)
        self.problems += passed_bounds(before, self.store.rows) if message.method == "revise" else []
        match message.method:
            case "grant" | "grant_timestamps" if result is not None:
                self.moved += result.granted
                if result.granted and message.is_awaited and node.connection.ledger.is_behind(name, result):
                    self.problems.append(f"{name!r} went back, and its counter moves on for {node.name} (P3)")
            case "create" if result is not None and not message.applied:
                row = self.store.rows[message.arguments[0].name]
                self.moved += message.requested_ids if not row.writes and result == message.arguments[0] else 0
            case "give_back" if result:
                self.moved -= message.arguments[1]
                self.excess += message.arguments[1]  # until the node knows
        message.applied += 1
        if message.applied == 1:
            message.result, message.refusal = result, refusal
            if self.store.last_write != written or message.method == "open":
                message.number_of_write = self.store.last_write
        self._forget(message)
        return result, refusal

    def _answer(self, message: Message) -> None:
        message.node.see("answer", message.index, repr(message.refusal or message.result), self.now)
        if message.refusal is not None:
            message.answer.set_exception(message.refusal)
        else:
            message.answer.set_result(message.result)
            if message.method == "give_back" and message.result:
                self.excess -= message.arguments[1]
        self._forget(message)

    def _complete(self, task: "asyncio.Task[Any]") -> None:
        """Answer all calls to the store until a task, and what it started, is done."""
        self._settle()
        while self._answer_all():
            pass
        if not task.done():
            raise Violation(f"{task.get_name()} waits for time")
        self.messages.clear()

    def _answer_all(self) -> bool:
        """Answer the calls to the store, and deliver lines; return whether there were any."""
        awaited = [message for message in self.messages if message.is_awaited]
        for message in awaited:
            self._apply(message)
            self._answer(message)
        ready = [channel for channel in self.channels if channel.can_deliver]
        for channel in ready:
            channel.deliver()
        self._settle()
        return bool(awaited or ready)

    def _settle(self) -> None:
        """Run all nodes until they wait."""
        while any(node.loop.is_busy and not node.is_gone for node in self.nodes):
            for node in self.nodes:
                while not node.is_gone and node.loop.run_ready():
                    pass

    def _pass(self, end: float) -> None:
        paused = [node for node in self.nodes if node.loop.is_busy]
        for node in paused:
            node.loop.paused = True
        running = [node for node in self.nodes if not node.is_gone and node not in paused]
        while due := [when for node in running if (when := node.loop.next_timer) is not None and when <= end]:
            self.now = max(self.now, min(due))
            for node in running:
                if node.loop.is_busy:
                    node.see("timers", self.now)
                    while node.loop.run_ready():
                        pass
        self.now = end
        for node in paused:
            node.loop.paused = False
        for message in list(self.messages):
            self._forget(message)


def _text(problem: object) -> str:
    return str(problem) or repr(problem)
