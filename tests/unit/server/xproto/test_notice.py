"""Notices: the very bytes of a real MySQL, and protobuf's own for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.xproto.notice import (
    document_ids_frame,
    document_ids_notice,
    insert_id_frame,
    insert_id_notice,
)
from tests.support.mysql import recordings

DOC_IDS = st.lists(st.text("0123456789abcdef", min_size=28, max_size=28), min_size=1, max_size=300)


def built(doc_ids: list[str]) -> pb.SessionStateChanged:
    """The notice, message by message."""
    return pb.SessionStateChanged(
        param=pb.SESSION_PARAMETER_GENERATED_DOCUMENT_IDS,
        value=[
            pb.Scalar(type=pb.SCALAR_TYPE_V_OCTETS, v_octets=pb.Octets(value=doc_id.encode())) for doc_id in doc_ids
        ],
    )


def unwrapped(frame: bytes) -> pb.SessionStateChanged:
    """The notice in a frame, as a client of the X Protocol reads it."""
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    assert frame[4] == 11
    notice = pb.Frame.FromString(frame[5:])
    assert notice.type == pb.FRAME_TYPE_SESSION_STATE_CHANGED
    assert notice.scope == pb.FRAME_SCOPE_LOCAL
    return pb.SessionStateChanged.FromString(notice.payload)


def test_frames_equal_every_recorded_one() -> None:
    recorded = recordings.notices()
    for source, ids, frame in recorded:
        assert document_ids_frame(ids) == frame, source
    assert len(recorded) == 420


def test_the_example_of_the_documentation() -> None:
    head = bytes.fromhex("2d000000 0b 08031002 1a26 080c 1222 0804 2a1e 0a1c")
    assert document_ids_frame(["00006075f6810000000000000006"]) == head + b"00006075f6810000000000000006"


@given(DOC_IDS)
def test_bytes_equal_protobuf_s_own(doc_ids: list[str]) -> None:
    assert document_ids_notice(doc_ids) == built(doc_ids)
    frame = document_ids_frame(doc_ids)
    assert unwrapped(frame) == built(doc_ids)
    payload = pb.Frame(
        type=pb.FRAME_TYPE_SESSION_STATE_CHANGED,
        scope=pb.FRAME_SCOPE_LOCAL,
        payload=built(doc_ids).SerializeToString(),
    ).SerializeToString()
    assert frame[5:] == payload


def test_ten_thousand() -> None:
    doc_ids = [f"{n:028x}" for n in range(10_000)]
    notice = unwrapped(document_ids_frame(doc_ids))
    assert [value.v_octets.value.decode() for value in notice.value] == doc_ids


@pytest.mark.parametrize(
    "doc_ids",
    [[], [""], ["0" * 27], ["0" * 29], ["0" * 28, "0" * 27], ["0" * 27, "0" * 29]],
)
def test_what_is_no_document_id_is_refused(doc_ids: list[str]) -> None:
    with pytest.raises(ValueError, match="28 characters"):
        document_ids_frame(doc_ids)
    with pytest.raises(ValueError, match="28 characters"):
        document_ids_notice(doc_ids)


def test_a_character_of_two_bytes_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        document_ids_frame(["é" + "0" * 27])


@given(st.integers(0, 2**63 - 1))
def test_insert_id(first_id: int) -> None:
    notice = insert_id_notice(first_id)
    assert notice.param == 3
    assert [(value.type, value.v_unsigned_int) for value in notice.value] == [(2, first_id)]
    assert notice.value[0].HasField("v_unsigned_int")  # a zero too is written
    assert unwrapped(insert_id_frame(first_id)) == notice


def test_insert_id_as_bytes() -> None:
    assert insert_id_frame(300).hex() == "100000000b080310021a0908031205080218ac02"
