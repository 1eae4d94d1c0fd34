"""A node of an exploration, whose calls to the store are messages."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol, cast

from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import GrantLost, Refusal, StartRefused, StoreUnreachable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Demand, Grant, Mark
from idalloc_server.domain.store.store_calls import proxied
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.store.cluster.joined_writes import MAX_REQUESTS, JoinedWrites
from idalloc_server.store.cluster.write_mark import WriteMark
from tests.support.fake_witness import MemoryWitness
from tests.support.forwarding_store import ForwardingStore, call_store
from tests.support.promises.ledger import RecordedConnection
from tests.support.simulation.loop import simulated_loop
from tests.support.simulation.node import CONFIG, Node

READS = frozenset(
    {"get", "list", "recorded", "newest_recorded", "count_recorded", "now", "claimed_starts", "open", "witness_read"}
)


class Network(Protocol):
    """Takes the calls of nodes, and has the time."""

    now: float  # the simulated time, in seconds
    problems: list[str]  # broken promises that were found in requests
    witness: MemoryWitness | None  # the witness, if there is one

    def send(self, node: "ExploredNode", method: str, arguments: tuple[Any, ...]) -> "Message":
        """Add a call to the store."""
        ...


@dataclass(eq=False)
class Message:
    """A call of a node to the store, or with ``witness_`` in its method to the store's witness."""

    number: int  # its number among all calls
    node: "ExploredNode"  # the calling node
    index: int  # its number among the calls of this node
    method: str  # the method of ``Store``
    arguments: tuple[Any, ...]  # see ``ForwardingStore``
    answer: "asyncio.Future[Any]"  # what the caller waits for
    applied: int = 0  # how many times the store has applied it
    number_of_write: int | None = None  # of the row that its first application wrote; None without
    result: Any = None  # the first answer of the store
    refusal: Refusal | StartRefused | None = None  # the first answer, if it is an error
    may_be_missing: bool = False  # whether the answer to a joined write may lack it, which is no fault

    @property
    def is_awaited(self) -> bool:
        """Whether the caller still waits."""
        return not self.answer.done() and not self.node.is_gone

    @property
    def requested_ids(self) -> int:
        """The number of ids that it asks for."""
        match self.method, self.arguments:
            case "grant" | "grant_timestamps", (_, int(wanted), *_):
                return wanted
            case "create", (row,):
                return int((row.last_value - row.sequence.before_start) // row.sequence.step)
        return 0

    def state(self) -> tuple[Any, ...]:
        """Return what later events depend on; the caller's history has the rest."""
        answer = repr(self.refusal or self.result) if self.is_awaited and self.applied else ""
        return self.node.number, self.index, self.applied, self.is_awaited, answer


class _Grant(NamedTuple):
    """The arguments of ``Store.grant``."""

    name: str
    wanted: int
    lease_ms: int
    floor: Mark
    demand: Demand | None


class MessageConnection(RecordedConnection):
    """A connection whose calls, and those to the witness, become messages of the world."""

    def __init__(self, network: Network, random: Callable[[int], bytes]) -> None:
        super().__init__(lambda: network.now, network.problems.append)
        self._network = network
        self._mark = WriteMark("the rows")
        self._joined: JoinedWrites[_Grant, Grant] | None = None
        self._lost: set[str] = set()
        self.node: ExploredNode
        store = _StoreMessages(self)
        witness = proxied(_WitnessMessages(self), Witness, CONFIG.store_timeout / 2)
        self._store: Store = store
        if network.witness is not None:
            self._store = cast(Store, WitnessedStore(store, witness, random))

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await call_store(self._store, method, arguments)

    def join_grants(self) -> None:
        """Join grants as in CrateDB from now on; all requests at once are under way."""
        self._joined = JoinedWrites(lambda grant: self.send("grant", *grant), self._send_joined)
        self._joined._running = MAX_REQUESTS

    async def end_request(self) -> None:
        """End one of these requests."""
        assert self._joined
        self._joined._go_on()

    async def send_grant(self, grant: "_Grant") -> Any:
        """Send a grant; the next one after a lost one alone."""
        if self._joined is None or grant.name in self._lost:
            self._lost.discard(grant.name)
            return await self.send("grant", *grant)
        return await self._joined.write(grant)

    async def _send_joined(self, grants: Sequence["_Grant"]) -> Sequence[Any]:
        """Send a message for each grant, which is applied and answered at a moment of its own."""
        sent = (self.send("grant", *grant, may_be_missing=True) for grant in grants)
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        self._lost.update(
            grant.name for grant, each in zip(grants, outcomes, strict=True) if isinstance(each, GrantLost)
        )
        return outcomes

    async def send(self, method: str, *arguments: Any, may_be_missing: bool = False) -> Any:
        """Send a message, and return its answer."""
        if self.cut:
            raise StoreUnreachable("the store cannot be reached")
        floor = self._mark.floor()
        message = self._network.send(self.node, method, arguments)
        message.may_be_missing = may_be_missing
        self.pending += 1
        try:
            answer = await message.answer
        finally:
            self.pending -= 1
        if message.number_of_write is not None:
            self._mark.accept(message.number_of_write, floor)
        self.node.received += answer.granted if isinstance(answer, Grant) else message.requested_ids
        return answer


@dataclass(eq=False)
class _StoreMessages(ForwardingStore):
    """The store."""

    _connection: MessageConnection

    @property
    def address(self) -> str:
        return "simulated:"

    async def close(self) -> None:
        pass

    async def _call(self, method: str, *arguments: Any) -> Any:
        if method == "grant":
            return await self._connection.send_grant(_Grant(*arguments))
        return await self._connection.send(method, *arguments)


class _WitnessMessages(MemoryWitness):
    """The witness."""

    def __init__(self, connection: MessageConnection) -> None:
        super().__init__()
        self._connection = connection

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self._connection.send(f"witness_{method}", *arguments)


class ExploredNode(Node):
    """A node whose state is a function of its history."""

    def __init__(self, network: Network, number: int, prefix: int, window: float, config: AllocationConfig) -> None:
        connection = MessageConnection(network, Random(f"witness {number}").randbytes)
        super().__init__(number, prefix, simulated_loop(lambda: network.now), connection, config, window)
        connection.node = self
        self.number = number  # from 1
        # A hash of all that the node has seen: calls, answers, times, in their order. Equal
        # histories are equal states, because a node is deterministic.
        self.history = 0
        self.sent = 0  # the number of its calls to the store
        self.received = 0  # the ids in answers of the store, confirmed by the witness or not
        self.is_gone = False  # whether it was killed
        self.is_worker = False  # whether the store applies its calls at once
        self.has_opened = False  # whether it has opened the store, in scenarios that exchange it

    def see(self, *event: Any) -> None:
        """Add an event to the history."""
        self.history = hash((self.history, event))
