"""An exception of a signal handler anywhere in the client: no duplicate, no lock held, no hang."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

import pytest

import idalloc
from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import issued_log
from tests.support.fake_server import FakeServer, serving
from tests.support.signal_places import Conditions, Interrupt, Places

# From coroutines that were never started, and generators that an exception hit while they were
# closed.
pytestmark = [
    pytest.mark.test_long,
    pytest.mark.child,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


def at_each_place(take: Callable[[Places], None]) -> int:
    """Run a scenario once per place, with an exception there; return the number of places."""
    number = 0
    while True:
        number += 1
        places = Places(number)
        try:
            take(places)
        except BaseException as error:
            error.add_note(f"raised at place {number}: {places.raised}")
            raise
        finally:
            places.end()
        if not places.raised:
            return places.count


def test_an_exception_anywhere_repeats_no_id(server: FakeServer) -> None:
    """P1: ids() returns no id twice and does not hang, wherever a signal handler raises."""
    with idalloc.Client(server.target) as client:

        def take(places: Places) -> None:
            ids = client.ids("orders")
            taken: list[int] = []
            places.watch()
            for count in [1] * 4 + [8]:
                try:
                    taken += [next(ids)] if count == 1 else islice(ids, count)
                except Interrupt:
                    places.watch()
                assert not ids._lock._lock.locked()
            places.end()
            assert len(set(taken)) == len(taken) >= 4

        assert at_each_place(take) > 150


def test_an_exception_anywhere_repeats_no_id_in_asyncio(server: FakeServer) -> None:
    """P1: ids() of the asyncio client returns no id twice, wherever a signal handler raises."""

    async def use(places: Places) -> None:
        async with idalloc.aio.Client(server.target) as client:
            ids = client.ids("orders")
            taken: list[int] = []
            places.watch()
            for _ in range(7):
                try:
                    taken.append(await anext(ids))
                except Interrupt:
                    places.watch()
            places.end()
            assert len(set(taken)) == len(taken) >= 6

    assert at_each_place(lambda places: run(use(places))) > 100


def test_an_exception_anywhere_repeats_no_chunk(server: FakeServer) -> None:
    """P1: a stream yields no range twice, and the next stream works."""
    with idalloc.Client(server.target) as client:

        def take(places: Places) -> None:
            taken: list[int] = []
            places.watch()
            for _ in range(2):
                try:
                    for ids in client.stream_ranges("orders", 20, 5):
                        taken += ids
                except Interrupt:
                    places.watch()
            places.end()
            assert len(set(taken)) == len(taken) >= 20

        assert at_each_place(take) > 50


def test_an_exception_anywhere_repeats_no_chunk_in_asyncio(server: FakeServer) -> None:
    """P1: a stream of the asyncio client yields no range twice, and the next stream works."""

    async def use(places: Places) -> None:
        async with idalloc.aio.Client(server.target) as client:
            taken: list[int] = []
            places.watch()
            for _ in range(2):
                try:
                    async for ids in client.stream_ranges("orders", 20, 5):
                        taken += ids
                except Interrupt:
                    places.watch()
            places.end()
            assert len(set(taken)) == len(taken) >= 20

    assert at_each_place(lambda places: run(use(places))) > 50


def test_an_exception_anywhere_leaves_requests_usable(server: FakeServer) -> None:
    """P1: a stream of requests returns no id twice, and its next call is answered."""
    with idalloc.Client(server.target, timeout=5) as client:

        def take(places: Places) -> None:
            taken: list[int] = []
            with client.allocate_stream() as stream:
                places.watch()
                for _ in range(3):
                    try:
                        taken += stream.allocate_range("orders", 2)
                    except Interrupt:
                        places.watch()
                places.end()
                taken += stream.allocate_range("orders", 2)
                assert not stream._waiting
            assert len(set(taken)) == len(taken) >= 6

        assert at_each_place(take) > 30


def test_an_exception_anywhere_leaves_aio_requests_usable(server: FakeServer) -> None:
    """P1: a stream of requests of the asyncio client returns no id twice, and can be used again."""

    async def use(places: Places) -> None:
        async with idalloc.aio.Client(server.target, timeout=2) as client, client.allocate_stream() as stream:
            taken: list[int] = []
            places.watch()
            for _ in range(3):
                try:
                    taken += await stream.allocate_range("orders", 2)
                except Interrupt:
                    places.watch()
                except idalloc.DeadlineExceeded:  # the exception ended a task of gRPC
                    pass
            places.end()
            taken += await stream.allocate_range("orders", 2)
            assert len(set(taken)) == len(taken) >= 4
            assert not stream._waiting

    assert at_each_place(lambda places: run(use(places))) > 30


def test_an_exception_anywhere_leaves_coalescing_usable(server: FakeServer) -> None:
    """P1: coalesced callers get no id twice, and the next caller is served at once."""

    async def use(places: Places) -> None:
        async with idalloc.aio.Client(server.target, timeout=2) as client:
            taken: list[int] = []

            async def call() -> None:
                for _ in range(2):
                    try:
                        taken.extend(await client.allocate_range("orders", 3))
                    except Interrupt:
                        places.watch()
                    except idalloc.DeadlineExceeded:  # the exception ended the task that was to answer
                        pass

            places.watch()
            await asyncio.gather(*(call() for _ in range(3)))
            places.end()
            taken += await client.allocate_range("orders", 3)
            assert len(set(taken)) == len(taken) >= 3
            assert not client._coalescer._queues

    assert at_each_place(lambda places: run(use(places))) > 100


@pytest.mark.parametrize("way", ["call", "stream", "ids", "requests"])
def test_a_lock_left_locked_in_grpc_hangs_no_call(server: FakeServer, way: str) -> None:
    """A stream, a call and ids() work after an exception that left a condition of gRPC locked."""
    with idalloc.Client(server.target, timeout=5) as client:
        kept = client.ids("orders")
        requests = client.allocate_stream()

        def use(which: str, ids: Iterator[int]) -> None:
            if which == "requests":
                requests.allocate_range("orders")
            elif which == "stream":
                deque(client.stream_ranges("orders", 20, 5, timeout=5), maxlen=0)
            elif which == "call":
                client.allocate_range("orders")
            else:
                deque(islice(ids, 50), maxlen=0)

        for number in count(1):
            conditions = Conditions(number)
            conditions.watch()
            with suppress(Exception):  # gRPC may report it as an error of its own
                use(way, client.ids("orders"))
            conditions.end()
            if not conditions.raised:
                break
            for which in ("stream", "call", "ids", "requests"):
                use(which, kept)
        assert number > (1 if way == "requests" else 2)


@pytest.mark.parametrize("name", ["issued.log", "issued.jsonl"])
def test_an_exception_anywhere_leaves_the_log_valid(tmp_path: Path, name: str) -> None:
    """P1: each recorded range is in the log once, and each record can be read."""
    response = pb.AllocateRangeResponse(range=pb.IdRange(step=1, id_count=1))

    def write(places: Places) -> None:
        path = tmp_path / f"{places._number}-{name}"
        log = IssuedLog(path)
        logged = []
        places.watch()
        for number in range(1, 7):
            response.range.first_id = response.range.last_id = number
            try:
                log.range(pb.AllocateRangeRequest(sequence=f"orders-{number % 2}"), response, 0)
                logged.append(number)
            except Interrupt:
                places.watch()
            assert not log._state.lock._lock.locked()
        places.end()
        log.close()
        assert [number for number in issued_log.read(path).ids if number in logged] == logged

    assert at_each_place(write) > 40


@pytest.mark.parametrize("name", ["issued.log", "issued.jsonl"])
def test_an_exception_anywhere_leaves_one_file_of_a_child(tmp_path: Path, name: str) -> None:
    """P8: a child's records go to one valid file, wherever its creation was interrupted."""

    def write(places: Places) -> None:
        path = tmp_path / f"{places._number}-{name}"
        log = IssuedLog(path)
        log.reset_after_fork()  # as in the child of a fork
        logged = []
        places.watch()
        for number in range(1, 4):
            try:
                log.range(pb.AllocateRangeRequest(sequence="orders"), single(number), 0)
                logged.append(number)
            except Interrupt:
                places.watch()
            assert not log._state.lock._lock.locked()
        places.end()
        log.close()
        own = Path(f"{path}.{os.getpid()}")
        assert set(tmp_path.glob(f"{path.name}*")) == {path, own}
        assert [number for number in issued_log.read(own).ids if number in logged] == logged

    assert at_each_place(write) > 40


@pytest.mark.parametrize("name", ["issued.log", "issued.jsonl"])
def test_an_exception_anywhere_lets_a_log_be_created_again(tmp_path: Path, name: str) -> None:
    """A log whose creation failed leaves neither a file nor a descriptor."""

    def make(places: Places) -> None:
        path = tmp_path / f"{places._number}-{name}"
        log = None
        places.watch()
        with suppress(Interrupt):
            log = IssuedLog(path)
        places.end()
        if log is None:
            assert path not in open_files()
            log = IssuedLog(path)
        log.close()

    assert at_each_place(make) > (20 if sys.version_info < (3, 12) else 10)  # newer ones trace fewer places


@pytest.mark.parametrize("name", ["issued.log", "issued.jsonl"])
def test_an_exception_anywhere_leaves_doc_ids_valid(tmp_path: Path, name: str) -> None:
    """P1: each recorded run of document ids is in the log once."""

    def write(places: Places) -> None:
        path = tmp_path / f"{places._number}-{name}"
        log = IssuedLog(path)
        logged: list[str] = []
        places.watch()
        for number in range(3):
            texts = [f"{prefix:04x}6b017bcf{number + 1:016x}" for prefix in (100, number, 200)]
            runs = [pb.DocIdRun(first_doc_id=text, step=1, id_count=1) for text in texts]
            try:
                log.doc_ids(pb.GenerateDocIdResponse(runs=runs), 0)
                logged += texts
            except Interrupt:
                places.watch()
        places.end()
        log.close()
        assert [text for text in issued_log.read(path).texts if text in logged] == logged

    assert at_each_place(write) > 40


def single(number: int) -> pb.AllocateRangeResponse:
    """Return a reply with one id."""
    return pb.AllocateRangeResponse(range=pb.IdRange(first_id=number, last_id=number, step=1, id_count=1))


def open_files() -> list[Path]:
    """Return the open files of this process, if the system lists them."""
    return [link.resolve() for link in Path("/proc/self/fd").glob("*")]


def run(coroutine: object) -> None:
    """Run a scenario, and ignore exceptions of the loop's callbacks."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)
        runner.run(asyncio.wait_for(coroutine, 30))  # type: ignore[arg-type]
