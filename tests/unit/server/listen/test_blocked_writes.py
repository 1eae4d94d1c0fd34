"""The threads in which replies wait for slow readers."""

import threading
import time
from collections.abc import Iterator

import pytest

from idalloc_server.listen.transport import BlockedWrites


@pytest.fixture
def writes() -> Iterator[BlockedWrites]:
    made = BlockedWrites(3, kept=1)
    yield made
    made.shutdown()


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "native-write"]


def test_each_result_and_each_error_comes(writes: BlockedWrites) -> None:
    assert [writes.submit(pow, 2, turn).result(10) for turn in range(5)] == [1, 2, 4, 8, 16]
    with pytest.raises(ZeroDivisionError):
        writes.submit(divmod, 1, 0).result(10)
    assert writes.submit(pow, 3, 3).result(10) == 27


def test_one_that_waits_holds_up_no_other(writes: BlockedWrites) -> None:
    over = threading.Event()
    blocked = [writes.submit(over.wait) for _ in range(2)]
    assert writes.submit(pow, 2, 2).result(10) == 4
    assert not any(each.done() for each in blocked)
    over.set()
    assert all(each.result(10) for each in blocked)


def test_there_are_no_more_threads_than_allowed_and_what_comes_then_waits(writes: BlockedWrites) -> None:
    over = threading.Event()
    blocked = [writes.submit(over.wait) for _ in range(7)]
    assert len(names()) == 3
    over.set()
    assert all(each.result(10) for each in blocked)


def test_threads_end_but_for_those_that_are_kept_and_new_ones_come_when_needed(writes: BlockedWrites) -> None:
    for _ in range(3):
        over = threading.Event()
        blocked = [writes.submit(over.wait) for _ in range(3)]
        assert len(names()) == 3
        over.set()
        assert all(each.result(10) for each in blocked)
        deadline = time.monotonic() + 20
        while len(names()) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("kept", [0, 1])
def test_nothing_is_forgotten_where_threads_end_all_the_time(kept: int) -> None:
    writes = BlockedWrites(2, kept)
    for turn in range(300):
        submitted = [writes.submit(pow, turn, power) for power in range(turn % 5)]
        assert [each.result(10) for each in submitted] == [turn**power for power in range(turn % 5)]
    writes.shutdown()


def test_a_stop_waits_for_what_was_submitted_and_takes_nothing_more() -> None:
    writes = BlockedWrites(1, kept=1)
    submitted = [writes.submit(time.sleep, 0.01) for _ in range(5)]
    writes.shutdown()
    assert all(each.done() for each in submitted)
    assert not names()
    with pytest.raises(RuntimeError):
        writes.submit(pow, 1, 1)
