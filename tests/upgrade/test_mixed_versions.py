"""Servers of two versions share a store under load: no id twice, no refusal without cause."""

import asyncio
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

import idalloc
from idalloc.v1 import sequences_pb2, sequences_pb2_grpc
from idalloc_server.domain.store.records import Demand
from idalloc_server.store.urls import open_store
from tests.support.fake_store import FakeClock
from tests.support.faults.scenario import Scenario
from tests.support.processes import Server
from tests.support.waiting import hold_for
from tests.upgrade.conftest import EACH_STORE
from tests.xproto.support.client import connected

pytestmark = [
    pytest.mark.test_long,
    pytest.mark.parametrize("first", ["before", "this"], indirect=True, ids=["upgrade", "downgrade"]),
    pytest.mark.parametrize("store", EACH_STORE, indirect=True),
]

# Short leases, whose end a test can wait for.
LEASES = {"lease_ttl": "5s", "store_timeout": "3s", "outage_reserve": "1s"}
SIZES = [1, 100, 7, 33, 2, 64]
PAST = 1_000_000
DEMAND = Demand(12.5, 1_000, 1_700_000_000)


@dataclass
class Mix:
    """A server of each version on one store."""

    scenario: Scenario  # their processes
    python_before: Path  # the Python of the version before
    # The servers by version, ``before`` and ``this``.
    servers: dict[str, Server] = field(default_factory=dict)
    # A client of each server, with a log of issued ids.
    clients: dict[str, idalloc.Client] = field(default_factory=dict)
    logs: list[Path] = field(default_factory=list)

    def create_store(self, version: str) -> None:
        """Run a version's server with its default timeout: OpenSearch may create indices slowly."""
        self._start(version)
        self.stop(version)

    def start(self, version: str) -> None:
        """Start the server of a version."""
        settings = dict(LEASES)
        if not self.scenario.store.startswith("opensearch"):
            settings["xproto_listen"] = "127.0.0.1:0"
        server = self._start(version, **settings)
        self.logs.append(self.scenario.folder / f"{version}.ids")
        self.clients[version] = idalloc.Client(server.address, timeout=20, log=self.logs[-1])

    def _start(self, version: str, **settings: Any) -> Server:
        python = self.python_before if version == "before" else Path(sys.executable)
        prefix = {"before": 1, "this": 2}[version]
        self.servers[version] = self.scenario.start_node(python=python, node_prefix=prefix, **settings)
        return self.servers[version]

    def stop(self, version: str) -> None:
        """Stop the server of a version."""
        server = self.servers[version]
        assert server.stop() == 0, f"{self.described(version)}: {server.log.read_text()}"

    def allocate(self, version: str, sequence: str, count: int = 1, **options: Any) -> idalloc.Range:
        """Allocate ids of a server; an error names the server and the store."""
        try:
            return self.clients[version].allocate_range(sequence, count, **options)
        except idalloc.IdallocError as error:
            error.add_note(f"from {self.described(version)}, for sequence {sequence!r}")
            raise

    def described(self, version: str) -> str:
        """Return the name of a server and of its store, for failures."""
        return f"the server of the version {version!r} on {self.scenario.store_name} ({self.scenario.store})"

    def load(self, version: str, sequence: str) -> list[tuple[str, str, int | str]]:
        """Allocate ranges of all sizes, every sixth with a recorded answer, and document ids."""
        issued: list[tuple[str, str, int | str]] = []
        for _ in range(5):
            for size in SIZES:
                ids = self.allocate(version, sequence, size, idempotent=size == SIZES[-1])
                issued += [(sequence, ids.period, each) for each in ids]
                issued += [("document ids", "", each) for each in self.clients[version].doc_ids(size)]
        return issued

    def check_logs(self) -> None:
        """Assert that no server logged an error, or found the store behind."""
        for version, server in self.servers.items():
            for line in server.log.read_text().splitlines():
                event = json.loads(line)
                assert event["level"] not in ("error", "critical"), f"{self.described(version)} logged: {line}"
                assert "STORE_WENT_BACKWARDS" not in line, f"{self.described(version)} logged: {line}"

    def prove(self) -> None:
        """Assert that no id was issued twice."""
        verdict = self.scenario.verify(logs=self.logs)
        assert verdict.clean, f"{self.scenario.store_name}: {verdict.report}"
        assert verdict.ids


@pytest.fixture(scope="module")
def mix(store: str, first: str, python_before: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mix]:
    """A server that has created and uses the store, beside a later one of the other version."""
    mix = Mix(Scenario(tmp_path_factory.mktemp("mix"), full=False, store=store), python_before)
    try:
        if "prefix=" in store:  # a real OpenSearch
            mix.create_store(first)
        mix.start(first)
        mix.allocate(first, "in use", 10)
        mix.start("this" if first == "before" else "before")
        yield mix
        for client in mix.clients.values():
            client.close()
        # The stop gives back what is left of the leases.
        for version in mix.servers:
            mix.stop(version)
        mix.check_logs()
        mix.prove()  # that all tests together got no id twice
    finally:
        mix.scenario.close()


def test_two_versions_under_load_repeat_no_id(mix: Mix) -> None:
    """P1, P2, P6: servers of two versions repeat no id, and neither finds the store behind."""
    kinds: dict[str, dict[str, Any]] = {
        "in use": {},
        "auto-created": {},
        "small leases": {"max_lease_size": 200},
        "rising": {"ordering": "rising"},
        "per day": {"reset": "daily", "format": "{year}{month}{day}-{value}"},
        "time": {"kind": "timestamp-us"},
        "down": {"step": -3, "max_value": 10**9},
    }
    versions = list(mix.clients)
    for turn, (name, settings) in enumerate(kinds.items()):
        if settings:
            mix.clients[versions[turn % 2]].sequences.create(name, **settings)
    with ThreadPoolExecutor(len(kinds) * 2) as threads:
        running = [threads.submit(mix.load, version, name) for name in kinds for version in versions]
    issued = [each for thread in running for each in thread.result()]
    twice = sorted(each for each, count in Counter(issued).items() if count > 1)
    assert not twice, f"issued twice on {mix.scenario.store_name}: {twice[:5]}"
    mix.check_logs()


def test_a_request_id_is_replayed_by_the_other_version(mix: Mix) -> None:
    """P7: an answer that a server of one version recorded is repeated by the other one."""
    for version, other in [("before", "this"), ("this", "before")]:
        name = f"recorded by {version}"
        mix.clients[version].sequences.create(name, reset="daily", format="{year}{month}{day}-{value}")
        request_id = uuid.uuid4()
        answer = mix.allocate(version, name, 5, request_id=request_id, texts=True)
        mix.allocate(other, name, 3)
        for each in (other, version, other):
            repeated = mix.allocate(each, name, 5, request_id=request_id, texts=True)
            fields = ("first_id", "last_id", "step", "generation", "period", "texts")
            for field_name in fields:
                found = getattr(repeated, field_name)
                assert found == getattr(answer, field_name), f"{field_name} of {mix.described(each)}"
        with pytest.raises(idalloc.RequestIdReused):
            mix.allocate(other, name, 6, request_id=request_id)
    mix.check_logs()


def test_a_creation_is_replayed_by_the_other_version(mix: Mix) -> None:
    """P7: the server of the other version recognizes the request id of a change."""
    for version, other in [("before", "this"), ("this", "before")]:
        sequence = sequences_pb2.Sequence(name=f"created by {version}")
        request = sequences_pb2.CreateSequenceRequest(sequence=sequence, request_id=str(uuid.uuid4()))
        for each in (version, other, version):
            with grpc.insecure_channel(mix.servers[each].address) as channel:
                reply = sequences_pb2_grpc.SequenceServiceStub(channel).CreateSequence(request, timeout=20)
            assert reply.sequence.name == sequence.name
        with pytest.raises(idalloc.SequenceExists):
            mix.clients[other].sequences.create(sequence.name)
    mix.check_logs()


def test_a_change_by_one_version_ends_leases_of_both(mix: Mix) -> None:
    """P5: once an advance or update is effective, no server of either version issues old ids."""
    advanced = {version: f"advanced by {version}" for version in mix.clients}
    updated = {version: f"updated by {version}" for version in mix.clients}
    names = [*advanced.values(), *updated.values()]

    def allocate_all() -> list[tuple[str, idalloc.Range]]:
        return [(version, mix.allocate(version, name)) for name in names for version in mix.clients]

    allocate_all()
    changes = [mix.clients[version].sequences.advance(name, PAST) for version, name in advanced.items()]
    changes += [mix.clients[version].sequences.update(name, step=10) for version, name in updated.items()]
    effective = time.monotonic() + max(change.effective_delay for change in changes).total_seconds()
    while time.monotonic() < effective:
        allocate_all()
        hold_for(0.1, "the leases stay in use until they end")
    for name in names:
        for version in mix.clients:
            issued = mix.allocate(version, name, 3)
            if name in advanced.values():
                assert issued.first_id > PAST, f"{mix.described(version)}: {name}"
            else:
                assert issued.step == 10, f"{mix.described(version)}: {name}"
    mix.check_logs()


def test_the_version_before_keeps_a_demand(mix: Mix) -> None:
    """P10: this version adds the column or field; the version before keeps it in its writes."""
    name = "with a demand"
    mix.clients["before"].sequences.create(name)

    async def renew(demand: Demand | None = None) -> Demand | None:
        store = open_store(mix.scenario.store, FakeClock())
        try:
            await store.open()
            grant = await store.grant(name, 0, 1, demand=demand)
        finally:
            await store.close()
        assert grant is not None
        return grant.demand

    assert asyncio.run(renew()) is None, f"{mix.described('before')} made a demand"
    mix.allocate("before", name, 5)
    assert asyncio.run(renew(DEMAND)) == DEMAND, f"{mix.described('this')} added no column"
    mix.allocate("before", name, 1_000)
    mix.clients["before"].sequences.update(name, step=10)
    assert asyncio.run(renew()) == DEMAND, f"{mix.described('before')} removed the demand"
    mix.check_logs()


def test_documents_of_one_version_are_found_by_the_other(mix: Mix) -> None:
    """P6: servers of two versions add documents with own ids to one collection; both find all."""
    if mix.scenario.store.startswith("opensearch"):
        pytest.skip("OpenSearch keeps no documents")
    ports = {version: server.xproto for version, server in mix.servers.items()}

    async def add_and_find() -> None:
        async with connected(ports["before"]) as before, connected(ports["this"]) as this:
            await before.create_collection()
            added = [await client.add(*["{}"] * 10) for client in (before, this) * 5]
            assert [reply.code for reply in added] == [0] * 10
            assert len({doc_id for reply in added for doc_id in reply.ids}) == 100
            for client in (before, this):
                assert len((await client.find()).rows) == 100

    asyncio.run(add_and_find())
    mix.check_logs()
