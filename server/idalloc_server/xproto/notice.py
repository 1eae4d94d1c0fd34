"""Generated ids, told as MySQL's X Plugin tells them: by a notice of the kind SessionStateChanged."""

from collections.abc import Sequence

from idalloc.xprotocol.v1 import notice_pb2 as pb

# The type byte of a frame that holds a notice (ServerMessages.Type.NOTICE).
_NOTICE = 11

_PARAM = pb.SessionStateChanged(param=pb.SESSION_PARAMETER_GENERATED_DOCUMENT_IDS).SerializeToString()

# All of one value that precedes its id, which always has the same length; all of these bytes are ASCII.
_ID_LENGTH = 28
_VALUE = pb.SessionStateChanged(
    value=[pb.Scalar(type=pb.SCALAR_TYPE_V_OCTETS, v_octets=pb.Octets(value=bytes(_ID_LENGTH)))]
).SerializeToString()
_BEFORE_ID = _VALUE[:-_ID_LENGTH].decode("ascii")


def document_ids_notice(doc_ids: Sequence[str]) -> pb.SessionStateChanged:
    """Returns the notice of document ids: GENERATED_DOCUMENT_IDS with one octets value an id, in their order.

    Args:
        doc_ids: Ids of 28 characters, at least one: MySQL sends no notice where it generated none.
    """
    return pb.SessionStateChanged.FromString(_document_ids(doc_ids))


def document_ids_frame(doc_ids: Sequence[str]) -> bytes:
    """Returns the same notice as one whole frame of the X Protocol, its length first."""
    return _frame(_document_ids(doc_ids))


def insert_id_notice(first_id: int) -> pb.SessionStateChanged:
    """Returns the notice of auto-increment ids: GENERATED_INSERT_ID with the first id of the insert.

    Args:
        first_id: 0 to 2^63-1.
    """
    return pb.SessionStateChanged(
        param=pb.SESSION_PARAMETER_GENERATED_INSERT_ID,
        value=[pb.Scalar(type=pb.SCALAR_TYPE_V_UINT, v_unsigned_int=first_id)],
    )


def insert_id_frame(first_id: int) -> bytes:
    """Returns the same notice as one whole frame of the X Protocol, its length first."""
    return _frame(insert_id_notice(first_id).SerializeToString())


def _document_ids(doc_ids: Sequence[str]) -> bytes:
    """Serializes the notice, some ten times as fast as through messages."""
    if set(map(len, doc_ids)) != {_ID_LENGTH}:
        raise ValueError(f"document ids have {_ID_LENGTH} characters, and there is at least one")
    return _PARAM + (_BEFORE_ID + _BEFORE_ID.join(doc_ids)).encode("ascii")


def _frame(notice: bytes) -> bytes:
    """Wraps a SessionStateChanged into a notice of this session, and that into a frame."""
    payload = pb.Frame(
        type=pb.FRAME_TYPE_SESSION_STATE_CHANGED, scope=pb.FRAME_SCOPE_LOCAL, payload=notice
    ).SerializeToString()
    return (len(payload) + 1).to_bytes(4, "little") + bytes((_NOTICE,)) + payload
