"""Messages and errors pass unchanged between supervisor and workers."""

import socket

import pytest

from idalloc_server.domain.document_ids.start_timestamps import _WrongClock
from idalloc_server.domain.errors import (
    InvalidRequest,
    PrefixInUse,
    Refusal,
    SequenceAheadOfClock,
    ServerDraining,
    StartRefused,
    StoreAnsweredError,
    WorkerFailed,
)
from idalloc_server.workers.pipe import Pipe, decode_error, encode_error


async def pair() -> tuple[Pipe, Pipe]:
    one, other = socket.socketpair()
    return await Pipe.over(one), await Pipe.over(other)


async def test_messages_arrive_in_order_until_close() -> None:
    """A pipe delivers messages in order, and None after the other end closed."""
    one, other = await pair()
    one.send("first", values=[1, 2.5, "ä\n", None])
    one.send("second")
    await one.close()
    assert await other.receive() == {"kind": "first", "values": [1, 2.5, "ä\n", None]}
    assert await other.receive() == {"kind": "second"}
    assert await other.receive() is None
    other.send("too late")
    assert await other.receive() is None
    await other.close()


async def test_incomplete_message_is_dropped() -> None:
    """The incomplete message of a killed process is dropped."""
    ours, theirs = socket.socketpair()
    pipe = await Pipe.over(ours)
    with theirs:
        theirs.sendall(b'{"kind": "counts", "cou')
    assert await pipe.receive() is None
    await pipe.close()


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("prefix", "must be between 0 and 65535, not 70000"),
        PrefixInUse(7, "there:1"),
        SequenceAheadOfClock("orders", 5.0, 1.0),
        ServerDraining(),
        WorkerFailed("worker 2 did not answer"),
        StoreAnsweredError("SQLite: busy", code=5),
        StartRefused("store", "is none"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_is_decoded_as_it_was_encoded(error: Refusal | StartRefused) -> None:
    """A decoded error has the class, message and attributes of the original."""
    found = decode_error(encode_error(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_unknown_error_class_is_decoded_as_its_base_class() -> None:
    """An error class outside domain.errors is decoded as its base class."""
    found = decode_error(encode_error(_WrongClock("set it right")))
    assert isinstance(found, Refusal)
    assert (type(found).__name__, str(found), found.reason) == (
        "DocIdTimestampRefused",
        "set it right",
        "DOC_ID_TIMESTAMP_REFUSED",
    )
