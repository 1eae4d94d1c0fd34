"""Notices have the bytes that a real MySQL sends, and that protobuf serializes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.notices.generated_ids import (
    doc_ids_frame,
    doc_ids_notice,
    insert_id_notice,
    notice_frame,
)
from tests.support.mysql import recordings

DOC_IDS = st.lists(st.text("0123456789abcdef", min_size=28, max_size=28), min_size=1, max_size=300)


def protobuf_notice(doc_ids: list[str]) -> pb.SessionStateChanged:
    """Return the notice, built from protobuf messages."""
    return pb.SessionStateChanged(
        param=pb.SESSION_PARAMETER_GENERATED_DOCUMENT_IDS,
        value=[
            pb.Scalar(type=pb.SCALAR_TYPE_V_OCTETS, v_octets=pb.Octets(value=doc_id.encode())) for doc_id in doc_ids
        ],
    )


def parsed(frame: bytes) -> pb.SessionStateChanged:
    """Return the notice in a frame, as a client of the X Protocol parses it."""
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    assert frame[4] == 11
    notice = pb.Frame.FromString(frame[5:])
    assert notice.type == pb.FRAME_TYPE_SESSION_STATE_CHANGED
    assert notice.scope == pb.FRAME_SCOPE_LOCAL
    return pb.SessionStateChanged.FromString(notice.payload)


def framed(notice: pb.SessionStateChanged) -> bytes:
    return notice_frame(pb.FRAME_TYPE_SESSION_STATE_CHANGED, notice.SerializeToString())


def test_frames_equal_recorded_ones() -> None:
    """Frames equal all those recorded from a real MySQL."""
    recorded = recordings.notices()
    for source, ids, frame in recorded:
        assert doc_ids_frame(ids) == frame, source
    assert len(recorded) == 420


def test_frame_equals_the_documented_example() -> None:
    """A frame equals the example in MySQL's documentation."""
    head = bytes.fromhex("2d000000 0b 08031002 1a26 080c 1222 0804 2a1e 0a1c")
    assert doc_ids_frame(["00006075f6810000000000000006"]) == head + b"00006075f6810000000000000006"


@given(DOC_IDS)
def test_bytes_equal_those_of_protobuf(doc_ids: list[str]) -> None:
    """The fast serialization equals that of protobuf."""
    assert doc_ids_notice(doc_ids) == protobuf_notice(doc_ids)
    frame = doc_ids_frame(doc_ids)
    assert parsed(frame) == protobuf_notice(doc_ids)
    assert frame == framed(protobuf_notice(doc_ids))


def test_notice_with_ten_thousand_ids() -> None:
    """A notice can have as many ids as a message."""
    doc_ids = [f"{n:028x}" for n in range(10_000)]
    notice = parsed(doc_ids_frame(doc_ids))
    assert [value.v_octets.value.decode() for value in notice.value] == doc_ids


@pytest.mark.parametrize(
    "doc_ids",
    [[], [""], ["0" * 27], ["0" * 29], ["0" * 28, "0" * 27], ["0" * 27, "0" * 29]],
)
def test_ids_of_another_length_are_refused(doc_ids: list[str]) -> None:
    """No ids, and ids without 28 characters, are an error."""
    with pytest.raises(ValueError, match="28 characters"):
        doc_ids_frame(doc_ids)
    with pytest.raises(ValueError, match="28 characters"):
        doc_ids_notice(doc_ids)


def test_non_ascii_id_is_refused() -> None:
    """An id with a character of two bytes is an error."""
    with pytest.raises(UnicodeEncodeError):
        doc_ids_frame(["é" + "0" * 27])


@given(st.integers(0, 2**63 - 1))
def test_insert_id_notice(first_id: int) -> None:
    """A notice of an insert id has parameter 3 and one V_UINT."""
    notice = insert_id_notice(first_id)
    assert notice.param == 3
    assert [(value.type, value.v_unsigned_int) for value in notice.value] == [(2, first_id)]
    assert notice.value[0].HasField("v_unsigned_int")  # Zero is serialized, too.
    assert parsed(framed(notice)) == notice


def test_insert_id_frame_bytes() -> None:
    """The frame of an insert id has the documented bytes."""
    assert framed(insert_id_notice(300)).hex() == "100000000b080310021a0908031205080218ac02"
