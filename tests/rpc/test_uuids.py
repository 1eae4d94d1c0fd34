"""GenerateUuid on the wire."""

import uuid
from itertools import pairwise

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from tests.rpc.conftest import Served
from tests.support.rpc_errors import details_of


async def test_default_is_one_uuid_of_version_7_as_text(served: Served) -> None:
    """The default is one UUID of version 7 as text (RFC 9562)."""
    reply = await served.ids.GenerateUuid(pb.GenerateUuidRequest())
    [text] = reply.uuids
    made = uuid.UUID(text)
    assert str(made) == text
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert not reply.uuid_bytes


async def test_version_7_rises_across_calls(served: Served) -> None:
    """UUIDs of version 7 rise within and across calls."""
    made: list[str] = []
    for _ in range(5):
        made += (await served.ids.GenerateUuid(pb.GenerateUuidRequest(id_count=100))).uuids
    assert all(one < other for one, other in pairwise(made))


async def test_version_4_is_unique(served: Served) -> None:
    """UUIDs of version 4 are distinct and have the version and variant of RFC 9562."""
    request = pb.GenerateUuidRequest(id_count=100, version=pb.UUID_VERSION_4)
    made = [uuid.UUID(text) for text in (await served.ids.GenerateUuid(request)).uuids]
    assert len(set(made)) == 100
    assert {(one.version, one.variant) for one in made} == {(4, uuid.RFC_4122)}


@pytest.mark.parametrize("version", [pb.UUID_VERSION_4, pb.UUID_VERSION_7])
async def test_bytes_view_has_uuids_of_16_bytes(served: Served, version: pb.UuidVersion.ValueType) -> None:
    """UUID_VIEW_BYTES has the UUIDs as bytes alone."""
    request = pb.GenerateUuidRequest(id_count=10_000, version=version, view=pb.UUID_VIEW_BYTES)
    reply = await served.ids.GenerateUuid(request)
    assert not reply.uuids
    assert len(set(reply.uuid_bytes)) == 10_000
    assert {uuid.UUID(bytes=one).version for one in reply.uuid_bytes} == {version}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateUuidRequest(id_count=-1), "id_count"),
        (pb.GenerateUuidRequest(id_count=10_001), "id_count"),
        (pb.GenerateUuidRequest(version=1), "version"),  # type: ignore[arg-type]
        (pb.GenerateUuidRequest(view=3), "view"),  # type: ignore[arg-type]
    ],
    ids=["negative", "too many", "version", "view"],
)
async def test_invalid_request_names_the_field(served: Served, request_: pb.GenerateUuidRequest, field: str) -> None:
    """An invalid field is named in BadRequest."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.GenerateUuid(request_)
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.INVALID_ARGUMENT
    [violation] = details.bad_request.field_violations
    assert violation.field == field


async def test_uuids_need_no_store(served: Served) -> None:
    """UUIDs are generated while the store is unavailable."""
    served.store.down = True
    assert (await served.ids.GenerateUuid(pb.GenerateUuidRequest())).uuids
