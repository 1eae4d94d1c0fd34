"""What supervisor and workers tell each other arrives as it was said."""

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
    StoreRejected,
    WorkerFailed,
)
from idalloc_server.workers.pipe import Pipe, decode_error, encode_error


async def pair() -> tuple[Pipe, Pipe]:
    one, other = socket.socketpair()
    return await Pipe.over(one), await Pipe.over(other)


async def test_messages_arrive_in_order_until_the_other_end_is_closed() -> None:
    one, other = await pair()
    one.tell("first", values=[1, 2.5, "ä\n", None])
    one.tell("second")
    await one.close()
    assert await other.hear() == {"what": "first", "values": [1, 2.5, "ä\n", None]}
    assert await other.hear() == {"what": "second"}
    assert await other.hear() is None
    other.tell("too late")
    assert await other.hear() is None
    await other.close()


async def test_half_a_message_of_a_process_that_was_killed_is_none() -> None:
    ours, theirs = socket.socketpair()
    pipe = await Pipe.over(ours)
    with theirs:
        theirs.sendall(b'{"what": "counts", "cou')
    assert await pipe.hear() is None
    await pipe.close()


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("prefix", "must be between 0 and 65535, not 70000"),
        PrefixInUse(7, "there:1"),
        SequenceAheadOfClock("orders", 5.0, 1.0),
        ServerDraining(),
        WorkerFailed("worker 2 did not answer"),
        StoreRejected("SQLite: busy", code=5),
        StartRefused("store", "is none"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_out_as_it_went_in(error: Refusal | StartRefused) -> None:
    found = decode_error(encode_error(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_an_error_that_the_catalogue_has_not_comes_out_as_the_one_it_is_a_kind_of() -> None:
    found = decode_error(encode_error(_WrongClock("set it right")))
    assert isinstance(found, Refusal)
    assert (type(found).__name__, str(found), found.reason) == (
        "DocIdTimestampRefused",
        "set it right",
        "DOC_ID_TIMESTAMP_REFUSED",
    )
