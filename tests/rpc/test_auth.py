"""Who is let in: every role on every call, tokens, what a refusal says, and what the audit keeps of it."""

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
from tests.support.identities import TOKENS, bearer, known
from tests.support.rpc_errors import details_of

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
# What each call needs, written down here once more, and a request that is about the sequence "mine".
NEEDED: dict[str, tuple[Role, dict[str, Any]]] = {
    "AllocateRange": (ALLOCATE, {"sequence": "mine"}),
    "StreamRanges": (ALLOCATE, {"sequence": "mine", "total_id_count": 1}),
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


async def ask(served: Served, method: str, metadata: Iterable[tuple[str, str]] = (), **fields: Any) -> str:
    """Calls, and returns the reason of a refusal; empty where it was let in."""
    service = METHODS[method].containing_service.full_name
    module, stub = SERVICES[service]
    request = getattr(module, METHODS[method].input_type.name)(**(fields or NEEDED[METHODS[method].name][1]))
    call = getattr(stub(served.channel), METHODS[method].name)(request, metadata=tuple(metadata), timeout=20)
    try:
        if METHODS[method].server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return details_of(error).info.reason
    return ""


def test_every_call_has_a_rule_and_is_in_this_test() -> None:
    assert set(RULES) == set(METHODS)
    assert {method.name for method in METHODS.values()} == set(NEEDED)
    assert {path: rule.role for path, rule in RULES.items()} == {
        path: NEEDED[path.rpartition("/")[2]][0] for path in RULES
    }


async def test_each_role_opens_its_own_calls_and_no_others(guarded: Served) -> None:
    # Refusals first, so that nothing that is let in changes what they meet.
    for method, role in itertools.product(METHODS, ROLES):
        if NEEDED[METHODS[method].name][0] != role:
            assert await ask(guarded, method, bearer(role)) == "PERMISSION_DENIED", (method, role)
    assert not guarded.store.calls_of("grant")
    assert not guarded.store.calls_of("revise")
    assert await ask(guarded, "/idalloc.v1.SequenceService/CreateSequence", bearer("admin")) == ""
    later = ["/idalloc.v1.SequenceService/CreateSequence", "/idalloc.v1.SequenceService/DeleteSequence"]
    for method in [*(each for each in METHODS if each not in later), later[1]]:
        assert await ask(guarded, method, bearer(NEEDED[METHODS[method].name][0])) == "", method


async def test_patterns_decide_by_the_sequence_that_the_request_names(guarded: Served) -> None:
    # Without a sequence, one pattern is enough; the node belongs to all of them.
    free = {"GenerateDocId", "StreamDocIds", "GenerateUuid", "ListSequences", "GetNode"}
    for method, descriptor in METHODS.items():
        expected = "" if descriptor.name in free else "PERMISSION_DENIED"
        assert await ask(guarded, method, bearer("lower")) == expected, method
    assert await ask(guarded, "/idalloc.v1.SequenceService/CreateSequence", bearer("narrow")) == ""
    for method, descriptor in METHODS.items():
        if descriptor.name not in ("CreateSequence", "DeleteSequence"):
            expected = "PERMISSION_DENIED" if descriptor.name == "UpdateNode" else ""
            assert await ask(guarded, method, bearer("narrow")) == expected, method


async def test_without_a_token_nothing_is_done(guarded: Served) -> None:
    guarded.store.calls.clear()
    for method in METHODS:
        assert await ask(guarded, method) == "UNAUTHENTICATED", method
    assert not guarded.store.calls


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
async def test_what_is_no_token_of_ours_lets_nobody_in(guarded: Served, metadata: list[tuple[str, str]]) -> None:
    with structlog.testing.capture_logs() as logs:
        assert await ask(guarded, "/idalloc.v1.IdAllocatorService/AllocateRange", metadata) == "UNAUTHENTICATED"
    assert T not in str(logs)


async def test_the_scheme_may_be_written_in_any_case(guarded: Served) -> None:
    for scheme in ("bearer", "BEARER"):
        metadata = [("authorization", f"{scheme} {T}")]
        assert await ask(guarded, "/idalloc.v1.IdAllocatorService/AllocateRange", metadata) == ""


async def test_a_refusal_says_what_is_missing_and_never_the_token(guarded: Served) -> None:
    request = pb.AllocateRangeRequest(sequence="mine")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await guarded.ids.AllocateRange(request, metadata=bearer("read"))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.PERMISSION_DENIED
    assert dict(details.info.metadata) == {"identity": "read", "role": "allocate", "sequence": "mine"}
    assert details.message == "identity 'read' lacks role 'allocate' for sequence 'mine'"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await guarded.ids.AllocateRange(request, metadata=(("authorization", "Bearer planted-secret"),))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.UNAUTHENTICATED
    assert "planted-secret" not in details.message
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await guarded.ids.AllocateRange(pb.AllocateRangeRequest(sequence="n" * 100_000), metadata=bearer("narrow"))
    assert details_of(failed.value).info.reason == "PERMISSION_DENIED"
    assert len(details_of(failed.value).message) < 500


async def test_a_list_has_only_what_may_be_read(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "SCAN_BATCH_ROWS", 4)
    names = [f"{letter}{number:02}" for letter in "amz" for number in range(30)]
    for name in names:
        request = sequences_pb2.CreateSequenceRequest(sequence=sequences_pb2.Sequence(name=name))
        await guarded.sequences.CreateSequence(request, metadata=bearer("admin"))

    async def listed(who: str, size: int = 7, prefix: str = "") -> list[str]:
        found: list[str] = []
        token = ""
        while True:
            request = sequences_pb2.ListSequencesRequest(page_size=size, page_token=token, name_prefix=prefix)
            reply = await guarded.sequences.ListSequences(request, metadata=bearer(who))
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


async def test_health_is_open_and_reflection_for_those_who_are_known(guarded: Served) -> None:
    health: Any = health_pb2_grpc.HealthStub(guarded.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=10)).status
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(guarded.channel)  # type: ignore[arg-type]
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    [listed] = [reply async for reply in stub.ServerReflectionInfo(iter(asked), metadata=bearer("lower"))]
    assert len(listed.list_services_response.service) >= 3
    for metadata in ((), (("authorization", "Bearer nobody"),)):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in stub.ServerReflectionInfo(iter(asked), metadata=metadata):
                pass
        assert details_of(failed.value).info.reason == "UNAUTHENTICATED"


async def test_another_file_lets_others_in_and_ends_the_streams_of_those_who_are_out(guarded: Served) -> None:
    request = pb.StreamRangesRequest(sequence="mine", total_id_count=10**9, chunk_id_count=10)
    stream = guarded.ids.StreamRanges(request, metadata=bearer("allocate"))
    other = guarded.ids.StreamRanges(request, metadata=bearer("narrow"))
    for each in (stream, other):
        await anext(aiter(each))
    guarded.access_control.use(AccessPolicy([known("narrow", allocate=["mine"])]))
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
    assert await ask(guarded, path, bearer("allocate")) == "UNAUTHENTICATED"
    assert await ask(guarded, path, bearer("narrow")) == ""
    guarded.access_control.use(AccessPolicy())
    assert await ask(guarded, path, bearer("narrow")) == "UNAUTHENTICATED"
