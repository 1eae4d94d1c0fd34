"""The thread pool in which replies wait for slow clients."""

import threading
import time
from collections.abc import Iterator

import pytest

from idalloc_server.listen.native import BlockedWrites
from tests.support.waiting import wait_until


@pytest.fixture
def writes() -> Iterator[BlockedWrites]:
    pool = BlockedWrites(3, kept=1)
    yield pool
    pool.shutdown()


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "native-write"]


def test_results_and_errors_are_returned(writes: BlockedWrites) -> None:
    """A job returns its result or raises its error, and the thread continues."""
    assert [writes.submit(pow, 2, turn).result(10) for turn in range(5)] == [1, 2, 4, 8, 16]
    with pytest.raises(ZeroDivisionError):
        writes.submit(divmod, 1, 0).result(10)
    assert writes.submit(pow, 3, 3).result(10) == 27


def test_blocked_job_does_not_delay_others(writes: BlockedWrites) -> None:
    """A blocked job does not delay another one while a thread is left."""
    released = threading.Event()
    blocked = [writes.submit(released.wait) for _ in range(2)]
    assert writes.submit(pow, 2, 2).result(10) == 4
    assert not any(each.done() for each in blocked)
    released.set()
    assert all(each.result(10) for each in blocked)


def test_threads_are_limited_and_further_jobs_wait(writes: BlockedWrites) -> None:
    """At most the configured number of threads run; further jobs wait for one."""
    released = threading.Event()
    blocked = [writes.submit(released.wait) for _ in range(7)]
    assert len(thread_names()) == 3
    released.set()
    assert all(each.result(10) for each in blocked)


def test_idle_threads_end_and_start_again(writes: BlockedWrites) -> None:
    """Idle threads end, except for the kept ones, and new ones start for new jobs."""
    for _ in range(3):
        released = threading.Event()
        blocked = [writes.submit(released.wait) for _ in range(3)]
        assert len(thread_names()) == 3
        released.set()
        assert all(each.result(10) for each in blocked)
        wait_until(lambda: len(thread_names()) <= 1, "the end of idle threads")


@pytest.mark.parametrize("kept", [0, 1])
def test_no_job_is_lost_while_threads_end(kept: int) -> None:
    """No job is lost while idle threads end."""
    writes = BlockedWrites(2, kept)
    for turn in range(300):
        submitted = [writes.submit(pow, turn, power) for power in range(turn % 5)]
        assert [each.result(10) for each in submitted] == [turn**power for power in range(turn % 5)]
    writes.shutdown()


def test_shutdown_waits_for_jobs_and_accepts_no_more() -> None:
    """A shutdown waits for the submitted jobs and rejects new ones."""
    writes = BlockedWrites(1, kept=1)
    submitted = [writes.submit(time.sleep, 0.01) for _ in range(5)]
    writes.shutdown()
    assert all(each.done() for each in submitted)
    assert not thread_names()
    with pytest.raises(RuntimeError):
        writes.submit(pow, 1, 1)
