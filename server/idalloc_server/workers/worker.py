"""One of several workers: a process of its own, which the supervisor started and which ends with it.

``python -m idalloc_server.workers.worker FD`` serves as the messages on that socket say. Only the supervisor calls it.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import count
from typing import Any

import structlog

from idalloc_server import app
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.config import Settings
from idalloc_server.domain import change_events
from idalloc_server.domain.document_ids.generator import DocIdGenerator, NodeSettings
from idalloc_server.domain.errors import Refusal, ServerDraining, StartRefused, StoreFailure, WorkerFailed
from idalloc_server.rpc.node import Workers
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.workers.pipe import Message, Pipe, decode_error, encode_error

# How long calls may go on where the supervisor was killed: a new server wants the port.
ORPHAN_DRAIN_SECONDS = 2.0

_log = structlog.get_logger("idalloc.worker")


class Worker:
    """What a worker is for its server, see ``Role``, and its side of what it and its supervisor tell each other.

    Args:
        pipe: To the supervisor.
        workers: How many workers the server has.
        drain_timeout: How long running calls may go on at the end, in seconds.
        asks: Whether the server asks who calls.
    """

    shares_port = True
    # SIGHUP of a terminal that is closed reaches the supervisor, too.
    stop_signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
    node_settings: NodeSettings | None = None  # it is the supervisor who keeps settings

    def __init__(self, pipe: Pipe, workers: int, drain_timeout: float, asks: bool = False) -> None:
        self.count = workers
        self.workers: Workers | None = self
        self.stopping = asyncio.Event()
        self.reloading = asyncio.Event()
        self.drain_timeout = drain_timeout
        self.asks = asks
        self.has_joined = False
        self._pipe = pipe
        self._doc_ids: DocIdGenerator | None = None
        self._access_control: AccessControl | None = None
        self._all_serve = asyncio.Event()
        self._all_stop = False
        self._all_closed = asyncio.Event()
        self._may_end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._agreed: asyncio.Future[bool] | None = None
        self._questions: dict[int, asyncio.Future[Message]] = {}
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    async def hear(self) -> None:
        """Does what the supervisor says, until that ends."""
        while (message := await self._pipe.hear()) is not None:
            match message.pop("what"):
                case "serve":
                    self._all_serve.set()
                case "asks":
                    self.asks = True
                    if self._access_control is not None:
                        self._access_control.require_authentication()
                case "change":
                    self._begin(self._change(message))
                case "decide":
                    if self._agreed is not None and not self._agreed.done():
                        self._agreed.set_result(message["agreed"])
                case "answer":
                    question = self._questions.pop(message["number"])
                    if not question.done():  # else its caller went away
                        question.set_result(message)
                case "reload":
                    self.reloading.set()
                case "stop":
                    self._all_stop = True
                    self.stopping.set()
                case "refuse":
                    self._all_closed.set()
                case "end":
                    self._let_end(message["all"])
        self._orphaned()

    # What the server tells its supervisor.

    def take(self, listen: str) -> None:
        """See ``Role.take``: the supervisor did it for all."""

    async def join(self, doc_ids: DocIdGenerator, access_control: AccessControl, welcome: str) -> None:
        """See ``Role.join``."""
        self.has_joined = True
        self._doc_ids = doc_ids
        self._access_control = access_control
        if self.asks:  # it may have been told while it started
            access_control.require_authentication()
        if access_control.requires_authentication:
            self.ask()
        self._pipe.tell("serves", welcome=welcome)
        stopping = asyncio.create_task(self.stopping.wait())
        all_serve = asyncio.create_task(self._all_serve.wait())
        await asyncio.wait({stopping, all_serve}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        all_serve.cancel()

    def ask(self) -> None:
        """See ``Role.ask``."""
        if not self.asks:
            self.asks = True
            self._pipe.tell("asks")

    def joined(self) -> None:
        """See ``Role.joined``."""
        self._pipe.tell("joined")

    async def watch(self, counts: Callable[[], Counts]) -> None:
        """See ``Role.watch``."""
        while True:
            await asyncio.sleep(1)
            self._pipe.tell("counts", counts=counts().to_json())

    async def closed(self) -> None:
        """See ``Role.closed``: callers that this one refuses connect anew, and not to one that is about to close."""
        self._pipe.tell("closed")
        if self._all_stop:
            await self._all_closed.wait()

    async def leave(self) -> bool:
        """See ``Role.leave``."""
        self._pipe.tell("drained")
        return await self._may_end

    def left(self, counts: Counts) -> None:
        """See ``Role.left``."""
        self._pipe.tell("counts", counts=counts.to_json())

    # What calls ask for, see ``Workers``.

    async def change(self, given: Mapping[str, int], *, persist: bool) -> None:
        """See ``Workers.change``."""
        before = self._settings()

        def tell_witness(done: asyncio.Future[Message]) -> None:
            if done.exception() is None and done.result()["error"] is None:
                # Others may change others at the same time.
                ours = [name for name in before if name.removeprefix("auto_increment_") in given]
                after = self._settings()
                change_events.publish_settings(
                    {name: before[name] for name in ours}, {name: after[name] for name in ours}
                )

        question = self._ask("change", given=dict(given), persist=persist)
        question.add_done_callback(tell_witness)
        answer = await asyncio.shield(question)  # It goes on where the caller leaves, and the witness hears of it.
        if answer["error"] is not None:
            raise decode_error(answer["error"])

    async def lease_count(self) -> int:
        """See ``Workers.lease_count``."""
        lease_count: int = (await self._ask("lease_count"))["lease_count"]
        return lease_count

    def _settings(self) -> dict[str, int]:
        return {} if self._doc_ids is None else self._doc_ids.settings

    def _ask(self, about: str, **values: object) -> asyncio.Future[Message]:
        if self._may_end.done():
            raise ServerDraining
        number = next(self._numbers)
        question: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._questions[number] = question
        self._pipe.tell("ask", number=number, about=about, **values)
        return question

    # What the supervisor asks for.

    async def _change(self, given: Message) -> None:
        """Makes a change once all workers can, or not at all; see ``Supervisor``."""
        self._agreed = asyncio.get_running_loop().create_future()
        try:
            if self._doc_ids is None:
                raise ServerDraining
            await self._doc_ids.change(**given, node_settings=_Agreement(self._pipe, self._agreed))
        except Refusal as refusal:
            self._pipe.tell("refused", error=encode_error(refusal))
        except Exception as fault:
            # All others wait for the reply.
            _log.error("change_failed", exc_info=fault)
            self._pipe.tell(
                "refused", error=encode_error(WorkerFailed(f"a worker failed: {fault!r}; its log says more"))
            )
        else:
            self._pipe.tell("changed")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _orphaned(self) -> None:
        self.drain_timeout = min(self.drain_timeout, ORPHAN_DRAIN_SECONDS)
        self.stopping.set()
        self._all_closed.set()
        self._let_end(True)
        if self._agreed is not None and not self._agreed.done():
            self._agreed.set_result(False)
        for question in self._questions.values():
            if not question.done():
                question.set_exception(ServerDraining())

    def _let_end(self, all_drained: bool) -> None:
        if not self._may_end.done():
            self._may_end.set_result(all_drained)


class _Agreement:
    """A ``NodeSettings`` that holds a change back until all workers have prepared it."""

    def __init__(self, pipe: Pipe, agreed: asyncio.Future[bool]) -> None:
        self._pipe = pipe
        self._agreed = agreed

    def check(self, settings: Iterable[str]) -> None:
        """See ``NodeSettings``: the supervisor checks."""

    async def save(self, settings: Mapping[str, int]) -> None:
        """See ``NodeSettings``."""
        self._pipe.tell("ready")
        if not await self._agreed:
            raise ServerDraining  # for the supervisor, who knows better


async def work(connection: socket.socket) -> None:
    """Serves as the supervisor says.

    Args:
        connection: To the supervisor.
    """
    pipe = await Pipe.over(connection)
    order = await pipe.hear()
    if order is None:
        return
    # They were checked when the server started.
    settings = Settings.model_construct(**order["settings"])
    logs.configure(settings.log_level, worker=order["number"])
    worker = Worker(pipe, settings.workers, settings.drain_timeout, order["asks"])
    serving = asyncio.create_task(app.serve(settings, worker))
    hearing = asyncio.create_task(worker.hear())
    await asyncio.wait({serving, hearing}, return_when=asyncio.FIRST_COMPLETED)
    if not worker.has_joined:
        serving.cancel()  # nobody waits for it any more
    try:
        await serving
    except (StartRefused, StoreFailure) as error:
        pipe.tell("failed", error=encode_error(error))
    except asyncio.CancelledError:
        pass
    finally:
        hearing.cancel()
        await pipe.close()


if __name__ == "__main__":
    from uvloop import run

    # Until it serves. Ctrl-C reaches all processes of a terminal: the supervisor alone says so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run(work(socket.socket(fileno=int(sys.argv[1]))))
