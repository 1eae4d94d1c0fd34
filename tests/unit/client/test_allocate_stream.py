"""``allocate_stream`` of both clients."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

import idalloc
import idalloc.aio
from idalloc._core import pipeline, resumption
from idalloc._core.defaults import DEFAULT_TIMEOUT
from idalloc._issued_log.log import IssuedLog
from idalloc._sync import allocate_stream
from tests.support import issued_log
from tests.support.fake_server import FakeServer, status_of
from tests.support.waiting import until, wait_until

# What a caller does with the stream of either client.
Ask = Callable[[Any], Any]
# Runs callers at the same time, and returns the result or the error of each.
Run = Callable[..., list[Any]]


def by_threads(target: str, *asks: Ask, **options: Any) -> list[Any]:
    def result(ask: Ask) -> Any:
        try:
            return ask(stream)
        except Exception as error:
            return error

    with (
        ThreadPoolExecutor(len(asks)) as threads,
        idalloc.Client(target, **options) as client,
        client.allocate_stream() as stream,
    ):
        return list(threads.map(result, asks))


def by_asyncio(target: str, *asks: Ask, **options: Any) -> list[Any]:
    async def run() -> list[Any]:
        async with idalloc.aio.Client(target, **options) as client, client.allocate_stream() as stream:
            return await asyncio.gather(*(ask(stream) for ask in asks), return_exceptions=True)

    return asyncio.run(run())


both = pytest.mark.parametrize("run", [by_threads, by_asyncio])


def orders(stream: Any) -> Any:
    return stream.allocate_range("orders", 2)


@both
def test_each_caller_gets_its_own_ids(server: FakeServer, run: Run) -> None:
    """P1: concurrent callers share one stream, and each gets the answer to its own request."""
    asks = [lambda stream, n=n: stream.allocate_range(f"s{n % 3}", n) for n in range(1, 91)]
    results = run(server.target, *asks)
    assert [len(each) for each in results] == list(range(1, 91))
    for name in range(3):
        ids = [one for n, each in enumerate(results, 1) if n % 3 == name for one in each]
        assert sorted(ids) == list(range(1, len(ids) + 1))
    assert len(server.requests["AllocateStream"]) == 1
    sent = server.requests["AllocateStream of one"]
    assert [each.number for each in sent] == list(range(1, 91))
    assert all(0 < DEFAULT_TIMEOUT - each.timeout.ToTimedelta().total_seconds() < 5 for each in sent)


@both
def test_a_stream_has_all_forms_of_ids(server: FakeServer, run: Run) -> None:
    """Texts, request ids and document ids are those of the unary calls."""
    request_id = "11111111-aaaa-4111-8111-111111111111"
    texts, doc_ids, *repeated = run(
        server.target,
        lambda stream: stream.allocate_range("invoices", 2, texts=True),
        lambda stream: stream.doc_ids(3),
        *[lambda stream: stream.allocate_range("orders", 5, request_id=request_id)] * 2,
    )
    assert texts.texts == ("T-0001", "T-0002")
    assert doc_ids == [f"00076553f100{n:016x}" for n in (1, 2, 3)]
    assert [list(each) for each in repeated] == [[1, 2, 3, 4, 5]] * 2


@both
def test_a_broken_stream_is_opened_again(server: FakeServer, run: Run) -> None:
    """When a server drains, the requests without an answer are sent over a new stream."""
    server.break_after = 3
    results = run(server.target, *[orders] * 8)
    assert sorted(one for each in results for one in each) == list(range(1, 17))
    assert len(server.requests["AllocateStream"]) == 2


@both
def test_a_stream_that_is_reset_is_opened_again(server: FakeServer, run: Run) -> None:
    """A proxy may reset a stream that was silent for long: its requests are sent again."""
    server.break_after, server.resets = 3, True
    results = run(server.target, *[orders] * 8)
    assert sorted(one for each in results for one in each) == list(range(1, 17))
    assert len(server.requests["AllocateStream"]) == 2


@both
def test_an_error_belongs_to_its_request(server: FakeServer, run: Run) -> None:
    """A request that fails has its exception, with all details; the others have their ranges."""
    exhausted = status_of("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE, remaining=3, largest_range=2)
    server.answers["short"] = [exhausted]
    short, other = run(server.target, lambda stream: stream.allocate_range("short", 5), orders)
    assert isinstance(short, idalloc.SequenceExhausted)
    assert (short.remaining, str(short)) == (3, "SEQUENCE_EXHAUSTED")
    assert list(other) == [1, 2]


@both
def test_an_unavailable_store_is_asked_again(server: FakeServer, run: Run) -> None:
    """As a unary call, a request has up to five attempts while the store is unavailable."""
    busy = status_of("STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, retry_after=0.01)
    server.answers["orders"] = [busy] * (pipeline.MAX_ROUNDS - 1)
    server.answers["lines"] = [busy] * pipeline.MAX_ROUNDS
    served, failed = run(server.target, orders, lambda stream: stream.allocate_range("lines"))
    assert list(served) == [1, 2]
    assert isinstance(failed, idalloc.StoreUnavailable)


@both
def test_an_older_server_is_named(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without AllocateStream is an error that says so."""
    # Some of the first answers are a reset: the server has not read the request that came with it.
    server.fail_next("AllocateStream", "", grpc.StatusCode.UNIMPLEMENTED, times=100)
    [error] = run(server.target, orders)
    assert isinstance(error, idalloc.IdallocError)
    assert "does not implement this method: upgrade its idalloc" in str(error)
    assert len(server.requests["AllocateStream"]) < 10


@both
def test_a_rejected_caller_is_not_retried(server: FakeServer, run: Run) -> None:
    """A stream without a valid token fails with UNAUTHENTICATED, for all its callers."""
    server.tokens = {"secret"}
    results = run(server.target, orders, orders)
    assert [type(each) for each in results] == [idalloc.Unauthenticated] * 2


@both
def test_an_answer_to_another_request_is_rejected(server: FakeServer, run: Run) -> None:
    """P1: an answer under a wrong number gives its ids to nobody."""
    server.wrong_number = 1
    results = run(server.target, orders, orders)
    assert [type(each) for each in results] == [idalloc.ProtocolError] * 2
    assert "number is 2; expected 1" in str(results[0])


@both
def test_a_wrong_range_is_rejected(server: FakeServer, run: Run) -> None:
    """A reply that violates the contract is an error for its caller, who gets none of its ids."""
    server.step = 0
    [error] = run(server.target, orders)
    assert isinstance(error, idalloc.ProtocolError)
    assert "range.step is 0" in str(error)


@both
def test_a_caller_waits_for_the_timeout_of_its_client(server: FakeServer, run: Run) -> None:
    """A caller waits no longer than the client's timeout."""
    server.hold.clear()
    [error] = run(server.target, orders, timeout=0.2)
    server.hold.set()
    assert isinstance(error, idalloc.DeadlineExceeded)
    assert "within 0.2 s" in str(error)


@both
def test_a_late_answer_names_the_last_failure(server: FakeServer, run: Run) -> None:
    """If the time ends before the stream gives up, the error says why there was no answer."""
    server.fail_next("AllocateStream", "SERVER_DRAINING", grpc.StatusCode.UNAVAILABLE, times=9)
    [error] = run(server.target, orders, timeout=1.5)
    assert isinstance(error, idalloc.DeadlineExceeded)
    assert str(error) == f"no answer from {server.target} within 1.5 s; the last attempt: SERVER_DRAINING it is"


@both
def test_each_answer_is_logged_once(server: FakeServer, run: Run, tmp_path: Path) -> None:
    """Each range and each run of document ids that a caller gets is one record, also if the stream
    breaks meanwhile; an error is none.
    """
    file = tmp_path / "ids.jsonl"
    server.break_after = 3
    server.answers["short"] = [status_of("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE)]
    once = "c0ffee00-1234-4000-8000-000000000001"
    *ranges, doc_ids, error = run(
        server.target,
        *[orders] * 8,
        lambda stream: stream.allocate_range("once", 5, request_id=once),
        lambda stream: stream.doc_ids(3),
        lambda stream: stream.allocate_range("short"),
        log=file,
    )
    assert isinstance(error, idalloc.SequenceExhausted)
    records = issued_log.read(file).records
    logged = [list(each.ids) for each in records if not each.doc_ids]
    assert sorted(logged) == sorted(map(list, ranges))
    assert [each.texts for each in records if each.doc_ids] == [doc_ids]
    assert [each.request for each in records if each.request] == [issued_log.request_number(once)]
    assert all(0 < each.asked <= each.answered for each in records)


@both
def test_ids_that_cannot_be_logged_are_not_returned(
    server: FakeServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the log cannot be written, callers get its error and no ids."""

    def fail(*_: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr(IssuedLog, "reply", fail)
    results = run(server.target, orders, lambda stream: stream.doc_ids(3), log=tmp_path / "ids.log")
    assert [type(each) for each in results] == [OSError] * 2


def test_an_answered_request_is_not_sent_again(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that breaks before a caller has taken its answer asks only for the others again."""
    may_go = threading.Event()

    class Slow(SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            item = super().get(block, timeout)
            assert timeout is None or may_go.wait(20)  # a caller has a timeout
            return item

    monkeypatch.setattr(allocate_stream, "SimpleQueue", Slow)
    server.break_after = 1
    with (
        ThreadPoolExecutor(2) as threads,
        idalloc.Client(server.target) as client,
        client.allocate_stream() as stream,
    ):
        results = [threads.submit(orders, stream) for _ in range(2)]
        wait_until(lambda: [each.is_answered for each in list(stream._waiting)] == [True] * 2)
        may_go.set()
        assert sorted(list(each.result(20)) for each in results) == [[1, 2], [3, 4]]
    assert len(server.requests["AllocateStream of one"]) == 2


def test_a_cancelled_caller_does_not_stop_others(server: FakeServer) -> None:
    """The answer to a cancelled caller is discarded; the next caller gets the next one."""

    async def run() -> list[int]:
        async with idalloc.aio.Client(server.target) as client, client.allocate_stream() as stream:
            server.hold.clear()
            first, second = (asyncio.ensure_future(orders(stream)) for _ in range(2))
            await until(lambda: len(stream._waiting) == 2)
            first.cancel()
            server.hold.set()
            return list(await second)

    assert asyncio.run(run())[0] in (1, 3)


@pytest.mark.parametrize("of_client", [True, False], ids=["client", "stream"])
def test_close_ends_waiting_calls(server: FakeServer, of_client: bool) -> None:
    """A call that waits when the stream or its client is closed fails, and so do later ones."""
    with idalloc.Client(server.target) as client, client.allocate_stream() as stream:
        server.hold.clear()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(orders, stream)
            wait_until(lambda: stream._waiting)
            (client if of_client else stream).close()
            with pytest.raises(RuntimeError, match="closed"):
                waiting.result(20)
        with pytest.raises(RuntimeError, match="closed"):
            orders(stream)


def test_a_stream_that_is_closed_opens_no_other(server: FakeServer) -> None:
    """If a stream is closed while it waits to be opened again, it is not."""
    server.fail_next("AllocateStream", "SERVER_DRAINING", grpc.StatusCode.UNAVAILABLE, retry_after=0.3)
    with idalloc.Client(server.target) as client, ThreadPoolExecutor(1) as threads:
        stream = client.allocate_stream()
        waiting = threads.submit(orders, stream)
        wait_until(lambda: server.requests["AllocateStream"])
        stream.close()
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(20)
        wait_until(lambda: stream._thread is None, "the stream's thread ends")


def test_callers_that_leave_do_not_fill_the_stream(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request stays in flight until its answer; one whose caller has left before is not sent."""
    monkeypatch.setattr("idalloc._sync.allocate_stream.MAX_IN_FLIGHT", 2)
    with idalloc.Client(server.target, timeout=0.2) as client, client.allocate_stream() as stream:
        server.hold.clear()
        for _ in range(5):
            with pytest.raises(idalloc.DeadlineExceeded):
                orders(stream)
        server.hold.set()
        assert list(orders(stream)) == [5, 6]
    assert len(server.requests["AllocateStream of one"]) == 3


def test_tasks_that_leave_do_not_fill_the_stream(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the asyncio client."""
    monkeypatch.setattr("idalloc.aio._allocate_stream.MAX_IN_FLIGHT", 2)

    async def run() -> list[int]:
        async with idalloc.aio.Client(server.target, timeout=0.2) as client, client.allocate_stream() as stream:
            server.hold.clear()
            for _ in range(5):
                with pytest.raises(idalloc.DeadlineExceeded):
                    await orders(stream)
            server.hold.set()
            return list(await orders(stream))

    assert asyncio.run(run()) == [5, 6]
    assert len(server.requests["AllocateStream of one"]) == 3


def interrupt_main(stream: Any) -> None:
    """Send SIGINT to the main thread once a call waits, as Ctrl-C does."""
    wait_until(lambda: stream._waiting)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_an_interrupted_call_leaves_the_stream_usable(server: FakeServer) -> None:
    """Ctrl-C in a call that waits raises at once; the next call gets other ids."""
    with idalloc.Client(server.target) as client, client.allocate_stream() as stream:
        server.hold.clear()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(interrupt_main, stream)
            with pytest.raises(KeyboardInterrupt):
                orders(stream)
        server.hold.set()
        first = orders(stream)[0]
    assert first == 2 * len(server.requests["AllocateStream of one"]) - 1  # the interrupted one may not have been sent


def test_an_interrupted_program_ends(server: FakeServer) -> None:
    """Ctrl-C in a call that waits ends a program that closes neither stream nor client."""
    server.hold.clear()
    script = (
        "import sys, threading, idalloc\n"
        "from tests.unit.client.test_allocate_stream import interrupt_main, orders\n"
        "stream = idalloc.Client(sys.argv[1]).allocate_stream()\n"
        "threading.Thread(target=interrupt_main, args=(stream,)).start()\n"
        "orders(stream)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, server.target], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


@both
def test_a_quota_is_an_error_at_once(server: FakeServer, run: Run) -> None:
    """As a unary call, a request is not repeated after QUOTA_EXCEEDED, nor after a long delay."""
    quota = status_of("QUOTA_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=0.01, subject="identity:x")
    later = status_of("SEQUENCE_AHEAD_OF_CLOCK", grpc.StatusCode.UNAVAILABLE, retry_after=7)
    server.answers["orders"], server.answers["ticks"] = [quota], [later]
    results = run(server.target, orders, lambda stream: stream.allocate_range("ticks"))
    assert [type(each) for each in results] == [idalloc.QuotaExceeded, idalloc.SequenceAheadOfClock]


@both
def test_a_full_stream_is_asked_until_it_has_room(server: FakeServer, run: Run) -> None:
    """A request that the stream's limit of ids rejects is repeated, however often."""
    full = status_of("QUOTA_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=0.01, subject="stream")
    server.answers["orders"] = [full] * (2 * pipeline.MAX_ROUNDS)
    [served] = run(server.target, orders)
    assert list(served) == [1, 2]


@both
def test_a_timeout_may_be_infinite(server: FakeServer, run: Run) -> None:
    """A client without a limit of time sends the longest timeout."""
    [served] = run(server.target, orders, timeout=float("inf"))
    assert list(served) == [1, 2]


def test_after_an_outage_breaks_are_retried_again(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts during an outage do not count for the calls after it."""
    monkeypatch.setattr(resumption, "INITIAL_BACKOFF", 0.001)

    async def run() -> None:
        async with idalloc.aio.Client(server.target) as client, client.allocate_stream() as stream:
            server.fail_next("AllocateStream", "", grpc.StatusCode.UNAVAILABLE, times=resumption.MAX_FIRST_ATTEMPTS)
            with pytest.raises(idalloc.Unavailable):
                await orders(stream)
            server.fail_next("AllocateStream", "SERVER_DRAINING", grpc.StatusCode.UNAVAILABLE, retry_after=0.01)
            assert list(await orders(stream)) == [1, 2]

    asyncio.run(run())


def test_a_broken_stream_leaves_no_task(server: FakeServer) -> None:
    """gRPC's task that writes the requests of a broken stream ends."""

    async def run() -> None:
        async with idalloc.aio.Client(server.target) as client, client.allocate_stream() as stream:
            await orders(stream)
            one_stream = len(asyncio.all_tasks())
            for _ in range(3):
                server.break_after = 1
                await asyncio.gather(orders(stream), orders(stream))
            await until(lambda: len(asyncio.all_tasks()) <= one_stream)

    asyncio.run(run())


def test_a_stream_belongs_to_one_event_loop(server: FakeServer) -> None:
    """A request in a second event loop raises RuntimeError at once, as a unary call does."""
    client = idalloc.aio.Client(server.target)
    stream = client.allocate_stream()

    async def ask() -> None:
        await orders(stream)

    asyncio.run(ask())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(ask())


def test_a_stream_whose_channel_is_reset_can_be_closed(server: FakeServer) -> None:
    """``close`` does not fail if the stream ends meanwhile."""
    with idalloc.Client(server.target) as client, client.allocate_stream() as stream:
        orders(stream)

        class Reset(tuple[Any, Any]):
            def __getitem__(self, index: Any) -> Any:
                stream._channel = None
                return super().__getitem__(index)

        assert stream._channel is not None
        stream._channel = Reset(stream._channel)
        stream.close()
