"""The audit log: administrative calls with the settings before and after, and rejected calls."""

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


def audit_records(logs: Any) -> list[dict[str, Any]]:
    return [dict(line) for line in logs if line["event"] == "audit"]


async def record_of(served: Served, method: str, request: Any, who: str = "admin", stub: Any = None) -> dict[str, Any]:
    """Make a call, whether it fails or not, and return its one record."""
    with structlog.testing.capture_logs() as logs, suppress(grpc.aio.AioRpcError):
        await getattr(stub or served.sequences, method)(request, metadata=bearer(who), timeout=20)
    [line] = audit_records(logs)
    assert line.pop("peer").startswith("ipv4:127.0.0.1:")
    assert line.pop("method").endswith(f"/{method}")
    assert line.pop("log_level") == "info"
    del line["event"]
    return line


class TestSequences:
    async def test_create_sequence_records_all_settings(self, secured: Served) -> None:
        """CreateSequence is recorded with all settings of the new sequence."""
        request = pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders", start=5, labels={"team": "x"}))
        line = await record_of(secured, "CreateSequence", request)
        assert (line["identity"], line["sequence"], line["code"]) == ("admin", "orders", "OK")
        assert line["before"] == {}
        assert line["after"]["start"] == 5
        assert line["after"]["labels"] == {"team": "x"}
        assert line["after"]["ordering"] == "RISING_PER_NODE"

    async def test_update_records_only_changed_settings(self, secured: Served) -> None:
        """A change is recorded with the changed settings alone, before and after."""
        create = pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders", description="old"))
        await record_of(secured, "CreateSequence", create)
        changed = pb.Sequence(name="orders", description="new", max_value=100)
        line = await record_of(secured, "UpdateSequence", pb.UpdateSequenceRequest(sequence=changed))
        before, after = line["before"].pop("generation"), line["after"].pop("generation")
        assert 0 < before < after
        assert line["before"] == {"description": "old", "max_value": 2**63 - 2}
        assert line["after"] == {"description": "new", "max_value": 100}
        line = await record_of(secured, "AdvanceSequence", pb.AdvanceSequenceRequest(name="orders", past=70))
        assert line["past"] == 70
        assert (line["before"]["last_value"], line["after"]["last_value"]) == (0, 70)
        line = await record_of(secured, "DeleteSequence", pb.DeleteSequenceRequest(name="orders"))
        assert (line["before"]["deleted"], line["after"]["deleted"]) == (False, True)
        line = await record_of(secured, "CreateSequence", pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders")))
        assert (line["before"]["deleted"], line["after"]["deleted"]) == (True, False)

    async def test_failed_admin_call_is_recorded_with_its_reason(self, secured: Served) -> None:
        """A failed administrative call is recorded with its status code and reason."""
        line = await record_of(secured, "DeleteSequence", pb.DeleteSequenceRequest(name="nothing"))
        assert line == {
            "identity": "admin",
            "sequence": "nothing",
            "code": "NOT_FOUND",
            "reason": "SEQUENCE_NOT_FOUND",
            "why": "sequence 'nothing' does not exist",
        }
        secured.store.next("create", lost_request())
        line = await record_of(secured, "CreateSequence", pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders")))
        assert (line["code"], line["reason"]) == ("UNAVAILABLE", "STORE_UNAVAILABLE")

    async def test_cancelled_create_is_recorded_when_it_is_made(self, secured: Served) -> None:
        """A change of a sequence that outlives its cancelled call has a second record."""
        gate = secured.store.hold("create")
        with structlog.testing.capture_logs() as logs:
            request = pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders"))
            call = secured.sequences.CreateSequence(request, metadata=bearer("admin"))
            await until(lambda: bool(secured.store.calls_of("create")))
            call.cancel()
            await until(lambda: bool(audit_records(logs)))
            gate.set()
            await until(lambda: len(audit_records(logs)) == 2)
        left, done = audit_records(logs)
        assert (left["code"], left["sequence"]) == ("CANCELLED", "orders")
        assert (done["code"], done["caller"], done["identity"]) == ("OK", "left", "admin")
        assert done["after"]["last_value"] == 0

    async def test_denied_call_is_recorded_once(self, secured: Served) -> None:
        """A call without the required role has one record."""
        line = await record_of(secured, "DeleteSequence", pb.DeleteSequenceRequest(name="orders"), who="narrow")
        assert (line["identity"], line["sequence"], line["code"]) == ("narrow", "orders", "PERMISSION_DENIED")
        line = await record_of(secured, "GetSequence", pb.GetSequenceRequest(name="orders"), who="allocate")
        assert (line["identity"], line["code"]) == ("allocate", "PERMISSION_DENIED")

    async def test_repeated_denials_are_recorded_as_a_count(self, secured: Served) -> None:
        """Denials of one identity beyond the rate limit are recorded as a count."""
        with structlog.testing.capture_logs() as logs:
            for _ in range(BURST + 20):
                with pytest.raises(grpc.aio.AioRpcError):
                    await secured.ids.AllocateRange(
                        id_allocator_pb2.AllocateRangeRequest(sequence="orders"), metadata=bearer("read"), timeout=20
                    )
            secured.access_control.audit.log_totals()
        *single, last = audit_records(logs)
        assert BURST <= len(single) < BURST + 20
        assert (last["subject"], last["reason"]) == ("identity:read", "PERMISSION_DENIED")
        assert len(single) + last["count"] == BURST + 20

    async def test_undecodable_and_draining_admin_calls_are_recorded(self, secured: Served) -> None:
        """An administrative call that is undecodable, or during a drain, is recorded."""
        delete: Any = secured.channel.unary_unary("/idalloc.v1.SequenceService/DeleteSequence")
        with structlog.testing.capture_logs() as logs:
            for who in ("admin", "nobody"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await delete(b"\xff", metadata=bearer("admin") if who == "admin" else (), timeout=20)
            secured.draining.reject_calls()
            with pytest.raises(grpc.aio.AioRpcError):
                await delete(b"", metadata=bearer("admin"), timeout=20)
        recorded = [(line["identity"], line["reason"]) for line in audit_records(logs)]
        assert recorded == [("admin", "INVALID_REQUEST"), (None, "UNAUTHENTICATED"), ("admin", "SERVER_DRAINING")]

    async def test_read_call_is_not_recorded(self, secured: Served) -> None:
        """A call that only reads has no record."""
        with structlog.testing.capture_logs() as logs:
            await secured.sequences.ListSequences(pb.ListSequencesRequest(), metadata=bearer("read"))
        assert not audit_records(logs)

    async def test_long_sequence_name_is_cut_in_the_record(self, secured: Served) -> None:
        """A record has at most 256 characters of a sequence's name."""
        line = await record_of(secured, "DeleteSequence", pb.DeleteSequenceRequest(name="x" * 50_000))
        assert len(line["sequence"]) == 256
        assert line["code"] == "INVALID_ARGUMENT"


async def test_update_node_records_settings_before_and_after(secured: Served) -> None:
    """UpdateNode is recorded with the changed settings, before and after."""
    node = node_pb2.Node(auto_increment_increment=9, auto_increment_offset=1)
    line = await record_of(secured, "UpdateNode", node_pb2.UpdateNodeRequest(node=node), stub=secured.node)
    assert (line["before"], line["after"]) == ({"auto_increment_increment": 1}, {"auto_increment_increment": 9})
    assert line["persist"] is False


async def test_cancelled_update_node_is_recorded_when_it_is_made(secured: Served) -> None:
    """A change of the node that outlives its cancelled call has a second record."""
    gate = secured.store.hold("claim_start")
    claims = len(secured.store.calls_of("claim_start"))
    with structlog.testing.capture_logs() as logs:
        call = secured.node.UpdateNode(
            node_pb2.UpdateNodeRequest(node=node_pb2.Node(prefix=99)), metadata=bearer("admin")
        )
        await until(lambda: len(secured.store.calls_of("claim_start")) > claims)
        call.cancel()
        await until(lambda: bool(audit_records(logs)))
        gate.set()
        await until(lambda: len(audit_records(logs)) == 2)
    left, done = audit_records(logs)
    assert (left["code"], "before" in left) == ("CANCELLED", False)
    assert (done["before"], done["after"], done["caller"]) == ({"prefix": 7}, {"prefix": 99}, "left")


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
async def test_long_request_text_fits_into_status_and_record(secured: Served, character: str) -> None:
    """Text of the request is cut in the status and in the record."""
    mask = FieldMask(paths=[character * 50_000])
    request = pb.UpdateSequenceRequest(sequence=pb.Sequence(name="orders"), update_mask=mask)
    line = await record_of(secured, "UpdateSequence", request)
    assert (line["code"], line["reason"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert len(line["why"].encode()) < 600
    for _ in range(20):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await secured.sequences.UpdateSequence(request, metadata=bearer("admin"), timeout=20)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_admin_call_is_recorded_without_authentication(served: Served) -> None:
    """Without an access file, administrative calls are recorded as of anonymous."""
    line = await record_of(served, "CreateSequence", pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders")))
    assert (line["identity"], line["code"]) == ("anonymous", "OK")
