"""The audit: who did what, what was before and after, and what was refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.field_mask_pb2 import FieldMask

from idalloc.v1 import id_allocator_pb2, node_pb2
from idalloc.v1 import sequences_pb2 as pb
from idalloc_server.auth.rejected_callers import BURST
from tests.rpc.conftest import Served, until
from tests.support.fake_store import lost_request
from tests.support.identities import bearer


def events(logs: Any) -> list[dict[str, Any]]:
    return [dict(line) for line in logs if line["event"] == "audit"]


async def audited(served: Served, method: str, request: Any, who: str = "admin", stub: Any = None) -> dict[str, Any]:
    """Calls, whatever comes of it; returns the one record."""
    with structlog.testing.capture_logs() as logs, suppress(grpc.aio.AioRpcError):
        await getattr(stub or served.sequences, method)(request, metadata=bearer(who), timeout=20)
    [line] = events(logs)
    assert line.pop("peer").startswith("ipv4:127.0.0.1:")
    assert line.pop("method").endswith(f"/{method}")
    assert line.pop("log_level") == "info"
    del line["event"]
    return line


class TestSequences:
    async def test_creation_tells_the_settings(self, guarded: Served) -> None:
        request = pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders", start=5, labels={"team": "x"}))
        line = await audited(guarded, "CreateSequence", request)
        assert (line["identity"], line["sequence"], line["code"]) == ("admin", "orders", "OK")
        assert line["before"] == {}
        assert line["after"]["start"] == 5
        assert line["after"]["labels"] == {"team": "x"}
        assert line["after"]["ordering"] == "RISING_PER_NODE"

    async def test_a_change_tells_what_was_before_and_nothing_that_stayed(self, guarded: Served) -> None:
        create = pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders", description="old"))
        await audited(guarded, "CreateSequence", create)
        changed = pb.Sequence(name="orders", description="new", max_value=100)
        line = await audited(guarded, "UpdateSequence", pb.UpdateSequenceRequest(sequence=changed))
        before, after = line["before"].pop("generation"), line["after"].pop("generation")
        assert 0 < before < after
        assert line["before"] == {"description": "old", "max_value": 2**63 - 2}
        assert line["after"] == {"description": "new", "max_value": 100}
        line = await audited(guarded, "AdvanceSequence", pb.AdvanceSequenceRequest(name="orders", past=70))
        assert line["past"] == 70
        assert (line["before"]["last_value"], line["after"]["last_value"]) == (0, 70)
        line = await audited(guarded, "DeleteSequence", pb.DeleteSequenceRequest(name="orders"))
        assert (line["before"]["deleted"], line["after"]["deleted"]) == (False, True)
        line = await audited(guarded, "CreateSequence", pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders")))
        assert (line["before"]["deleted"], line["after"]["deleted"]) == (True, False)

    async def test_what_failed_is_told_with_its_reason(self, guarded: Served) -> None:
        line = await audited(guarded, "DeleteSequence", pb.DeleteSequenceRequest(name="nothing"))
        assert line == {
            "identity": "admin",
            "sequence": "nothing",
            "code": "NOT_FOUND",
            "reason": "SEQUENCE_NOT_FOUND",
            "why": "sequence 'nothing' does not exist",
        }
        guarded.store.next("create", lost_request())
        line = await audited(guarded, "CreateSequence", pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders")))
        assert (line["code"], line["reason"]) == ("UNAVAILABLE", "STORE_UNAVAILABLE")

    async def test_a_change_whose_caller_went_away_is_told_when_it_is_done(self, guarded: Served) -> None:
        gate = guarded.store.hold("create")
        with structlog.testing.capture_logs() as logs:
            request = pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders"))
            call = guarded.sequences.CreateSequence(request, metadata=bearer("admin"))
            await until(lambda: bool(guarded.store.calls_of("create")))
            call.cancel()
            await until(lambda: bool(events(logs)))
            gate.set()
            await until(lambda: len(events(logs)) == 2)
        left, done = events(logs)
        assert (left["code"], left["sequence"]) == ("CANCELLED", "orders")
        assert (done["code"], done["caller"], done["identity"]) == ("OK", "left", "admin")
        assert done["after"]["last_value"] == 0

    async def test_what_is_refused_at_the_door_is_told_once(self, guarded: Served) -> None:
        line = await audited(guarded, "DeleteSequence", pb.DeleteSequenceRequest(name="orders"), who="narrow")
        assert (line["identity"], line["sequence"], line["code"]) == ("narrow", "orders", "PERMISSION_DENIED")
        line = await audited(guarded, "GetSequence", pb.GetSequenceRequest(name="orders"), who="allocate")
        assert (line["identity"], line["code"]) == ("allocate", "PERMISSION_DENIED")

    async def test_who_is_denied_again_and_again_is_told_in_sum(self, guarded: Served) -> None:
        with structlog.testing.capture_logs() as logs:
            for _ in range(BURST + 20):
                with pytest.raises(grpc.aio.AioRpcError):
                    await guarded.ids.AllocateRange(
                        id_allocator_pb2.AllocateRangeRequest(sequence="orders"), metadata=bearer("read"), timeout=20
                    )
            guarded.access_control.audit.log_totals()
        *single, last = events(logs)
        assert BURST <= len(single) < BURST + 20
        assert (last["subject"], last["reason"]) == ("identity:read", "PERMISSION_DENIED")
        assert len(single) + last["count"] == BURST + 20

    async def test_what_cannot_be_read_or_comes_too_late_is_told(self, guarded: Served) -> None:
        delete: Any = guarded.channel.unary_unary("/idalloc.v1.SequenceService/DeleteSequence")
        with structlog.testing.capture_logs() as logs:
            for who in ("admin", "nobody"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await delete(b"\xff", metadata=bearer("admin") if who == "admin" else (), timeout=20)
            guarded.calls.drain()
            with pytest.raises(grpc.aio.AioRpcError):
                await delete(b"", metadata=bearer("admin"), timeout=20)
        told = [(line["identity"], line["reason"]) for line in events(logs)]
        assert told == [("admin", "INVALID_REQUEST"), (None, "UNAUTHENTICATED"), ("admin", "SERVER_DRAINING")]

    async def test_reading_is_not_told(self, guarded: Served) -> None:
        with structlog.testing.capture_logs() as logs:
            await guarded.sequences.ListSequences(pb.ListSequencesRequest(), metadata=bearer("read"))
        assert not events(logs)

    async def test_a_long_name_is_cut(self, guarded: Served) -> None:
        line = await audited(guarded, "DeleteSequence", pb.DeleteSequenceRequest(name="x" * 50_000))
        assert len(line["sequence"]) == 256
        assert line["code"] == "INVALID_ARGUMENT"


async def test_the_nodes_settings_are_told(guarded: Served) -> None:
    node = node_pb2.Node(auto_increment_increment=9, auto_increment_offset=1)
    line = await audited(guarded, "UpdateNode", node_pb2.UpdateNodeRequest(node=node), stub=guarded.node)
    assert (line["before"], line["after"]) == ({"auto_increment_increment": 1}, {"auto_increment_increment": 9})
    assert line["persist"] is False


async def test_a_change_of_the_node_whose_caller_went_away_is_told_when_it_is_done(guarded: Served) -> None:
    gate = guarded.store.hold("claim_start")
    claims = len(guarded.store.calls_of("claim_start"))
    with structlog.testing.capture_logs() as logs:
        call = guarded.node.UpdateNode(
            node_pb2.UpdateNodeRequest(node=node_pb2.Node(prefix=99)), metadata=bearer("admin")
        )
        await until(lambda: len(guarded.store.calls_of("claim_start")) > claims)
        call.cancel()
        await until(lambda: bool(events(logs)))
        gate.set()
        await until(lambda: len(events(logs)) == 2)
    left, done = events(logs)
    assert (left["code"], "before" in left) == ("CANCELLED", False)
    assert (done["before"], done["after"], done["caller"]) == ({"prefix": 7}, {"prefix": 99}, "left")


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
async def test_a_request_that_is_echoed_still_fits_into_a_status(guarded: Served, character: str) -> None:
    mask = FieldMask(paths=[character * 50_000])
    request = pb.UpdateSequenceRequest(sequence=pb.Sequence(name="orders"), update_mask=mask)
    line = await audited(guarded, "UpdateSequence", request)
    assert (line["code"], line["reason"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert len(line["why"].encode()) < 600
    for _ in range(20):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await guarded.sequences.UpdateSequence(request, metadata=bearer("admin"), timeout=20)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_administration_is_told_also_where_nobody_is_asked(served: Served) -> None:
    line = await audited(served, "CreateSequence", pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders")))
    assert (line["identity"], line["code"]) == ("anonymous", "OK")
