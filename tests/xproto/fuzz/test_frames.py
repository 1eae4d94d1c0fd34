"""X Protocol frames of random ids parse to the same ids, or are refused as ValueError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.domain.document_ids.generator import DocIdRun
from idalloc_server.notices.generated_ids import doc_ids_frame, doc_ids_notice, insert_id_notice
from tests.fuzz.inputs import TRIED, tries

ASCII = st.characters(min_codepoint=0, max_codepoint=127)
ANY = st.characters(codec=None)
UINT16 = st.integers(0, 2**16 - 1)
RUNS = st.builds(DocIdRun, UINT16, st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(1, 2**32), st.just(3))
IDS = RUNS.map(lambda run: run.texts()[-1])


def unwrapped(frame: bytes) -> pb.SessionStateChanged:
    """Return the notice in a frame, and assert the frame's length and type."""
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    assert frame[4] == 11
    notice = pb.Frame.FromString(frame[5:])
    assert (notice.type, notice.scope) == (pb.FRAME_TYPE_SESSION_STATE_CHANGED, pb.FRAME_SCOPE_LOCAL)
    return pb.SessionStateChanged.FromString(notice.payload)


def test_a_frame_of_doc_ids_can_be_parsed(tried: str) -> None:
    """A notice frame of any document ids parses to the same ids."""

    @tries(50)
    @given(st.lists(IDS | st.text(ASCII, min_size=28, max_size=28), min_size=1, max_size=200))
    def check(doc_ids: list[str]) -> None:
        TRIED[tried] += 1
        notice = unwrapped(doc_ids_frame(doc_ids))
        assert notice == doc_ids_notice(doc_ids)
        assert notice.param == pb.SESSION_PARAMETER_GENERATED_DOCUMENT_IDS
        assert [value.v_octets.value.decode() for value in notice.value] == doc_ids
        assert {value.type for value in notice.value} == {pb.SCALAR_TYPE_V_OCTETS}

    check()


def test_other_texts_are_refused_as_doc_ids(tried: str) -> None:
    """A text that is not 28 ASCII characters is refused as ValueError."""
    lengths = st.sampled_from([0, 1, 27, 28, 29])

    @tries(50)
    @given(st.lists(lengths.flatmap(lambda size: st.text(ANY, min_size=size, max_size=size)), max_size=4))
    def check(texts: list[str]) -> None:
        TRIED[tried] += 1
        if texts and all(len(text) == 28 and text.isascii() for text in texts):
            assert len(unwrapped(doc_ids_frame(texts)).value) == len(texts)
        else:
            with pytest.raises(ValueError):  # noqa: PT011 - of lengths or characters
                doc_ids_frame(texts)

    check()


def test_a_notice_of_an_insert_id_can_be_parsed(tried: str) -> None:
    """A notice of any insert id parses to the same id."""
    edges = [0, 1, 127, 128, 2**31, 2**32, 2**53, 2**63 - 1]

    @tries(50)
    @given(st.sampled_from(edges) | st.integers(0, 2**63 - 1))
    def check(first_id: int) -> None:
        TRIED[tried] += 1
        notice = pb.SessionStateChanged.FromString(insert_id_notice(first_id).SerializeToString())
        assert notice.param == pb.SESSION_PARAMETER_GENERATED_INSERT_ID
        assert [(value.type, value.v_unsigned_int) for value in notice.value] == [(pb.SCALAR_TYPE_V_UINT, first_id)]

    check()


def test_an_insert_id_out_of_range_is_refused(tried: str) -> None:
    """An insert id outside 64 bits is refused as ValueError."""

    @tries(20)
    @given(st.integers(max_value=-(2**63) - 1) | st.integers(min_value=2**63))
    def check(first_id: int) -> None:
        TRIED[tried] += 1
        with pytest.raises(ValueError, match="range"):
            insert_id_notice(first_id)

    check()
