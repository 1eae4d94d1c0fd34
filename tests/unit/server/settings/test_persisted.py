"""Node settings that change while the node runs, and persist over restarts."""

import asyncio
import json
from pathlib import Path

import pytest

from idalloc.v1 import node_pb2
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.document_ids.generator import MAX_SERIAL, DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.errors import (
    DocIdTimestampRefused,
    InvalidRequest,
    PrefixInUse,
    ServerDraining,
    StartRefused,
    StoreUnavailable,
)
from idalloc_server.node.change import NodeChanges
from idalloc_server.rpc.node import NodeServicer
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.settings.sources import load
from tests.support.fake_store import FakeClock, MemoryStore, unreachable
from tests.support.waiting import settle

LISTEN = "127.0.0.1:50051"


async def started(store: MemoryStore, clock: FakeClock, holder: str = "me", prefix: int = 0) -> DocIdGenerator:
    start_timestamps = StartTimestamps(
        store, clock, prefix=prefix, holder=holder, max_clock_skew=5, prefix_conflict="refuse"
    )
    return DocIdGenerator(start_timestamps, await start_timestamps.start())


async def update(
    doc_ids: DocIdGenerator, *paths: str, node_settings: NodeSettingsFile | None = None, **node: int
) -> node_pb2.Node:
    allocator = Allocator(MemoryStore(), FakeClock(), AllocationConfig(180.0, 5.0, True))
    request = node_pb2.UpdateNodeRequest(node=node_pb2.Node(**node), persist=node_settings is not None)  # type: ignore[arg-type]
    request.update_mask.paths.extend(paths)
    servicer = NodeServicer(allocator, doc_ids, "memory:", NodeChanges(doc_ids, node_settings))
    return (await servicer.UpdateNode(request, FakeContext())).node  # type: ignore[arg-type]


class FakeContext:
    """The context of a call without a deadline."""

    def time_remaining(self) -> None:
        return None


class TestChange:
    async def test_settings_change_together_and_the_serial_continues(
        self, store: MemoryStore, clock: FakeClock
    ) -> None:
        """All settings of a request change at once; the serial continues."""
        doc_ids = await started(store, clock)
        assert doc_ids.issue_now(1)[0].first == 1  # type: ignore[index]
        node = await update(doc_ids, prefix=7, auto_increment_offset=5, auto_increment_increment=10)
        assert (node.prefix, node.auto_increment_offset, node.auto_increment_increment) == (7, 5, 10)
        (run,) = doc_ids.issue_now(2)  # type: ignore[misc]
        assert (run.prefix, run.first, run.step, run.timestamp) == (7, 5, 10, node.start_timestamp)

    async def test_update_mask_can_set_prefix_0(self, store: MemoryStore, clock: FakeClock) -> None:
        """An update mask sets prefix 0, and ignores fields outside it."""
        doc_ids = await started(store, clock, prefix=9)
        assert (await update(doc_ids, "prefix", auto_increment_offset=5)).prefix == 0
        assert doc_ids.offset == 1

    async def test_current_prefix_claims_no_start_timestamp(self, store: MemoryStore, clock: FakeClock) -> None:
        """A change to the current prefix claims no start timestamp."""
        doc_ids = await started(store, clock, prefix=9)
        await doc_ids.change(prefix=9)
        assert len(store.calls_of("claim_start")) == 1

    @pytest.mark.parametrize(
        ("field", "paths", "node"),
        [
            ("update_mask", ("version",), {"prefix": 1}),
            ("update_mask", ("prefx",), {"prefix": 1}),
            ("update_mask", (), {}),
            ("prefix", (), {"prefix": 65_536}),
            ("prefix", (), {"prefix": -1}),
            ("auto_increment_offset", ("auto_increment_offset",), {}),
            ("auto_increment_increment", (), {"prefix": 3, "auto_increment_increment": 65_536}),
        ],
    )
    async def test_invalid_requests_change_nothing(
        self, store: MemoryStore, clock: FakeClock, field: str, paths: tuple[str, ...], node: dict[str, int]
    ) -> None:
        """An invalid request names its field and changes nothing."""
        doc_ids = await started(store, clock)
        with pytest.raises(InvalidRequest) as refusal:
            await update(doc_ids, *paths, node_settings=None, **node)
        assert refusal.value.field == field
        assert (doc_ids.prefix, doc_ids.offset, doc_ids.increment) == (0, 1, 1)
        assert len(store.calls_of("claim_start")) == 1

    async def test_failed_claim_changes_nothing(self, store: MemoryStore, clock: FakeClock) -> None:
        """P6: if the store does not grant a start timestamp, no setting changes."""
        doc_ids = await started(store, clock)
        store.next("claim_start", unreachable())
        with pytest.raises(StoreUnavailable):
            await doc_ids.change(prefix=7, auto_increment_offset=3)
        assert (doc_ids.prefix, doc_ids.offset) == (0, 1)

    async def test_prefix_of_another_node_is_refused(self, store: MemoryStore, clock: FakeClock) -> None:
        """With prefix_conflict "refuse", the prefix of a live node is refused."""
        await started(store, clock, "other", prefix=7)
        doc_ids = await started(store, clock)
        with pytest.raises(PrefixInUse):
            await doc_ids.change(prefix=7)
        assert (doc_ids.prefix, store.prefixes[7].holder, store.prefixes[0].holder) == (0, "other", "me")

    async def test_wrong_clock_is_refused(self, store: MemoryStore, clock: FakeClock) -> None:
        """A clock too far ahead of the store's claims no start timestamp."""
        mine = FakeClock(wall=clock.wall())
        doc_ids = await started(store, mine)
        mine.advance(6)
        with pytest.raises(DocIdTimestampRefused, match="ahead of the store's"):
            await doc_ids.change(prefix=7)
        assert 7 not in store.prefixes

    async def test_concurrent_changes_are_serialized(self, store: MemoryStore, clock: FakeClock) -> None:
        """Concurrent changes run one after the other, even after a cancelled call."""
        doc_ids = await started(store, clock)
        gate = store.hold("claim_start")
        first = asyncio.create_task(doc_ids.change(prefix=1, auto_increment_offset=1))
        await settle()
        second = asyncio.create_task(doc_ids.change(prefix=2, auto_increment_offset=2))
        await settle()
        first.cancel()  # Its change continues.
        assert doc_ids.issue_now(1)[0].prefix == 0  # type: ignore[index]
        gate.set()
        await second
        assert (doc_ids.prefix, doc_ids.offset) == (2, 2)
        assert [call.arguments[0] for call in store.calls_of("release_prefix")] == [0, 1]

    async def test_claim_of_the_old_prefix_does_not_restore_it(self, store: MemoryStore, clock: FakeClock) -> None:
        """P6: a claim for the old prefix that ends after a change does not restore it."""
        doc_ids = await started(store, clock)
        doc_ids._serial = MAX_SERIAL
        gate = store.hold("claim_start")
        waiting = asyncio.create_task(doc_ids.issue(1))
        await settle()
        await doc_ids.change(prefix=7)
        gate.set()
        assert (await waiting)[0].prefix == 7

    async def test_change_after_close_is_refused(self, store: MemoryStore, clock: FakeClock) -> None:
        """A change during or after the close is refused."""
        doc_ids = await started(store, clock)
        store.hold("claim_start")
        change = asyncio.create_task(doc_ids.change(prefix=7))
        await settle()
        await doc_ids.cancel_claims()
        with pytest.raises(ServerDraining):
            await change
        with pytest.raises(ServerDraining):
            await doc_ids.change(prefix=8)


class TestPersisted:
    async def test_persisted_settings_override_the_file_only(
        self, store: MemoryStore, clock: FakeClock, tmp_path: Path
    ) -> None:
        """Persisted settings override the TOML file; flags and environment override them."""
        toml = tmp_path / "idalloc.toml"
        toml.write_text("node_prefix = 3\nauto_increment_offset = 4")
        environ = {"XDG_STATE_HOME": str(tmp_path), "IDALLOC_AUTO_INCREMENT_INCREMENT": "5"}
        node_settings = load({}, str(toml), environ).node_settings
        doc_ids = await started(store, clock)
        await update(doc_ids, node_settings=node_settings, prefix=7)
        await update(doc_ids, node_settings=node_settings, auto_increment_offset=6)
        loaded = load({}, str(toml), environ)
        assert (loaded.settings.node_prefix, loaded.settings.auto_increment_offset) == (7, 6)
        assert loaded.origins["node_prefix"] == f"node_prefix in {node_settings.path}"
        assert load({"node_prefix": "1"}, None, environ).settings.node_prefix == 1
        assert load({"listen": "127.0.0.1:50052"}, None, environ).settings.node_prefix == 0
        with pytest.raises(InvalidRequest, match="IDALLOC_AUTO_INCREMENT_INCREMENT is set"):
            await update(doc_ids, node_settings=node_settings, prefix=8, auto_increment_increment=2)
        assert (doc_ids.prefix, doc_ids.increment) == (7, 1)
        assert [path.name for path in (tmp_path / "idalloc").iterdir()] == ["persisted-127.0.0.1-50051.json"]

    async def test_port_0_cannot_persist(self, store: MemoryStore, clock: FakeClock, tmp_path: Path) -> None:
        """With port 0 no settings can be persisted."""
        with pytest.raises(InvalidRequest, match="port 0") as refusal:
            await update(await started(store, clock), node_settings=NodeSettingsFile(tmp_path, "[::]:0"), prefix=7)
        assert refusal.value.field == "persist"

    async def test_unwritable_file_changes_nothing(self, store: MemoryStore, clock: FakeClock, tmp_path: Path) -> None:
        """Settings that cannot be persisted do not change, and the new prefix is released."""
        (tmp_path / "idalloc").write_text("in the way")
        doc_ids = await started(store, clock)
        with pytest.raises(InvalidRequest, match="cannot"):
            await update(doc_ids, node_settings=NodeSettingsFile(tmp_path / "idalloc", LISTEN), prefix=7)
        assert (doc_ids.prefix, store.prefixes[7].holder, store.prefixes[0].holder) == (0, "", "me")

    @pytest.mark.parametrize("content", ["{", "[]", json.dumps({"store": 1}), json.dumps({"node_prefix": "7"})])
    def test_invalid_file_prevents_the_start(self, tmp_path: Path, content: str) -> None:
        """An invalid file of persisted settings is a start error."""
        (tmp_path / "persisted-127.0.0.1-50051.json").write_text(content)
        with pytest.raises(StartRefused, match="persisted-127"):
            NodeSettingsFile(tmp_path, LISTEN).read()
