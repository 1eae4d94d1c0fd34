"""The thread that runs SQLite's transactions."""

import asyncio
import threading
import weakref
from contextlib import suppress

import pytest

from idalloc_server.store.sqlite.database import JobThread
from tests.support.collector import without_collector
from tests.support.waiting import until


@pytest.fixture
def thread() -> JobThread:
    return JobThread("test")


async def test_jobs_run_in_order_on_one_thread(thread: JobThread) -> None:
    """Jobs run one after another, in the order of the calls, and not on the event loop's thread."""
    ran: list[tuple[int, int]] = []

    def run(number: int) -> None:
        ran.append((number, threading.get_ident()))

    await asyncio.gather(*(thread.run(run, number) for number in range(100)))
    assert [number for number, _ in ran] == list(range(100))
    [ident] = {ident for _, ident in ran}
    assert ident != threading.get_ident()
    thread.close()


async def test_a_job_returns_its_answer_or_raises_its_error(thread: JobThread) -> None:
    """The caller gets what the job returned or raised."""
    assert await thread.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await thread.run(divmod, 7, 0)
    thread.close()


class _Probe:
    """What a job refers to."""

    def fail(self) -> None:
        raise ValueError


async def test_a_failed_job_is_not_kept(thread: JobThread) -> None:
    """What a failed job referred to is freed at once, not by the garbage collector."""
    with without_collector():
        probe = _Probe()
        kept = weakref.ref(probe)
        with suppress(ValueError):
            await thread.run(probe.fail)
        del probe
        await until(lambda: kept() is None, "the thread drops the job")
    thread.close()


async def test_a_cancelled_job_runs_only_if_it_had_begun(thread: JobThread) -> None:
    """A queued job is dropped when its caller is cancelled; one that has begun completes."""
    begun, may_end, ran = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        may_end.wait(10)
        ran.append("first")

    running, queued = thread.run(first), thread.run(ran.append, "second")
    await asyncio.to_thread(begun.wait, 10)
    running.cancel()
    queued.cancel()
    may_end.set()
    await thread.run(ran.append, "third")
    assert ran == ["first", "third"]
    thread.close()


async def test_a_thread_that_cannot_start_is_tried_again(thread: JobThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of threads the call fails, and a later one succeeds."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as at_limit:
        at_limit.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            thread.run(int)
    assert await thread.run(int) == 0
    thread.close()


async def test_a_closed_thread_ends_and_rejects_jobs(thread: JobThread) -> None:
    """The jobs before the end still run."""
    last = thread.run(threading.current_thread)
    thread.close()
    worker = await last
    await asyncio.to_thread(worker.join, 10)
    assert not worker.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(int)
