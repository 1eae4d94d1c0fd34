"""Recipe clients, which follow CrateDB's guide to sequences, share a row with idalloc.

The recipe: read last_value with both version columns, then write the next value under the condition
that the versions are the same; if they are not, start again.
"""

import asyncio
import itertools
import threading
import time
from urllib.parse import urlsplit

import pytest
from crate import client as crate_client

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.clock import SystemClock
from tests.store.conftest import CRATEDB
from tests.support.store_backends import GUIDE_TABLE, CrateBackend, Opener
from tests.support.waiting import hold_for, hold_for_async

FIRST = 41
THREADS = 4
IDS_A_THREAD = 12
RANGES = 20
ROOM = 30.0  # seconds


class RecipeClient:
    """A recipe client, for a thread of its own, with a connection of its own."""

    def __init__(self, backend: CrateBackend, stop: threading.Event) -> None:
        parts = urlsplit(backend.url)
        self.ids: list[int] = []  # that it took
        self._host = parts.netloc.rpartition("@")[2].partition(",")[0]
        self._user = backend.user or None
        self._table = f'"{backend.schema}".sequences'
        self._stop = stop

    def run(self) -> None:
        """Take ids one by one until the event is set, but at least ``IDS_A_THREAD``."""
        connection = crate_client.connect(f"http://{self._host}", username=self._user)
        try:
            while len(self.ids) < IDS_A_THREAD or not self._stop.is_set():
                self.ids.append(self._next(connection))
        finally:
            connection.close()

    def _next(self, connection: crate_client.connection.Connection) -> int:
        cursor = connection.cursor()
        until = time.monotonic() + ROOM
        for tries in itertools.count():
            assert time.monotonic() < until, f"no id within {ROOM} s: it makes no progress"
            cursor.execute(f"SELECT last_value, _seq_no, _primary_term FROM {self._table} WHERE name = ?", ("orders",))
            value, seq_no, primary_term = cursor.fetchone()
            cursor.execute(
                f"UPDATE {self._table} SET last_value = ? WHERE name = ? AND _seq_no = ? AND _primary_term = ?"
                " RETURNING last_value",
                (value + 1, "orders", seq_no, primary_term),
            )
            if (won := cursor.fetchone()) is not None:
                return int(won[0])
            hold_for(0.001 * min(tries, 10), "before the client's retry")
        raise AssertionError


async def ranges(allocator: Allocator, at_least: int, others: "list[asyncio.Task[None]]") -> list[IdRange]:
    """Allocate ranges from memory and from the store, while the recipe clients run."""
    taken = []
    for number in itertools.count():
        if number >= at_least:
            break
        taken.append(await allocator.issue("orders", 1 + number * 7 % 50))
        await hold_for_async(0.005, "the recipe clients run in the meantime")
        assert not any(other.done() for other in others)
    return taken


@pytest.mark.parametrize("opener", CRATEDB, indirect=True)
async def test_recipe_clients_and_idalloc_share_a_sequence(opener: Opener) -> None:
    """P1: recipe clients and idalloc take ids of one row at once, and share none."""
    backend = opener.backend
    assert isinstance(backend, CrateBackend)
    await backend.sql(f"CREATE TABLE {{}}sequences {GUIDE_TABLE}")
    await backend.sql("INSERT INTO {}sequences (name, last_value) VALUES (?, ?)", "orders", FIRST)
    allocation_config = AllocationConfig(
        lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=False, max_reserved_ids=10
    )
    nodes = [Allocator(await opener.open(), SystemClock(), allocation_config) for _ in range(2)]
    stop = threading.Event()
    recipes = [RecipeClient(backend, stop) for _ in range(THREADS)]
    running = [asyncio.create_task(asyncio.to_thread(recipe.run)) for recipe in recipes]
    try:
        taken = list(itertools.chain(*await asyncio.gather(*(ranges(node, RANGES, running) for node in nodes))))
        for node in nodes:
            await node.return_leases()
    finally:
        stop.set()
        await asyncio.gather(*running)

    by_recipe = [value for recipe in recipes for value in recipe.ids]
    by_idalloc = [value for one in taken for value in range(one.first_id, one.first_id + one.id_count)]
    every = by_recipe + by_idalloc
    assert len(set(every)) == len(every)
    assert min(every) == FIRST + 1
    assert all(len(recipe.ids) >= IDS_A_THREAD for recipe in recipes)
    assert len(taken) == 2 * RANGES
    # They took turns: ids of one lie between ids of the other.
    owners = {**dict.fromkeys(by_recipe, "recipe"), **dict.fromkeys(by_idalloc, "idalloc")}
    turns = [owner for owner, _ in itertools.groupby(owners[value] for value in sorted(owners))]
    assert len(turns) > 5
    ((last_value,),) = await backend.sql("SELECT last_value FROM {}sequences WHERE name = ?", "orders")
    assert last_value >= max(every)
