"""A worker, with a test in place of its supervisor."""

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain import change_events
from idalloc_server.domain.change_events import ChangedSettings
from idalloc_server.domain.document_ids.generator import DocIdGenerator, Save
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.errors import InvalidRequest, PrefixInUse, ServerDraining, StoreUnavailable
from idalloc_server.rpc import status
from idalloc_server.settings.model import Settings
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.workers import messages
from idalloc_server.workers import worker as worker_module
from idalloc_server.workers.messages import Message
from idalloc_server.workers.pipe import Pipe
from idalloc_server.workers.worker import ChangePending, Worker
from tests.support.fake_store import FakeClock, MemoryStore, unreachable

M = TypeVar("M", bound=Message)
LISTEN = "127.0.0.1:50051"
CHANGED = {"prefix": 9, "auto_increment_offset": 1, "auto_increment_increment": 1}


class Supervisor:
    """The supervisor's end of the pipe to one of two workers, with prefix 3."""

    def __init__(self, pipe: Pipe, worker: Worker, serving: asyncio.Task[None], store: MemoryStore) -> None:
        self.pipe = pipe
        self.serving = serving
        self.worker = worker
        self.store = store
        start_timestamps = StartTimestamps(
            store, FakeClock(), prefix=3, holder="me", max_clock_skew=5, prefix_conflict="refuse", is_shared=True
        )
        self._start_timestamps = start_timestamps
        self._failures: asyncio.Queue[None] = asyncio.Queue()

    async def make_ready(self) -> None:
        """Let the worker report that it is ready; it waits for the others."""
        self.doc_ids = DocIdGenerator(self._start_timestamps, await self._start_timestamps.start())
        change = self.doc_ids.change

        async def counted(**settings: Any) -> None:
            try:
                await change(**settings)
            except StoreUnavailable:
                self._failures.put_nowait(None)
                raise

        self.doc_ids.change = counted  # type: ignore[method-assign]
        self.ready = asyncio.create_task(self.worker.wait_all_ready(self.doc_ids, AccessControl(FakeClock(), 1), {}))
        await self.expect(messages.Ready)

    async def serve(self) -> None:
        """Let the worker serve."""
        await self.make_ready()
        self.pipe.send(messages.Serve())
        await self.ready

    async def expect(self, kind: type[M]) -> M:
        """Return the next message of a type."""
        async with asyncio.timeout(10):
            while (message := await self.pipe.receive()) is not None:
                if isinstance(message, kind):
                    return message
        raise AssertionError("the worker has ended")

    async def give_turn(self, turn: int) -> None:
        """Give the worker its turn, once it asks for it."""
        await self.expect(messages.TurnWanted)
        self.pipe.send(messages.Turn(turn))
        assert (await self.expect(messages.TurnEnded)).turn == turn

    async def wait_failures(self, times: int) -> None:
        """Wait until the worker has failed this often to reach the store for a change."""
        async with asyncio.timeout(10):
            for _ in range(times):
                await self._failures.get()

    @property
    def save(self) -> Save:
        """Persist a change."""
        return self.worker.node_settings.update

    def given(self) -> object:
        """What the worker changed in its last turn, if anything."""
        ended = self.pipe.newest(messages.TurnEnded)
        return ended and ended.given


async def _forever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    monkeypatch.setattr(worker_module, "CHANGE_PAUSE_SECONDS", 0.01)
    one, other = socket.socketpair()
    pipe, ours = await Pipe.over(one), await Pipe.over(other)
    settings, node_settings = dict(Settings(workers=2)), NodeSettingsFile(tmp_path, LISTEN).arguments
    pipe.send(messages.Start(1, settings, node_settings, requires_authentication=False, store=None))
    pipe.send(messages.NodeState(0, {}, [0]))
    start = await ours.receive()
    assert isinstance(start, messages.Start)
    await ours.receive()
    worker = Worker(ours, start)
    serving = asyncio.create_task(_forever())
    tasks = {serving, *map(asyncio.create_task, (worker.receive_until_orphaned(serving), worker.apply_changes()))}
    yield Supervisor(pipe, worker, serving, MemoryStore(FakeClock()))
    for task in {*tasks, *worker.changes}:
        task.cancel()
    await pipe.close()
    await ours.close()


class TestChanging:
    async def test_change_waits_for_all_workers(self, supervisor: Supervisor) -> None:
        """A change is made in this worker first, and returns once the others have applied it."""
        await supervisor.serve()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, None, timeout=None))
        await supervisor.expect(messages.TurnWanted)
        assert supervisor.doc_ids.prefix == 3
        supervisor.pipe.send(messages.Turn(4))
        assert await supervisor.expect(messages.TurnEnded) == messages.TurnEnded(4, {"prefix": 9})
        assert supervisor.doc_ids.prefix == 9
        assert not change.done()
        supervisor.pipe.send(messages.NodeState(0, {}, [4]))
        await change

    async def test_change_during_the_start_waits_for_it(self, supervisor: Supervisor) -> None:
        """A change that a worker gets before all serve is made when they do."""
        await supervisor.make_ready()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, None, timeout=None))
        await asyncio.sleep(0)
        supervisor.pipe.send(messages.Serve())
        await supervisor.give_turn(1)
        supervisor.pipe.send(messages.NodeState(0, {}, [1]))
        await change

    async def test_deadline_says_how_many_have_applied(self, supervisor: Supervisor) -> None:
        """At its deadline a change fails with the number of workers that applied it; it goes on."""
        await supervisor.serve()
        early = asyncio.create_task(supervisor.worker.change({"prefix": 9}, None, timeout=0.0))
        with pytest.raises(ChangePending, match="0 of 2 workers"):
            await early
        await supervisor.give_turn(1)
        assert supervisor.given() == {"prefix": 9}
        late = asyncio.create_task(supervisor.worker.change({"prefix": 9}, None, timeout=1.0))
        await supervisor.give_turn(2)
        with pytest.raises(ChangePending, match="1 of 2 workers have applied") as pending:
            await late
        assert pending.value.reason == "STORE_UNAVAILABLE"

    @pytest.mark.parametrize("timeout", [None, float(sys.maxsize)], ids=["grpcio", "native"])
    async def test_change_without_a_deadline_is_bounded(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, timeout: float | None
    ) -> None:
        """A change without a deadline is answered in bounded time, on both transports."""
        monkeypatch.setattr(worker_module, "CHANGE_SECONDS", 0.0)
        await supervisor.serve()
        async with asyncio.timeout(10):
            with pytest.raises(ChangePending):
                await supervisor.worker.change({"prefix": 9}, None, timeout=timeout)

    @pytest.mark.parametrize("error", [InvalidRequest, PrefixInUse, StoreUnavailable, ZeroDivisionError])
    async def test_failure_of_the_first_worker_ends_a_change(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
    ) -> None:
        """What the first worker cannot apply has no effect, and the next change goes on."""
        await supervisor.serve()
        given = {"prefix": 70_000 if error is InvalidRequest else 9}
        if error is PrefixInUse:
            await supervisor.store.claim_start(9, 1, "other", 30.0)
        if error is StoreUnavailable:
            supervisor.store.next("claim_start", unreachable())
        with monkeypatch.context() as patch:
            if error is ZeroDivisionError:
                patch.setattr(supervisor.doc_ids, "_change", failing)
            change = asyncio.create_task(supervisor.worker.change(given, supervisor.save, timeout=None))
            await supervisor.give_turn(1)
            with pytest.raises(error):
                await change
        assert supervisor.given() is None
        assert (supervisor.doc_ids.prefix, kept(supervisor.worker)) == (3, {})
        change = asyncio.create_task(
            supervisor.worker.change({"auto_increment_offset": 5}, supervisor.save, timeout=None)
        )
        await supervisor.give_turn(2)
        assert supervisor.given() == {"auto_increment_offset": 5}
        assert kept(supervisor.worker) == {"auto_increment_offset": 5}
        supervisor.pipe.send(messages.NodeState(0, {}, [2]))
        await change

    async def test_change_that_cannot_be_persisted_has_no_effect(self, supervisor: Supervisor, tmp_path: Path) -> None:
        """A change that cannot be written to the file is not made in any worker."""
        await supervisor.serve()
        path = tmp_path / f"persisted-{LISTEN.replace(':', '-')}.json"
        path.mkdir()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, supervisor.save, timeout=None))
        await supervisor.give_turn(1)
        with pytest.raises(InvalidRequest, match="cannot read"):
            await change
        assert (supervisor.given(), supervisor.doc_ids.prefix) == (None, 3)

    async def test_cancelled_change_still_publishes_its_event(self, supervisor: Supervisor) -> None:
        """A change is made, published once and kept even if its caller has cancelled the call."""
        await supervisor.serve()
        events: list[tuple[ChangedSettings, ChangedSettings]] = []
        with change_events.listening(lambda *change: events.append(change)):
            call = asyncio.create_task(supervisor.worker.change({"prefix": 9}, None, timeout=None))
        await supervisor.expect(messages.TurnWanted)
        call.cancel()
        await asyncio.wait({call})
        supervisor.pipe.send(messages.Turn(1))
        await supervisor.expect(messages.TurnEnded)
        assert supervisor.given() == {"prefix": 9}
        assert events == [({"prefix": 3}, {"prefix": 9})]

    @pytest.mark.parametrize("refused", [True, False], ids=["refusal", "fault"])
    async def test_failure_after_the_caller_left(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, refused: bool
    ) -> None:
        """A change that fails after its caller left is only logged, and only if it is a fault."""
        await supervisor.serve()
        unretrieved: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
        if not refused:
            monkeypatch.setattr(supervisor.doc_ids, "_change", failing)
        with capture_logs() as logs:
            with pytest.raises(ChangePending, match="0 of 2 workers have applied the change; it may still be applied"):
                await supervisor.worker.change({"prefix": 70_000 if refused else 9}, None, timeout=0.0)
            change = supervisor.worker.changes.copy()
            await supervisor.give_turn(1)
            await asyncio.wait(change)
            await asyncio.sleep(0)
        change.clear()
        gc.collect()
        assert unretrieved == []
        assert [each["event"] for each in logs] == ([] if refused else ["change_failed"])

    def test_pending_change_forbids_a_retry_of_the_transport(self) -> None:
        """At its deadline a caller gets this error: a retry by gRPC's policy would hide it."""
        assert dict(status.from_refusal(ChangePending(1, 2)).trailers)[status.PUSHBACK] == "-1"

    async def test_exit_of_the_supervisor_ends_a_change(self, supervisor: Supervisor) -> None:
        """A change whose supervisor exits fails with SERVER_DRAINING."""
        await supervisor.serve()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, None, timeout=None))
        await supervisor.expect(messages.TurnWanted)
        await supervisor.pipe.close()
        with pytest.raises(ServerDraining):
            await change


class TestFollowing:
    async def test_worker_applies_what_another_one_changed(self, supervisor: Supervisor) -> None:
        """A worker applies the newest settings without an event, with its own start timestamp."""
        await supervisor.serve()
        events: list[object] = []
        with change_events.listening(lambda *change: events.append(change)):
            supervisor.pipe.send(messages.NodeState(1, CHANGED, [0]))
            assert await supervisor.expect(messages.Applied) == messages.Applied(1)
        assert supervisor.doc_ids.prefix == 9
        assert len(supervisor.store.calls_of("claim_start")) == 2
        assert events == []

    async def test_worker_without_the_store_tries_again(self, supervisor: Supervisor) -> None:
        """P6: a worker without the store issues ids with its old settings, and tries again."""
        await supervisor.serve()
        supervisor.store.down = True
        supervisor.pipe.send(messages.NodeState(1, CHANGED, [0]))
        await supervisor.wait_failures(3)
        runs = supervisor.doc_ids.issue_now(1)
        assert runs is not None
        assert runs[0].prefix == 3
        assert not supervisor.pipe.has(messages.Applied)
        supervisor.store.down = False
        assert await supervisor.expect(messages.Applied) == messages.Applied(1)
        assert supervisor.doc_ids.prefix == 9

    async def test_newer_change_supersedes_one_that_fails(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A newer change is tried at once in place of one that failed."""
        monkeypatch.setattr(worker_module, "CHANGE_PAUSE_SECONDS", 60.0)
        await supervisor.serve()
        supervisor.store.next("claim_start", unreachable())
        supervisor.pipe.send(messages.NodeState(1, CHANGED, [0]))
        await supervisor.wait_failures(1)
        supervisor.pipe.send(messages.NodeState(2, CHANGED | {"prefix": 10}, [0]))
        assert await supervisor.expect(messages.Applied) == messages.Applied(2)
        assert supervisor.doc_ids.prefix == 10
        assert [call.arguments[0] for call in supervisor.store.calls_of("claim_start")] == [3, 9, 10]

    async def test_own_change_first_applies_those_of_others(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker in its turn first applies an earlier change, and persists only its own."""
        monkeypatch.setattr(worker_module, "CHANGE_PAUSE_SECONDS", 60.0)
        await supervisor.serve()
        supervisor.store.next("claim_start", unreachable())
        supervisor.pipe.send(messages.NodeState(1, CHANGED, [0]))
        await supervisor.wait_failures(1)
        change = asyncio.create_task(
            supervisor.worker.change({"auto_increment_offset": 5}, supervisor.save, timeout=None)
        )
        await supervisor.give_turn(2)
        assert supervisor.given() == {"auto_increment_offset": 5}
        assert (supervisor.doc_ids.prefix, supervisor.doc_ids.offset) == (9, 5)
        assert kept(supervisor.worker) == {"auto_increment_offset": 5}
        supervisor.pipe.send(messages.NodeState(0, {}, [2]))
        await change

    async def test_old_prefix_is_left_to_the_other_workers(self, supervisor: Supervisor) -> None:
        """A worker that changes the prefix does not release the old one, which others still use."""
        await supervisor.serve()
        supervisor.pipe.send(messages.NodeState(1, CHANGED, [0]))
        await supervisor.expect(messages.Applied)
        assert supervisor.store.calls_of("release_prefix") == []


class TestAuthentication:
    @pytest.mark.parametrize("order", ["before", "after"])
    async def test_worker_follows_required_authentication(self, supervisor: Supervisor, order: str) -> None:
        """A worker requires authentication when the supervisor does, during its start or later."""
        worker, access_control, doc_ids = supervisor.worker, AccessControl(FakeClock(), 1, AccessPolicy()), Any
        supervisor.pipe.send(messages.Serve())
        if order == "after":
            await worker.wait_all_ready(doc_ids, access_control, {})  # type: ignore[arg-type]
            assert not access_control.requires_authentication
        supervisor.pipe.send(messages.AuthenticationRequired())
        supervisor.pipe.send(messages.Stop())  # It marks the end of the messages.
        async with asyncio.timeout(10):
            await worker.control.stop_requested.wait()
        if order == "before":
            await worker.wait_all_ready(doc_ids, access_control, {})  # type: ignore[arg-type]
        assert access_control.requires_authentication
        worker.require_authentication()
        worker.report_serving("here", "a store", 1, {})
        await supervisor.expect(messages.Serving)
        # The supervisor required authentication, so it gets no such report.
        assert not supervisor.pipe.has(messages.AuthenticationRequired)

    async def test_worker_reports_required_authentication_once(self, supervisor: Supervisor) -> None:
        """A worker reports once that it requires authentication."""
        worker, doc_ids = supervisor.worker, Any
        supervisor.pipe.send(messages.Serve())
        access_control = AccessControl(FakeClock(), 1, AccessPolicy(), requires_authentication=True)
        await worker.wait_all_ready(doc_ids, access_control, {})  # type: ignore[arg-type]
        worker.require_authentication()
        worker.report_serving("here", "a store", 1, {})
        kinds = [type(await supervisor.pipe.receive()) for _ in range(3)]
        assert kinds == [messages.AuthenticationRequired, messages.Ready, messages.Serving]


@pytest.mark.parametrize("all_stop", [True, False])
async def test_closed_worker_waits_for_all_if_all_stop(supervisor: Supervisor, all_stop: bool) -> None:
    """A closed worker waits for the others only if the whole server stops."""
    async with asyncio.timeout(10):
        if all_stop:
            supervisor.pipe.send(messages.Stop())
            await supervisor.worker.control.stop_requested.wait()
        closed = asyncio.create_task(supervisor.worker.wait_all_closed())
        await supervisor.expect(messages.Closed)
        assert closed.done() is not all_stop
        supervisor.pipe.send(messages.AllClosed())
        await closed


@pytest.mark.parametrize("exit", ["alone", "all", None])
async def test_drained_worker_exits_when_it_may(supervisor: Supervisor, exit: str | None) -> None:
    """A drained worker waits for permission to exit, or for the exit of its supervisor."""
    async with asyncio.timeout(10):
        drained = asyncio.create_task(supervisor.worker.wait_all_drained())
        await supervisor.expect(messages.Drained)
        assert not drained.done()
        if exit is None:
            await supervisor.pipe.close()
        else:
            supervisor.pipe.send(messages.Exit(with_all=exit == "all"))
        assert await drained is (exit != "alone")


async def test_orphan_that_starts_ends(supervisor: Supervisor) -> None:
    """A worker that starts ends with its supervisor."""
    await supervisor.pipe.close()
    async with asyncio.timeout(10):
        await asyncio.wait({supervisor.serving})
    assert supervisor.serving.cancelled()


async def failing(*_: object) -> None:
    raise ZeroDivisionError("of its own")


def kept(worker: Worker) -> dict[str, int]:
    return worker.node_settings.read()
