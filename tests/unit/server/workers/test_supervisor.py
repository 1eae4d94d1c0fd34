"""How the supervisor leads its workers, where these say what a test wants."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from idalloc_server.config import Settings
from idalloc_server.domain.errors import (
    InvalidRequest,
    PrefixInUse,
    Refusal,
    StartRefused,
    StoreUnavailable,
    WorkerFailed,
)
from idalloc_server.node_settings import NodeSettingsFile
from idalloc_server.workers import supervisor
from idalloc_server.workers.pipe import decode_error, encode_error
from idalloc_server.workers.supervisor import Supervisor
from idalloc_server.workers.worker_process import WorkerProcess
from tests.support.fake_workers import SECONDS, FakeWorker, FakeWorkers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux only")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    fakes = FakeWorkers()
    monkeypatch.setattr(WorkerProcess, "start", fakes.start)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.0)
    return fakes


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> str:
    """A store_timeout by which a worker that says nothing hangs after about two seconds."""
    monkeypatch.setattr(supervisor, "ANSWER_SECONDS", 2.0)
    return "10ms"


@asynccontextmanager
async def supervised(
    workers: FakeWorkers, persisted: NodeSettingsFile | None = None, store_timeout: str = "40s"
) -> AsyncIterator["asyncio.Task[int]"]:
    settings = Settings.model_validate(
        {"listen": "127.0.0.1:0", "workers": 2, "node_prefix": 3, "store_timeout": store_timeout}
    )
    running = asyncio.create_task(Supervisor(settings, persisted or NodeSettingsFile(None, "127.0.0.1:0")).run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.sleep(0)
        for worker in workers.all:
            await worker.end()
        with suppress(asyncio.CancelledError, StartRefused, StoreUnavailable):
            await asyncio.wait_for(running, SECONDS)


async def both_serve(workers: FakeWorkers) -> tuple[FakeWorker, FakeWorker]:
    one, other = await workers.next(), await workers.next()
    await asyncio.gather(one.serve(), other.serve())
    return one, other


class TestStarting:
    async def test_health_waits_for_the_last_worker(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await workers.next(), await workers.next()
            await one.hears("start")
            one.pipe.tell("serves", welcome="here")
            first = asyncio.create_task(one.pipe.hear())
            settings = (await other.hears("start"))["settings"]
            assert settings["listen"] != "127.0.0.1:0"
            assert (await asyncio.wait({first}, timeout=0.05))[0] == set()
            other.pipe.tell("serves", welcome="here")
            assert (await asyncio.wait_for(first, SECONDS)) == {"what": "serve"}

    @pytest.mark.parametrize("error", [StartRefused("store", "is none"), StoreUnavailable("it is away")])
    async def test_a_worker_that_cannot_start_ends_the_server(
        self, workers: FakeWorkers, error: StartRefused | StoreUnavailable
    ) -> None:
        async with supervised(workers) as running:
            one, other = await workers.next(), await workers.next()
            one.pipe.tell("serves", welcome="here")
            other.pipe.tell("failed", error=encode_error(error))
            with pytest.raises(type(error), match=str(error)):
                await asyncio.wait_for(running, SECONDS)
            assert one.ended.is_set()  # and killed, since it did not serve yet

    async def test_a_worker_that_dies_at_the_start_ends_the_server(self, workers: FakeWorkers) -> None:
        async with supervised(workers) as running:
            one, other = await workers.next(), await workers.next()
            one.pipe.tell("serves", welcome="here")
            await other.end()
            with pytest.raises(StartRefused, match="workers: "):
                await asyncio.wait_for(running, SECONDS)

    async def test_a_worker_that_dies_before_health_turns_ends_the_server(self, workers: FakeWorkers) -> None:
        async with supervised(workers) as running:
            one, other = await workers.next(), await workers.next()
            for worker in (one, other):
                await worker.hears("start")
                worker.pipe.tell("serves", welcome="here")
            await one.hears("serve")
            one.pipe.tell("joined")
            await other.end()
            await one.hears("stop")
            await one.end()
            with pytest.raises(StartRefused, match="workers: "):
                await asyncio.wait_for(running, SECONDS)

    async def test_a_worker_that_hangs_at_the_start_ends_the_server(self, workers: FakeWorkers, soon: str) -> None:
        async with supervised(workers, store_timeout=soon) as running:
            one, _ = await workers.next(), await workers.next()
            one.pipe.tell("serves", welcome="here")
            with pytest.raises(StartRefused, match="workers: "):
                await asyncio.wait_for(running, SECONDS)

    async def test_a_change_waits_until_all_serve(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await workers.next(), await workers.next()
            one.asks("change", given={"offset": 5}, persist=False)  # it answers calls already
            await asyncio.gather(one.serve(), other.serve())
            changes = await asyncio.gather(one.change("ready"), other.change("ready"))
            assert [agreed for _, agreed in changes] == [True, True]


class TestReplacing:
    async def test_a_replacement_that_cannot_start_is_tried_again(self, workers: FakeWorkers) -> None:
        async with supervised(workers) as running:
            one, _ = await both_serve(workers)
            await one.end()
            for error in (StoreUnavailable("it is away"), StartRefused("node_prefix", "in use")):
                late = await workers.next()
                late.pipe.tell("failed", error=encode_error(error))
                await late.end()
            await (await workers.next()).serve()
            assert not running.done()

    async def test_where_no_process_can_be_made_pauses_grow(
        self, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "STEADY_SECONDS", 0.0)  # as if it had served for long
        monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.1)
        async with supervised(workers):
            one, _ = await both_serve(workers)
            workers.refused = [BlockingIOError("no process left") for _ in range(4)]
            clock = asyncio.get_running_loop().time
            began = clock()
            with capture_logs() as logs:
                await one.end()
                await (await workers.next()).serve()
            assert workers.tries == 2 + 4 + 1
            assert clock() - began > 0.1 + 0.2 + 0.4 + 0.8 - 0.1
            assert [line["event"] for line in logs].count("worker_ended") == 1
            assert [line["error"] for line in logs if line["event"] == "worker_not_started"] == ["no process left"] * 4

    async def test_one_that_never_served_is_not_replaced_at_once(
        self, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "STEADY_SECONDS", 0.0)
        monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.1)
        async with supervised(workers):
            one, _ = await both_serve(workers)
            with capture_logs() as logs:
                await one.end()
                for _ in range(3):
                    late = await workers.next()
                    late.pipe.tell("failed", error=encode_error(StoreUnavailable("it is away")))
                    await late.end()
                await workers.next()
            assert [line["restart_in"] for line in logs if line["event"] == "worker_ended"] == [0.0, 0.1, 0.2, 0.4]

    async def test_one_that_hangs_while_it_starts_is_replaced(self, workers: FakeWorkers, soon: str) -> None:
        async with supervised(workers, store_timeout=soon):
            one, other = await both_serve(workers)
            await one.end()
            hung = await workers.next()
            await hung.hears("start")
            other.asks("change", given={"offset": 5}, persist=False)
            assert (await other.change("ready"))[1] is True
            assert hung.ended.is_set()
            assert (await (await workers.next()).serve())["auto_increment_offset"] == 5


class TestAsking:
    async def test_what_one_worker_asks_all_ask_and_those_that_come_later(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await both_serve(workers)
            assert (one.must_ask, other.must_ask) == (False, False)
            await one.end()
            late = await workers.next()
            assert (await late.hears("start"))["asks"] is False
            other.pipe.tell("asks")
            await late.hears("asks")  # also one that is just being started
            await other.hears("asks")
            await late.end()
            later = await workers.next()
            await later.serve()
            assert later.must_ask

    async def test_it_is_passed_on_once(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await both_serve(workers)
            one.pipe.tell("asks")
            await other.hears("asks")
            other.pipe.tell("asks")
            other.asks("lease_count")
            await other.answered()
            await one.hears("asks")
            one.asks("lease_count")
            await one.answered()


class TestChanging:
    async def test_all_are_asked_before_any_goes_over(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await both_serve(workers)
            one.asks("change", given={"prefix": 9}, persist=False)
            slow = await other.hears("change")
            fast = asyncio.create_task(one.change("ready"))
            assert (await asyncio.wait({fast}, timeout=0.05))[0] == set()
            other.pipe.tell("ready")
            assert (await other.hears("decide"))["agreed"] is True
            other.pipe.tell("changed")
            assert await asyncio.wait_for(fast, SECONDS) == (slow, True) == ({"what": "change", "prefix": 9}, True)
            assert (await one.answered())["error"] is None

    async def test_one_that_cannot_is_answered_with_and_holds_back_the_other(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await both_serve(workers)
            one.asks("change", given={"prefix": 9}, persist=False)
            refused = encode_error(PrefixInUse(9, "there:1"))
            (_, agreed), _ = await asyncio.gather(one.change("ready"), other.change("refused", error=refused))
            assert agreed is False
            error = decode_error((await one.answered())["error"])
            assert isinstance(error, PrefixInUse)
            await other.end()
            assert (await (await workers.next()).serve())["node_prefix"] == 3

    async def test_one_that_dies_holds_back_nobody_and_comes_back_changed(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await both_serve(workers)
            one.asks("change", given={"prefix": 9, "increment": 5}, persist=False)
            await other.hears("change")
            await other.end()
            assert (await one.change("ready"))[1] is True
            assert (await one.answered())["error"] is None
            settings = await (await workers.next()).serve()
            assert (settings["node_prefix"], settings["auto_increment_increment"]) == (9, 5)

    async def test_one_that_hangs_is_replaced_and_nothing_is_changed(self, workers: FakeWorkers, soon: str) -> None:
        async with supervised(workers, store_timeout=soon):
            one, other = await both_serve(workers)
            one.asks("change", given={"prefix": 9}, persist=False)
            assert (await one.change("ready"))[1] is False
            error = decode_error((await one.answered())["error"])
            assert isinstance(error, WorkerFailed)
            assert "worker 2 did not answer" in str(error)
            assert other.ended.is_set()
            assert (await (await workers.next()).serve())["node_prefix"] == 3

    async def test_one_that_hangs_once_it_was_decided_comes_back_changed(self, workers: FakeWorkers, soon: str) -> None:
        async with supervised(workers, store_timeout=soon):
            one, other = await both_serve(workers)
            one.asks("change", given={"prefix": 9}, persist=False)
            await other.hears("change")
            other.pipe.tell("ready")
            assert (await one.change("ready"))[1] is True
            assert (await one.answered())["error"] is None
            assert other.ended.is_set()
            assert (await (await workers.next()).serve())["node_prefix"] == 9

    async def test_it_is_kept_once_all_are_ready(self, workers: FakeWorkers, tmp_path: Path) -> None:
        persisted = NodeSettingsFile(tmp_path, "127.0.0.1:50051")
        async with supervised(workers, persisted):
            one, other = await both_serve(workers)
            one.asks("change", given={"offset": 9}, persist=True)
            await other.hears("change")
            assert persisted.read() == {}
            other.pipe.tell("ready")
            assert (await one.change("ready"))[1] is True
            assert persisted.read() == {"auto_increment_offset": 9}

    @pytest.mark.parametrize("fail", ["check", "save"])
    async def test_what_cannot_be_kept_is_not_changed(
        self, workers: FakeWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str
    ) -> None:
        persisted = NodeSettingsFile(tmp_path, "127.0.0.1:50051")
        monkeypatch.setattr(persisted, fail, failing(InvalidRequest("persist", "the disk is full"), fail == "save"))
        async with supervised(workers, persisted):
            one, other = await both_serve(workers)
            one.asks("change", given={"prefix": 9}, persist=True)
            if fail == "save":
                decided = await asyncio.gather(one.change("ready"), other.change("ready"))
                assert [agreed for _, agreed in decided] == [False, False]
            error = decode_error((await one.answered())["error"])
            assert isinstance(error, InvalidRequest)
            assert error.field == "persist"


class TestStopping:
    @pytest.mark.parametrize("ends", [True, False])
    async def test_the_exit_code_says_whether_one_had_to_be_killed(
        self, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch, ends: bool
    ) -> None:
        monkeypatch.setattr(supervisor, "END_SECONDS", SECONDS if ends else 1.0)
        settings = Settings.model_validate({"listen": "127.0.0.1:0", "workers": 2, "drain_timeout": "0s"})
        server = Supervisor(settings, NodeSettingsFile(None, "127.0.0.1:0"))
        running = asyncio.create_task(server.run())
        one, other = await both_serve(workers)
        with capture_logs() as logs:
            server._signalled(signal.SIGTERM)
            for worker in (one, other):
                await worker.hears("stop")
            one.pipe.tell("closed")
            one.pipe.tell("drained")
            if ends:
                other.pipe.tell("closed")
                for worker in (one, other):
                    await worker.hears("refuse")
                other.pipe.tell("drained")
                for worker in (one, other):
                    await worker.hears("end")
                    await worker.end()
            assert await asyncio.wait_for(running, SECONDS) == (0 if ends else 1)
        killed = [(line["workers"], line["exit_code"]) for line in logs if line["event"] == "killed"]
        assert killed == ([] if ends else [([1, 2], 1)])
        assert one.ended.is_set()
        assert other.ended.is_set()

    async def test_calls_are_refused_once_all_workers_closed(self, workers: FakeWorkers) -> None:
        """No caller is sent from a worker that closed to one that is about to."""
        settings = Settings.model_validate({"listen": "127.0.0.1:0", "workers": 2})
        server = Supervisor(settings, NodeSettingsFile(None, "127.0.0.1:0"))
        running = asyncio.create_task(server.run())
        one, other = await both_serve(workers)
        server._signalled(signal.SIGTERM)
        for worker in (one, other):
            await worker.hears("stop")
        one.pipe.tell("closed")
        one.asks("lease_count")
        await one.answered()  # and no "refuse" before it
        await other.end()
        await one.hears("refuse")
        one.pipe.tell("drained")
        await one.hears("end")
        await one.end()
        assert await asyncio.wait_for(running, SECONDS) == 0


class TestCounting:
    async def test_leases_of_the_others(self, workers: FakeWorkers) -> None:
        async with supervised(workers):
            one, other = await both_serve(workers)
            for worker, lease_count in ((one, 1), (other, 4)):
                worker.pipe.tell("counts", counts={"methods": {}, "burned": {}, "lease_count": lease_count})
                worker.asks("lease_count")
                await worker.answered()  # so it was heard
            for worker, others in ((one, 4), (other, 1)):
                worker.asks("lease_count")
                assert (await worker.answered())["lease_count"] == others


def failing(error: Refusal, awaited: bool) -> Callable[[object], Any]:
    def fail(_: object) -> None:
        raise error

    async def fail_later(_: object) -> None:
        raise error

    return fail_later if awaited else fail
