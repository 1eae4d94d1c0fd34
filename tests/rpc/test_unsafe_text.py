"""Control characters and bidirectional marks: rejected in new text, tolerated in stored text."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from idalloc.v1 import id_allocator_pb2
from idalloc.v1 import sequences_pb2 as pb
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Row
from tests.rpc.conftest import Served
from tests.support.rpc_errors import Details, details_of

# C0, DEL, C1, line and paragraph separators, and every mark that changes the direction of text.
CONTROLS = [*range(0x20), 0x7F, *range(0x80, 0xA0)]
MARKS = [0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
UNSAFE = [chr(code) for code in CONTROLS + MARKS]
SOME = ["\x1b", "\x7f", "\x9b", "\u061c", "\u200f", "\u2028", "\u202e", "\u2069"]
HARMLESS = "Grüße, שלום, 注文, 👩\u200d💻"


async def error_of(call: object) -> Details:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    details = details_of(error.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    return details


async def invalid_field_of(call: object) -> str:
    (violation,) = (await error_of(call)).bad_request.field_violations
    return violation.field


def create(served: Served, **fields: object) -> object:
    return served.sequences.CreateSequence(pb.CreateSequenceRequest(sequence=pb.Sequence(**fields)))  # type: ignore[arg-type]


def update(served: Served, *mask: str, **fields: object) -> object:
    return served.sequences.UpdateSequence(
        pb.UpdateSequenceRequest(sequence=pb.Sequence(**fields), update_mask=FieldMask(paths=mask))  # type: ignore[arg-type]
    )


async def test_every_unsafe_character_is_rejected(served: Served) -> None:
    """CreateSequence stores no control character and no bidirectional mark."""
    for unsafe in UNSAFE:
        text = f"a{unsafe}b"
        assert await invalid_field_of(create(served, name=text)) == "sequence.name"
        assert await invalid_field_of(create(served, name="new", description=text)) == "sequence.description"
        assert await invalid_field_of(create(served, name="new", labels={text: "v"})) == "sequence.labels"
        assert await invalid_field_of(create(served, name="new", labels={"k": text})) == "sequence.labels"
        assert await invalid_field_of(create(served, name="new", format=f"{text}{{value}}")) == "sequence.format"
    assert not served.store.rows


async def test_error_names_the_code_point(served: Served) -> None:
    """The error has the code point, and never the character itself."""
    (violation,) = (await error_of(create(served, name="n", labels={"k": "a\u202eb"}))).bad_request.field_violations
    assert "U+202E" in violation.description
    assert "\u202e" not in violation.description


async def test_text_in_any_script_is_accepted(served: Served) -> None:
    """Letters of any script, emoji and zero-width joiners are valid text."""
    await create(served, name=HARMLESS, description=HARMLESS, labels={HARMLESS: HARMLESS}, format="№{value}")  # type: ignore[misc]


@pytest.mark.parametrize("unsafe", SOME)
async def test_update_rejects_unsafe_characters(served: Served, unsafe: str) -> None:
    """UpdateSequence has the same rule for description, labels and format."""
    await create(served, name="orders", description="before")  # type: ignore[misc]
    text = f"a{unsafe}b"
    assert await invalid_field_of(update(served, name="orders", description=text)) == "sequence.description"
    assert await invalid_field_of(update(served, name="orders", labels={text: "v"})) == "sequence.labels"
    assert await invalid_field_of(update(served, "*", name="orders", labels={"k": text})) == "sequence.labels"
    assert await invalid_field_of(update(served, name="orders", format=f"{text}{{value}}")) == "sequence.format"
    assert served.store.rows["orders"].sequence.description == "before"


@pytest.mark.parametrize("unsafe", SOME)
async def test_first_use_creates_no_unsafe_name(served: Served, unsafe: str) -> None:
    """Auto-creation has the rule of CreateSequence, with and without a request id."""
    name = f"a{unsafe}b"
    make_request = id_allocator_pb2.AllocateRangeRequest
    assert await invalid_field_of(served.ids.AllocateRange(make_request(sequence=name))) == "sequence"
    request_id = "8f14e45f-ceea-467f-a34f-0e5a1b1c2d3e"
    assert (
        await invalid_field_of(served.ids.AllocateRange(make_request(sequence=name, request_id=request_id)))
        == "sequence"
    )
    stream = served.ids.StreamRanges(id_allocator_pb2.StreamRangesRequest(sequence=name, total_id_count=5))
    assert await invalid_field_of(stream.read()) == "sequence"
    assert not served.store.rows


async def store_row(served: Served, name: str, **settings: object) -> None:
    """Write a row as an older server or another program left it."""
    sequence = Sequence(**settings)  # type: ignore[arg-type]
    await served.store.create(Row(name, sequence.before_start, sequence, generation=1))


async def test_stored_sequence_with_unsafe_text_stays_usable(served: Served) -> None:
    """A sequence with unsafe text, as an older server accepted it, stays usable by every RPC."""
    name, text = "\u200fאב", "a\x1b]0;x\x07\u202eb"
    await store_row(served, name, description=text, labels={text: text}, format="\u200f{value}")
    reply = await served.ids.AllocateRange(
        id_allocator_pb2.AllocateRangeRequest(sequence=name, view=id_allocator_pb2.RANGE_VIEW_TEXTS)
    )
    assert (reply.range.first_id, list(reply.texts)) == (1, ["\u200f1"])
    shown = (await served.sequences.GetSequence(pb.GetSequenceRequest(name=name))).sequence
    assert (shown.description, dict(shown.labels)) == (text, {text: text})
    await update(served, name=name, max_value=500)  # type: ignore[misc]
    await update(served, name=name, description="safe")  # type: ignore[misc]
    await served.sequences.AdvanceSequence(pb.AdvanceSequenceRequest(name=name, past=100))
    [listed] = (await served.sequences.ListSequences(pb.ListSequencesRequest())).sequences
    assert (listed.name, listed.description, dict(listed.labels)) == (name, "safe", {text: text})
    await served.sequences.DeleteSequence(pb.DeleteSequenceRequest(name=name))


async def test_list_continues_after_any_stored_name(served: Served) -> None:
    """A page that ends at any name of an adopted table has a valid token."""
    names = ["a", "b\n\x1b[2J", "c\u202e", "d"]
    for name in names:
        await store_row(served, name)
    found: list[str] = []
    token = ""
    while True:
        request = pb.ListSequencesRequest(page_size=1, page_token=token)
        page = await served.sequences.ListSequences(request)
        found += [each.name for each in page.sequences]
        token = page.next_page_token
        if not token:
            break
    assert found == names
