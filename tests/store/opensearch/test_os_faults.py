"""Answers that are lost, late, repeated or a proxy's: nothing is granted twice; typed errors."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from idalloc_server.domain.errors import (
    SequenceInvalid,
    StoreAnsweredError,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from idalloc_server.domain.sequences.sequence import Kind, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation, RowChange
from idalloc_server.store.cluster.http_transport import HostTimeouts
from idalloc_server.store.opensearch.http import OpenSearchHttp
from idalloc_server.store.opensearch.store import OpenSearchStore
from idalloc_server.store.urls import open_store
from tests.support.fake_store import FakeClock
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn
from tests.support.store_rows import grant, read_row, requested_row
from tests.support.waiting import settle

QUICK = HostTimeouts(connect=5.0, silence=0.02, probe=0.1, read=0.1)
# Before the first grant of a sequence.
BEFORE = 0


@pytest.fixture
async def store(opensearch: OpenSearchStandIn) -> AsyncIterator[Store]:
    store = open_store(f"opensearch://{opensearch.host}/", FakeClock())
    await store.open()
    await store.create(requested_row("s"))
    yield store
    await store.close()


def writes(opensearch: OpenSearchStandIn, script: str = "GRANT") -> int:
    return sum(text.endswith(f" {script}") for text in opensearch.texts())


def allocation(request_id: str, first_id: int = 1) -> RecordedAllocation:
    return RecordedAllocation(request_id, "s", first_id, 10, 1, 1, "", 0, "node")


class TestUnknownOutcomes:
    @pytest.mark.parametrize(
        ("fault", "moved"),
        [
            (Fault("drop"), 5),
            (Fault("drop", applied=False), 0),
            (Fault("reset"), 5),
            (Fault("reset", applied=False), 0),
            (Fault("garbage"), 5),
            (Fault("garbage", applied=False), 0),
            (Fault("error", status=503), 0),
            (Fault("error", status=503, applied=True), 5),
            (Fault("error", status=500, type="any", applied=True), 5),
            (Fault("error", status=502, type="any"), 0),
            (Fault("error", status=504, type="any", applied=True), 5),
            (Fault("error", status=408, type="timeout"), 0),
            (Fault("error", status=409, type="version_conflict_engine_exception", applied=True), 5),
            (Fault("error", status=409, type="version_conflict_engine_exception"), 0),
            (Fault("error", status=429, type="rejected_execution_exception", applied=True), 5),
            (Fault("error", status=307, type="any"), 0),
        ],
        ids=lambda value: f"{value.kind} {value.status} {value.applied}" if isinstance(value, Fault) else "",
    )
    async def test_an_unclear_answer_is_unknown_and_not_retried(
        self, opensearch: OpenSearchStandIn, store: Store, fault: Fault, moved: int
    ) -> None:
        """P1: a write without a clear answer is sent once; the next grant skips its ids."""
        opensearch.inject(Fault(**{**vars(fault), "match": "GRANT"}))
        with pytest.raises(StoreOutcomeUnknown) as caught:
            await store.grant("s", 5, 1000)
        assert "\n" not in str(caught.value)
        await settle()
        assert writes(opensearch) == 1
        granted = await grant(store, "s", 1)
        assert granted.last_value == BEFORE + moved + 1

    async def test_a_lost_quorum_is_unknown(self, opensearch: OpenSearchStandIn) -> None:
        """P1: without a quorum a write hangs until the store's timeout; nothing is granted."""
        store = open_store(f"opensearch://{opensearch.host}/", FakeClock(), timeout=0.5)
        await store.open()
        await store.create(requested_row("s"))
        opensearch.inject(Fault("hang", match="GRANT", applied=True))
        with pytest.raises(StoreOutcomeUnknown):
            await asyncio.wait_for(store.grant("s", 5, 1000), 20)
        assert (await grant(store, "s", 1)).last_value == 6
        await store.close()

    async def test_html_of_a_proxy_is_one_line(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """A proxy's page in place of an answer is one line of the error, and names the host."""
        opensearch.inject(Fault("garbage", match="GRANT"))
        with pytest.raises(StoreOutcomeUnknown, match="<h1>502 Bad Gateway</h1>") as caught:
            await store.grant("s", 5, 1000)
        assert str(caught.value).startswith(f"OpenSearch at {opensearch.host} answered 200: <html> ")
        assert "\n" not in str(caught.value)


class TestRejected:
    async def test_the_flood_stage_block_is_rejected(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """STORE_UNAVAILABLE: a block's 429 proves that nothing was applied, so no id is burned."""
        opensearch.inject(Fault("error", match="GRANT", status=429, type="cluster_block_exception"))
        with pytest.raises(StoreAnsweredError) as caught:
            await store.grant("s", 5, 1000)
        assert caught.value.http_status == 429
        assert (await grant(store, "s", 1)).last_value == 1

    @pytest.mark.parametrize("value", ["41", 41.5, True, [41], None], ids=repr)
    async def test_a_row_edited_past_the_mapping_is_refused(
        self, opensearch: OpenSearchStandIn, store: Store, value: object
    ) -> None:
        """SEQUENCE_INVALID: a row that a snapshot or mapping left without a number is refused."""
        opensearch.cluster.indices["idalloc-sequences-data"].documents["s"].source["last_value"] = value
        with pytest.raises(SequenceInvalid, match="'s'"):
            await store.grant("s", 5, 1000)
        if value is not None:  # a row without a counter can be read, and is shown as it is
            with pytest.raises(SequenceInvalid, match="'s'"):
                await store.get("s")

    async def test_an_edited_setting_is_refused(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """SEQUENCE_INVALID: a step that is a text refuses the grant, not the server."""
        opensearch.cluster.indices["idalloc-sequences-data"].documents["s"].source["step"] = "1"
        with pytest.raises(SequenceInvalid, match="a number in its row was edited"):
            await store.grant("s", 5, 1000)
        await store.create(requested_row("other"))
        assert (await grant(store, "other", 5)).last_value == 5

    async def test_a_refused_request_is_an_operators(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """STORE_REFUSED: a missing privilege names what to grant."""
        opensearch.inject(Fault("error", match="GRANT", status=403, type="security_exception"))
        with pytest.raises(StoreRefused, match="grant the user read, write, refresh and monitor on idalloc-sequences"):
            await store.grant("s", 5, 1000)


class TestReplays:
    """The cluster itself may apply a write twice, and answers the second one."""

    async def test_a_grant_applied_twice_burns_the_first(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """P1: the ids of the first application are burned."""
        opensearch.inject(Fault("duplicate", times=2, match="GRANT"))
        first, second = await grant(store, "s", 10), await grant(store, "s", 2)
        assert (first.value_before, first.last_value) == (10, 20)
        assert (second.value_before, second.last_value) == (22, 24)

    async def test_timestamps_granted_twice_burn_the_first(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """P1: the timestamps of the first application are burned."""
        await store.create(requested_row("t", Sequence(kind=Kind.TIMESTAMP_MS)))
        opensearch.inject(Fault("duplicate", match="STAMPS"))
        now = opensearch.cluster.now_ms()
        granted = await store.grant_timestamps("t", 10, 1000, now, 1000)
        assert granted is not None
        assert (granted.granted, granted.value_before) == (10, now + 9)

    async def test_a_tail_given_back_twice_moves_the_counter_once(
        self, opensearch: OpenSearchStandIn, store: Store
    ) -> None:
        """P2: the second application finds another version; it answers that nothing was moved."""
        first = await grant(store, "s", 10)
        opensearch.inject(Fault("duplicate", match="BACK"))
        assert not await store.give_back("s", 4, first.version)
        assert (await grant(store, "s", 0)).last_value == 6

    async def test_a_create_applied_twice_is_one(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """P1: the second application finds the row of the first."""
        opensearch.inject(Fault("duplicate", match="/_update/new"))
        assert await store.create(requested_row("new")) == requested_row("new")

    async def test_a_revision_applied_twice_is_one(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """P5: the second application finds a later revision, and changes nothing."""
        opensearch.inject(Fault("duplicate", match="REVISE"))
        revised = await store.revise("s", 0, RowChange(Sequence(), 41, "me", 5.0))
        assert revised is not None
        assert (revised.revised_by, revised.revision, revised.generation, revised.last_value) == ("me", 1, 2, 41)
        assert await read_row(store, "s") == revised

    async def test_a_claim_applied_twice_skips_a_timestamp(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """P6: the start timestamp of the first application is never used."""
        opensearch.inject(Fault("duplicate", match="CLAIM"))
        assert (await store.claim_start(3, 1000, "me", 60)).start_timestamp == 1001

    async def test_a_record_applied_twice_is_one(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """P7: the second application returns what the first recorded."""
        opensearch.inject(Fault("duplicate", match="RECORD"))
        assert await store.record([allocation("r")]) == {"r": allocation("r")}

    async def test_a_record_with_a_lost_answer_is_kept(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """P7: a retry finds the record of a call whose answer was lost."""
        opensearch.inject(Fault("drop", match="RECORD"))
        with pytest.raises(StoreOutcomeUnknown):
            await store.record([allocation("r")])
        assert await store.record([allocation("r", 11)]) == {"r": allocation("r")}

    async def test_200_allocations_are_recorded_by_one_request(
        self, opensearch: OpenSearchStandIn, store: Store
    ) -> None:
        """P7: many allocations are recorded by one request, of the size of its rows."""
        before = len(opensearch.requests)
        many = [allocation(f"r{number}", number) for number in range(200)]
        assert await store.record(many) == {one.request_id: one for one in many}
        assert len(opensearch.requests) == before + 1


class TestHosts:
    async def test_a_silent_host_ends_a_write_and_is_avoided(self, opensearch: OpenSearchStandIn) -> None:
        """P10: a paused host costs one refill; the next one goes to a host that serves."""
        paused = int(opensearch.host.rpartition(":")[2])
        other = await opensearch.listen()
        hosts = [opensearch.host, f"127.0.0.1:{other}"]
        store = OpenSearchStore("", OpenSearchHttp(hosts, timeout=60.0, host_timeouts=QUICK), "idalloc", 60.0)
        await store.open()
        await store.create(requested_row("s"))
        opensearch.inject(Fault("hang", times=-1, port=paused))
        with pytest.raises(StoreOutcomeUnknown, match="nor did it answer GET /_cluster/state"):
            await asyncio.wait_for(store.grant("s", 5, 1000), 20)
        granted = await asyncio.wait_for(grant(store, "s", 5), 20)
        assert granted.last_value == 10
        assert [port for port, text in opensearch.requests if text.endswith(" GRANT")] == [paused, other]
        await store.close()

    async def test_a_closed_store_sends_nothing(self, opensearch: OpenSearchStandIn, store: Store) -> None:
        """A call after the close is unavailable."""
        await store.close()
        before = len(opensearch.requests)
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await store.grant("s", 5, 1000)
        assert len(opensearch.requests) == before
