"""Authentication and authorization: tokens, every role on every method, and the errors."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from idalloc.v1 import (
    id_allocator_pb2,
    id_allocator_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    sequences_pb2,
    sequences_pb2_grpc,
)
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.access import ADMIN, ALLOCATE, READ, ROLES, AccessPolicy, Role
from idalloc_server.auth.authorize import RULES
from idalloc_server.domain.administration import paging
from tests.rpc.conftest import Served
from tests.support.identities import TOKENS, bearer, identity_with_token
from tests.support.rpc_errors import ENDED_DURING_WRITE, details_of

SERVICES = {
    "idalloc.v1.IdAllocatorService": (id_allocator_pb2, id_allocator_pb2_grpc.IdAllocatorServiceStub),
    "idalloc.v1.SequenceService": (sequences_pb2, sequences_pb2_grpc.SequenceServiceStub),
    "idalloc.v1.NodeService": (node_pb2, node_pb2_grpc.NodeServiceStub),
}
METHODS = {
    f"/{name}/{method.name}": method
    for name, (module, _) in SERVICES.items()
    for method in module.DESCRIPTOR.services_by_name[name.rpartition(".")[2]].methods
}
# The required role of each method, independent of RULES, and a request for the sequence "mine".
REQUIRED: dict[str, tuple[Role, dict[str, Any]]] = {
    "AllocateRange": (ALLOCATE, {"sequence": "mine"}),
    "BatchAllocateRanges": (ALLOCATE, {"requests": [{"sequence": "mine"}]}),
    "StreamRanges": (ALLOCATE, {"sequence": "mine", "total_id_count": 1}),
    "AllocateStream": (ALLOCATE, {"allocate_range": {"sequence": "mine"}}),
    "GenerateDocId": (ALLOCATE, {}),
    "StreamDocIds": (ALLOCATE, {"total_id_count": 1}),
    "GenerateUuid": (ALLOCATE, {}),
    "GetSequence": (READ, {"name": "mine"}),
    "ListSequences": (READ, {}),
    "ParseId": (READ, {"sequence": "mine", "text": "5"}),
    "GetNode": (READ, {}),
    "CreateSequence": (ADMIN, {"sequence": {"name": "mine"}}),
    "UpdateSequence": (ADMIN, {"sequence": {"name": "mine", "description": "x"}}),
    "DeleteSequence": (ADMIN, {"name": "mine"}),
    "AdvanceSequence": (ADMIN, {"name": "mine", "past": 5}),
    "UpdateNode": (ADMIN, {"node": {"auto_increment_offset": 1}}),
}


async def error_reason_of(served: Served, method: str, metadata: Iterable[tuple[str, str]] = (), **fields: Any) -> str:
    """Make a call, and return the reason of its error; empty if it succeeds."""
    service = METHODS[method].containing_service.full_name
    module, stub = SERVICES[service]
    request = getattr(module, METHODS[method].input_type.name)(**(fields or REQUIRED[METHODS[method].name][1]))
    sent = [request] if METHODS[method].client_streaming else request
    call = getattr(stub(served.channel), METHODS[method].name)(sent, metadata=tuple(metadata), timeout=20)
    try:
        if METHODS[method].server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        if error.details() == ENDED_DURING_WRITE:  # the answer itself was lost
            return await error_reason_of(served, method, metadata, **fields)
        return details_of(error).info.reason
    return ""


def test_every_method_has_a_rule() -> None:
    """Every method of the services has a rule with the role that this test expects."""
    assert set(RULES) == set(METHODS)
    assert {method.name for method in METHODS.values()} == set(REQUIRED)
    assert {path: rule.role for path, rule in RULES.items()} == {
        path: REQUIRED[path.rpartition("/")[2]][0] for path in RULES
    }


async def test_each_role_authorizes_its_own_methods_only(secured: Served) -> None:
    """Roles are independent: each authorizes its own methods and no others."""
    # Denied calls first, so that no authorized call changes their state.
    for method, role in itertools.product(METHODS, ROLES):
        if REQUIRED[METHODS[method].name][0] != role:
            assert await error_reason_of(secured, method, bearer(role)) == "PERMISSION_DENIED", (method, role)
    assert not secured.store.calls_of("grant")
    assert not secured.store.calls_of("revise")
    assert await error_reason_of(secured, "/idalloc.v1.SequenceService/CreateSequence", bearer("admin")) == ""
    later = ["/idalloc.v1.SequenceService/CreateSequence", "/idalloc.v1.SequenceService/DeleteSequence"]
    for method in [*(each for each in METHODS if each not in later), later[1]]:
        assert await error_reason_of(secured, method, bearer(REQUIRED[METHODS[method].name][0])) == "", method


async def test_role_applies_to_matching_sequences_only(secured: Served) -> None:
    """A role applies only to sequences that match its patterns."""
    # A method without a sequence requires the role on any one; UpdateNode requires it on all.
    free = {
        "BatchAllocateRanges",
        "AllocateStream",
        "GenerateDocId",
        "StreamDocIds",
        "GenerateUuid",
        "ListSequences",
        "GetNode",
    }
    for method, descriptor in METHODS.items():
        expected = "" if descriptor.name in free else "PERMISSION_DENIED"
        assert await error_reason_of(secured, method, bearer("lower")) == expected, method
    assert await error_reason_of(secured, "/idalloc.v1.SequenceService/CreateSequence", bearer("narrow")) == ""
    for method, descriptor in METHODS.items():
        if descriptor.name not in ("CreateSequence", "DeleteSequence"):
            expected = "PERMISSION_DENIED" if descriptor.name == "UpdateNode" else ""
            assert await error_reason_of(secured, method, bearer("narrow")) == expected, method


async def test_call_without_token_has_no_effect(secured: Served) -> None:
    """A call without a token is UNAUTHENTICATED and does not reach the store."""
    secured.store.calls.clear()
    for method in METHODS:
        assert await error_reason_of(secured, method) == "UNAUTHENTICATED", method
    assert not secured.store.calls


T = TOKENS["allocate"]


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", f"Bearer {T}x")],
        [("authorization", f"Bearer  {T}")],
        [("authorization", f"Basic {T}")],
        [("authorization", T)],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "")],
        [("authorization", f"Bearer {sha256(T.encode()).hexdigest()}")],
        [("authorization", f"Bearer {T}"), ("authorization", f"Bearer {T}")],
        [("authorization", f"Bearer {T}"), ("authorization", "Bearer other")],
        [("x-authorization", f"Bearer {T}")],
    ],
)
async def test_invalid_authorization_metadata_is_rejected(secured: Served, metadata: list[tuple[str, str]]) -> None:
    """Metadata other than one valid bearer token is UNAUTHENTICATED, and the log has no token."""
    with structlog.testing.capture_logs() as logs:
        assert (
            await error_reason_of(secured, "/idalloc.v1.IdAllocatorService/AllocateRange", metadata)
            == "UNAUTHENTICATED"
        )
    assert T not in str(logs)


async def test_bearer_scheme_is_case_insensitive(secured: Served) -> None:
    """RFC 9110: the authentication scheme is case-insensitive."""
    for scheme in ("bearer", "BEARER"):
        metadata = [("authorization", f"{scheme} {T}")]
        assert await error_reason_of(secured, "/idalloc.v1.IdAllocatorService/AllocateRange", metadata) == ""


async def test_denial_names_identity_role_and_sequence_but_no_token(secured: Served) -> None:
    """An error names the identity, the missing role and the sequence, and never a token."""
    request = pb.AllocateRangeRequest(sequence="mine")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await secured.ids.AllocateRange(request, metadata=bearer("read"))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.PERMISSION_DENIED
    assert dict(details.info.metadata) == {"identity": "read", "role": "allocate", "sequence": "mine"}
    assert details.message == "identity 'read' lacks role 'allocate' for sequence 'mine'"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await secured.ids.AllocateRange(request, metadata=(("authorization", "Bearer planted-secret"),))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.UNAUTHENTICATED
    assert "planted-secret" not in details.message
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await secured.ids.AllocateRange(pb.AllocateRangeRequest(sequence="n" * 100_000), metadata=bearer("narrow"))
    assert details_of(failed.value).info.reason == "PERMISSION_DENIED"
    assert len(details_of(failed.value).message) < 500


async def test_list_has_only_readable_sequences(secured: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """ListSequences returns all sequences that the caller may read, and no others."""
    monkeypatch.setattr(paging, "SCAN_BATCH_ROWS", 4)
    names = [f"{letter}{number:02}" for letter in "amz" for number in range(30)]
    for name in names:
        request = sequences_pb2.CreateSequenceRequest(sequence=sequences_pb2.Sequence(name=name))
        await secured.sequences.CreateSequence(request, metadata=bearer("admin"))

    async def listed(who: str, size: int = 7, prefix: str = "") -> list[str]:
        found: list[str] = []
        token = ""
        while True:
            request = sequences_pb2.ListSequencesRequest(page_size=size, page_token=token, name_prefix=prefix)
            reply = await secured.sequences.ListSequences(request, metadata=bearer(who))
            assert len(reply.sequences) <= size
            found += [each.name for each in reply.sequences]
            token = reply.next_page_token
            if not token:
                return found

    assert await listed("read") == names
    assert await listed("narrow") == [name for name in names if name.startswith("m")]
    assert await listed("narrow", size=30) == names[30:60]
    assert await listed("narrow", prefix="m1") == names[40:50]
    assert await listed("narrow", prefix="a") == []
    scattered = [name for name in names if name.startswith("a1") or name.endswith("5")]
    assert await listed("scattered") == scattered
    assert await listed("scattered", size=2, prefix="a") == [name for name in scattered if name.startswith("a")]
    assert await listed("lower") == []


async def test_reflection_requires_authentication_and_health_does_not(secured: Served) -> None:
    """Health needs no authentication; reflection needs it, but no role."""
    health: Any = health_pb2_grpc.HealthStub(secured.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=10)).status
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(secured.channel)  # type: ignore[arg-type]
    requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
    [listed] = [reply async for reply in stub.ServerReflectionInfo(iter(requests), metadata=bearer("lower"))]
    assert len(listed.list_services_response.service) >= 3
    for metadata in ((), (("authorization", "Bearer nobody"),)):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in stub.ServerReflectionInfo(iter(requests), metadata=metadata):
                pass
        assert details_of(failed.value).info.reason == "UNAUTHENTICATED"


async def test_new_policy_ends_streams_of_removed_identities(secured: Served) -> None:
    """A new policy applies to the next call, and to the next message of an open stream."""
    request = pb.StreamRangesRequest(sequence="mine", total_id_count=10**9, chunk_id_count=10)
    stream = secured.ids.StreamRanges(request, metadata=bearer("allocate"))
    other = secured.ids.StreamRanges(request, metadata=bearer("narrow"))
    for each in (stream, other):
        await anext(aiter(each))
    secured.access_control.apply_policy(AccessPolicy([identity_with_token("narrow", allocate=["mine"])]))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async with asyncio.timeout(20):
            async for _ in stream:
                pass
    assert details_of(failed.value).info.reason == "UNAUTHENTICATED"
    received = 0
    async for _ in other:
        received += 1
        if received == 100:
            break
    other.cancel()
    path = "/idalloc.v1.IdAllocatorService/AllocateRange"
    assert await error_reason_of(secured, path, bearer("allocate")) == "UNAUTHENTICATED"
    assert await error_reason_of(secured, path, bearer("narrow")) == ""
    secured.access_control.apply_policy(AccessPolicy())
    assert await error_reason_of(secured, path, bearer("narrow")) == "UNAUTHENTICATED"
