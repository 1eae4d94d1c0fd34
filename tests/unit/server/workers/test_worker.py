"""A worker, with a test in place of its supervisor."""

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain import change_events
from idalloc_server.domain.change_events import ChangedSettings
from idalloc_server.domain.document_ids.generator import DocIdGenerator
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
        self.begun: asyncio.Queue[dict[str, Any]] = asyncio.Queue()  # changes of the worker, with their settings
        self._failures: asyncio.Queue[None] = asyncio.Queue()
        self._settings = {"prefix": 3, "auto_increment_offset": 1, "auto_increment_increment": 1}

    async def make_ready(self) -> None:
        """Let the worker report that it is ready; it waits for the others."""
        self.doc_ids = DocIdGenerator(self._start_timestamps, await self._start_timestamps.start())
        change = self.doc_ids.change

        async def counted(**settings: Any) -> None:
            self.begun.put_nowait(settings)
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

    async def number(self, revision: int, *, others: int = 0, refused: str = "") -> dict[str, Any]:
        """Answer the worker's next question as the supervisor does; return what it asked for."""
        asked = await self.expect(messages.Asked)
        assert asked.question == "change"
        arguments = dict(asked.arguments)
        if not refused:
            self.send_settings(revision, others=others, **arguments["given"])
        self.pipe.send(messages.Answered(asked.number, "", refused))
        return arguments

    def send_settings(self, revision: int, *, others: int = 0, own: int | None = None, **settings: int) -> None:
        """Send settings of the node, and what this worker and the other have applied."""
        self._settings |= settings
        own = revision if own is None else own
        self.pipe.send(messages.NodeState(revision, self._settings, [own, others]))

    async def wait_failures(self, times: int) -> None:
        """Wait until the worker has failed this often to reach the store for a change."""
        async with asyncio.timeout(10):
            for _ in range(times):
                await self._failures.get()


async def _forever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    monkeypatch.setattr(worker_module, "CHANGE_PAUSE_SECONDS", 0.01)
    one, other = socket.socketpair()
    pipe, ours = await Pipe.over(one), await Pipe.over(other)
    settings, node_settings = dict(Settings(workers=2)), NodeSettingsFile(tmp_path, LISTEN).arguments
    pipe.send(messages.Start(1, settings, node_settings, requires_authentication=False, store=None))
    pipe.send(messages.NodeState(0, {}, [0, 0]))
    start = await ours.receive()
    assert isinstance(start, messages.Start)
    await ours.receive()
    worker = Worker(ours, start)
    serving = asyncio.create_task(_forever())
    tasks = {serving, *map(asyncio.create_task, (worker.receive_until_orphaned(serving), worker.apply_changes()))}
    yield Supervisor(pipe, worker, serving, MemoryStore(FakeClock()))
    for task in tasks:
        task.cancel()
    await pipe.close()
    await ours.close()


class TestChanging:
    async def test_change_waits_for_all_workers(self, supervisor: Supervisor) -> None:
        """A change is made once it is numbered, and returns when the others have applied it."""
        await supervisor.serve()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=True, timeout=None))
        asked = await supervisor.expect(messages.Asked)
        assert asked.arguments == {"given": {"prefix": 9}, "persist": True}
        assert supervisor.doc_ids.prefix == 3
        supervisor.send_settings(4, prefix=9)
        supervisor.pipe.send(messages.Answered(asked.number, "", ""))
        assert await supervisor.expect(messages.Applied) == messages.Applied(4)
        assert supervisor.doc_ids.prefix == 9
        assert len(supervisor.store.calls_of("claim_start")) == 2
        assert not change.done()
        supervisor.send_settings(4, others=4)
        await change

    async def test_change_during_the_start_waits_for_it(self, supervisor: Supervisor) -> None:
        """A change that a worker gets before all serve is made when they do."""
        await supervisor.make_ready()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=False, timeout=None))
        await asyncio.sleep(0)
        supervisor.pipe.send(messages.Serve())
        await supervisor.number(1, others=1)
        await change

    async def test_deadline_says_how_many_have_applied(self, supervisor: Supervisor) -> None:
        """At its deadline a change fails with the number of workers that applied it; it goes on."""
        await supervisor.serve()
        early = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=False, timeout=0.0))
        with pytest.raises(ChangePending, match="0 of 2 workers have applied the change; it may still be applied"):
            await early
        await supervisor.number(1)
        await supervisor.expect(messages.Applied)
        assert supervisor.doc_ids.prefix == 9
        late = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=False, timeout=1.0))
        await supervisor.number(2)
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
                await supervisor.worker.change({"prefix": 9}, persist=False, timeout=timeout)

    @pytest.mark.parametrize("error", [InvalidRequest, PrefixInUse, StoreUnavailable, ZeroDivisionError])
    async def test_failed_claim_ends_a_change(
        self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
    ) -> None:
        """A change whose worker cannot claim is never numbered, and the next change goes on."""
        await supervisor.serve()
        given = {"prefix": 70_000 if error is InvalidRequest else 9}
        if error is PrefixInUse:
            await supervisor.store.claim_start(9, 1, "other", 30.0)
        if error is StoreUnavailable:
            supervisor.store.next("claim_start", unreachable())
        with monkeypatch.context() as patch:
            if error is ZeroDivisionError:
                patch.setattr(supervisor.doc_ids, "_change", failing)
            with pytest.raises(error):
                await supervisor.worker.change(given, persist=True, timeout=None)
        change = asyncio.create_task(supervisor.worker.change({"auto_increment_offset": 5}, persist=True, timeout=None))
        assert (await supervisor.number(1, others=1))["given"] == {"auto_increment_offset": 5}
        await change
        assert (supervisor.doc_ids.prefix, supervisor.doc_ids.offset) == (3, 5)

    async def test_change_that_cannot_be_persisted_has_no_effect(self, supervisor: Supervisor) -> None:
        """A change that the supervisor cannot write to the file is not made."""
        await supervisor.serve()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=True, timeout=None))
        await supervisor.number(1, refused="cannot read it")
        with pytest.raises(InvalidRequest, match="persist: cannot read it"):
            await change
        assert supervisor.doc_ids.prefix == 3

    async def test_cancelled_change_still_publishes_its_event(self, supervisor: Supervisor) -> None:
        """A change is made and published once even if its caller has cancelled the call."""
        await supervisor.serve()
        events: list[tuple[ChangedSettings, ChangedSettings]] = []
        with change_events.listening(lambda *change: events.append(change)):
            call = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=False, timeout=None))
        asked = await supervisor.expect(messages.Asked)
        call.cancel()
        await asyncio.wait({call})
        supervisor.send_settings(1, prefix=9)
        supervisor.pipe.send(messages.Answered(asked.number, "", ""))
        await supervisor.expect(messages.Applied)
        assert events == [({"prefix": 3}, {"prefix": 9})]

    async def test_refusal_after_the_caller_left_is_not_logged(self, supervisor: Supervisor) -> None:
        """A change that is refused after its caller left logs nothing."""
        await supervisor.serve()
        unretrieved: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
        with pytest.raises(ChangePending):
            await supervisor.worker.change({"prefix": 9}, persist=True, timeout=0.0)
        changes = supervisor.doc_ids._changes.copy()
        await supervisor.number(1, refused="cannot read it")
        await asyncio.wait(changes)
        changes.clear()
        gc.collect()
        assert unretrieved == []
        assert supervisor.doc_ids.prefix == 3

    def test_pending_change_forbids_a_retry_of_the_transport(self) -> None:
        """At its deadline a caller gets this error: a retry by gRPC's policy would hide it."""
        assert dict(status.from_refusal(ChangePending(1, 2)).trailers)[status.PUSHBACK] == "-1"

    @pytest.mark.parametrize("is_numbered", [True, False])
    async def test_exit_of_the_supervisor_ends_a_change(self, supervisor: Supervisor, is_numbered: bool) -> None:
        """A change whose supervisor exits fails with SERVER_DRAINING."""
        await supervisor.serve()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=False, timeout=None))
        if is_numbered:
            await supervisor.number(1)
        await supervisor.expect(messages.Applied if is_numbered else messages.Asked)
        await supervisor.pipe.close()
        with pytest.raises(ServerDraining):
            await change


class TestFollowing:
    async def test_worker_applies_what_another_one_changed(self, supervisor: Supervisor) -> None:
        """A worker applies the newest settings without an event, with its own start timestamp."""
        await supervisor.serve()
        events: list[object] = []
        with change_events.listening(lambda *change: events.append(change)):
            supervisor.send_settings(1, prefix=9)
            assert await supervisor.expect(messages.Applied) == messages.Applied(1)
        assert supervisor.doc_ids.prefix == 9
        assert len(supervisor.store.calls_of("claim_start")) == 2
        assert events == []

    async def test_worker_without_the_store_tries_again(self, supervisor: Supervisor) -> None:
        """P6: a worker without the store issues ids with its old settings, and tries again."""
        await supervisor.serve()
        supervisor.store.down = True
        supervisor.send_settings(1, prefix=9)
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
        supervisor.send_settings(1, prefix=9)
        await supervisor.wait_failures(1)
        supervisor.send_settings(2, prefix=10)
        assert await supervisor.expect(messages.Applied) == messages.Applied(2)
        assert supervisor.doc_ids.prefix == 10
        assert [call.arguments[0] for call in supervisor.store.calls_of("claim_start")] == [3, 9, 10]

    async def test_last_change_wins_over_an_own_one(self, supervisor: Supervisor) -> None:
        """A worker whose own change was numbered before another one ends with the last one."""
        await supervisor.serve()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=False, timeout=None))
        asked = await supervisor.expect(messages.Asked)
        supervisor.send_settings(1, prefix=9, auto_increment_offset=5)
        supervisor.send_settings(2, prefix=10, others=2)
        supervisor.pipe.send(messages.Answered(asked.number, "", ""))
        await change
        assert await supervisor.expect(messages.Applied) == messages.Applied(2)
        assert (supervisor.doc_ids.prefix, supervisor.doc_ids.offset) == (10, 5)

    async def test_answer_waits_until_an_older_change_is_over(self, supervisor: Supervisor) -> None:
        """A worker that applies an older change after its own answers once its own is back."""
        await supervisor.serve()
        change = asyncio.create_task(supervisor.worker.change({"prefix": 9}, persist=False, timeout=None))
        asked = await supervisor.expect(messages.Asked)
        supervisor.send_settings(1, prefix=10)
        while (await supervisor.begun.get()).get("prefix") != 10:
            pass  # the older one begins, and waits for the own one
        supervisor.send_settings(2, prefix=9, own=0, others=2)
        supervisor.pipe.send(messages.Answered(asked.number, "", ""))
        assert await supervisor.expect(messages.Applied) == messages.Applied(1)
        assert not change.done()
        assert await supervisor.expect(messages.Applied) == messages.Applied(2)
        supervisor.send_settings(2, own=2, others=2)
        await change
        assert supervisor.doc_ids.prefix == 9

    async def test_old_prefix_is_left_to_the_other_workers(self, supervisor: Supervisor) -> None:
        """A worker that changes the prefix does not release the old one, which others still use."""
        await supervisor.serve()
        supervisor.send_settings(1, prefix=9)
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
