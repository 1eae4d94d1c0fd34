"""GenerateDocId and StreamDocIds on the wire."""

import grpc
import pytest
from google.protobuf.message import Message

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.domain.sequences.sequence import MAX_ID
from tests.rpc.conftest import MAX_IDS_PER_CALL, Served
from tests.support.rpc_errors import details_of


def serials(doc_ids: list[str]) -> list[int]:
    return [int(doc_id[12:], 16) for doc_id in doc_ids]


def expand(runs: list[pb.DocIdRun]) -> list[str]:
    return [
        run.first_doc_id[:12] + f"{int(run.first_doc_id[12:], 16) + n * run.step:016x}"
        for run in runs
        for n in range(run.id_count)
    ]


async def test_doc_id_has_mysql_format_with_node_prefix(served: Served) -> None:
    """A document id has MySQL's format: prefix, start timestamp, serial."""
    reply = await served.ids.GenerateDocId(pb.GenerateDocIdRequest())
    assert list(reply.doc_ids) == [f"0007{served.doc_ids.start_timestamp:08x}0000000000000001"]


async def test_full_view_has_texts_runs_and_notice_of_the_same_ids(served: Served) -> None:
    """DOC_ID_VIEW_FULL has the same ids as texts, runs and notice."""
    reply = await served.ids.GenerateDocId(pb.GenerateDocIdRequest(id_count=300))
    assert serials(list(reply.doc_ids)) == list(range(1, 301))
    assert expand(list(reply.runs)) == list(reply.doc_ids)
    assert [value.v_octets.value.decode() for value in reply.notice.value] == list(reply.doc_ids)
    assert reply.notice.param == 12
    assert not reply.notice_frame


async def test_other_views_have_one_form_only(served: Served) -> None:
    """Each other view has one form of the ids only."""
    generate = served.ids.GenerateDocId
    ids = await generate(pb.GenerateDocIdRequest(id_count=2, view=pb.DOC_ID_VIEW_IDS))
    compact = await generate(pb.GenerateDocIdRequest(id_count=2, view=pb.DOC_ID_VIEW_COMPACT))
    frame = await generate(pb.GenerateDocIdRequest(id_count=2, view=pb.DOC_ID_VIEW_NOTICE_FRAME))
    present = [[field.name for field, _ in reply.ListFields()] for reply in (ids, compact, frame)]
    assert present == [["doc_ids"], ["runs"], ["notice_frame"]]
    assert serials(list(ids.doc_ids)) == [1, 2]
    assert serials(expand(list(compact.runs))) == [3, 4]
    assert int.from_bytes(frame.notice_frame[:4], "little") == len(frame.notice_frame) - 4
    assert frame.notice_frame[4] == 11
    assert served.doc_ids.issue_now(1) is not None


async def test_callers_share_one_serial_for_any_offset_and_increment(served: Served) -> None:
    """P6: callers with different offsets and increments share one rising serial."""
    drawn = []
    for offset, increment in [(0, 0), (1, 10), (5, 1), (3, 256)]:
        request = pb.GenerateDocIdRequest(auto_increment_offset=offset, auto_increment_increment=increment)
        reply = await served.ids.GenerateDocId(request)
        drawn += serials(list(reply.doc_ids))
    assert drawn == [1, 11, 12, 259]


async def test_uneven_mysql_steps_fit_into_runs(served: Served) -> None:
    """Runs express MySQL's uneven steps of auto_increment_offset > auto_increment_increment."""
    request = pb.GenerateDocIdRequest(id_count=5, auto_increment_offset=10, auto_increment_increment=3)
    reply = await served.ids.GenerateDocId(request)
    assert serials(list(reply.doc_ids)) == [3, 6, 9, 10, 13]
    assert expand(list(reply.runs)) == list(reply.doc_ids)


@pytest.mark.parametrize("view", [pb.DOC_ID_VIEW_FULL, pb.DOC_ID_VIEW_IDS, pb.DOC_ID_VIEW_COMPACT])
async def test_stream_returns_the_total_in_rising_batches(served: Served, view: pb.DocIdView.ValueType) -> None:
    """StreamDocIds returns total_id_count ids in rising batches of chunk_id_count."""
    request = pb.StreamDocIdsRequest(total_id_count=25, chunk_id_count=10, view=view)
    replies = [reply async for reply in served.ids.StreamDocIds(request)]
    batches = [list(reply.doc_ids) or expand(list(reply.runs)) for reply in replies]
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert serials([doc_id for batch in batches for doc_id in batch]) == list(range(1, 26))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateDocIdRequest(id_count=-1), "id_count"),
        (pb.GenerateDocIdRequest(id_count=10_001), "id_count"),
        (pb.GenerateDocIdRequest(id_count=MAX_IDS_PER_CALL + 1, view=pb.DOC_ID_VIEW_COMPACT), "id_count"),
        (pb.GenerateDocIdRequest(auto_increment_offset=-1), "auto_increment_offset"),
        (pb.GenerateDocIdRequest(auto_increment_offset=65_536), "auto_increment_offset"),
        (pb.GenerateDocIdRequest(auto_increment_increment=-1), "auto_increment_increment"),
        (pb.GenerateDocIdRequest(auto_increment_increment=65_536), "auto_increment_increment"),
        (pb.GenerateDocIdRequest(view=99), "view"),  # type: ignore[arg-type]
        (pb.StreamDocIdsRequest(), "total_id_count"),
        (pb.StreamDocIdsRequest(total_id_count=-5), "total_id_count"),
        (pb.StreamDocIdsRequest(total_id_count=5, chunk_id_count=-1), "chunk_id_count"),
        (pb.StreamDocIdsRequest(total_id_count=5, chunk_id_count=10_001), "chunk_id_count"),
        (pb.StreamDocIdsRequest(total_id_count=5, auto_increment_offset=65_536), "auto_increment_offset"),
        (pb.StreamDocIdsRequest(total_id_count=5, view=-1), "view"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__}({value!s:.60})",
)
async def test_invalid_request_names_the_field_and_takes_no_ids(served: Served, request_: Message, field: str) -> None:
    """An invalid field is named in BadRequest, and no id is taken."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        if isinstance(request_, pb.GenerateDocIdRequest):
            await served.ids.GenerateDocId(request_)
        else:
            assert isinstance(request_, pb.StreamDocIdsRequest)
            async for _ in served.ids.StreamDocIds(request_):
                pass
    details = details_of(failed.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    [violation] = details.bad_request.field_violations
    assert violation.field == field
    reply = await served.ids.GenerateDocId(pb.GenerateDocIdRequest())
    assert serials(list(reply.doc_ids)) == [1]


async def test_compact_view_allows_max_ids_per_call(served: Served) -> None:
    """DOC_ID_VIEW_COMPACT returns max_ids_per_call ids in under 100 bytes."""
    request = pb.GenerateDocIdRequest(id_count=MAX_IDS_PER_CALL, view=pb.DOC_ID_VIEW_COMPACT)
    reply = await served.ids.GenerateDocId(request)
    assert [run.id_count for run in reply.runs] == [MAX_IDS_PER_CALL]
    assert reply.ByteSize() < 100


async def test_endless_stream_can_be_cancelled(served: Served) -> None:
    """A cancelled stream ends, so that a drain completes."""
    stream = served.ids.StreamDocIds(pb.StreamDocIdsRequest(total_id_count=MAX_ID, view=pb.DOC_ID_VIEW_COMPACT))
    first = await anext(aiter(stream))
    assert first.runs[0].id_count == 10_000
    stream.cancel()
    served.draining.reject_calls()
    assert await served.draining.wait_for_calls(timeout=2)
