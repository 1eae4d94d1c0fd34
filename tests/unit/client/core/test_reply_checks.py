"""A server that lies: both clients and the command raise one error, and give out nothing of the lie."""

import asyncio
import json
import re
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

import idalloc
from idalloc import cli
from idalloc._core.reply_checks import CHECKS
from tests.support.wrong_replies import LIES, SERVICES, Lie, Pushback, Refuse, batch, chunks, ids, lying, reply

# What a lie may cost, on a busy machine: seconds, and bytes of memory.
SECONDS = 30.0
MEMORY = 30_000_000

T = TypeVar("T")
Way = Callable[[Any], Any]
# What callers of each method do, by name. Each gives a client's answers one by one, or awaits them all.
CALLERS: dict[str, list[tuple[str, Way]]] = {
    "AllocateRange": [
        ("allocate_range", lambda client: client.allocate_range("orders", 5)),
        ("ids", lambda client: client.ids("orders")),
    ],
    "AllocateRange texts": [("allocate_texts", lambda client: client.allocate_texts("orders", 5))],
    "StreamRanges": [("stream_ranges", lambda client: client.stream_ranges("orders", 10, 5))],
    "GenerateDocId": [("doc_ids", lambda client: client.doc_ids(5))],
    "StreamDocIds": [("stream_doc_ids", lambda client: client.stream_doc_ids(10, 5))],
    "GenerateUuid": [("uuids", lambda client: client.uuids(5))],
    "ListSequences": [("list", lambda client: client.sequences.list())],
    "GetSequence": [("get", lambda client: client.sequences.get("orders"))],
    "AdvanceSequence": [("advance", lambda client: client.sequences.advance("orders", 5))],
    "GetNode": [("node", lambda client: client.node())],
}
COMMANDS: dict[str, list[list[str]]] = {
    "AllocateRange": [["allocate", "orders", "5"], ["allocate", "orders", "5", "--json"]],
    "AllocateRange texts": [["allocate", "orders", "5", "--texts"]],
    "StreamRanges": [
        ["stream", "orders", "--total", "10", "--chunk", "5"],
        ["stream", "orders", "--total", "10", "--chunk", "5", "--json"],
    ],
    "GenerateDocId": [["docid", "5"]],
    "GenerateDocId texts": [["docid", "5", "--json"]],
    "StreamDocIds": [["docid", "10001"]],
    "GenerateUuid": [["uuid", "5"], ["uuid", "5", "--json"]],
    "ListSequences": [["sequences", "list"], ["sequences", "list", "--json"]],
    "GetSequence": [["sequences", "show", "orders"]],
    "AdvanceSequence": [["sequences", "advance", "orders", "--past", "5"]],
    "GetNode": [["node"]],
    "Check": [["health"]],
}
SCENARIOS: dict[str, list[list[str]]] = {
    "AllocateRange": [["unary", "--id-count", "5"]],
    "StreamRanges": [["stream", "--total-ids", "10", "--chunk", "5"]],
    "GenerateDocId": [["docids", "--id-count", "5"]],
    "StreamDocIds": [["docids", "--total-ids", "10", "--chunk", "5"]],
}


def of_lie(lie: Lie, of: dict[str, list[T]]) -> list[T]:
    """Those who get to see the lie."""
    return of.get(f"{lie.rpc} {lie.of}".strip(), [])


def by_threads(target: str, way: Way, given: list[Any], log: Path | None = None) -> None:
    with idalloc.Client(target, timeout=10, log=log) as client:
        answer = way(client)
        one_by_one = answer if isinstance(answer, Iterator) else [answer]
        for each in islice(one_by_one, 1000):
            take(each, given)


def by_asyncio(target: str, way: Way, given: list[Any], log: Path | None = None) -> None:
    async def run() -> None:
        async with idalloc.aio.Client(target, timeout=10, log=log) as client:
            answer = way(client)
            if not isinstance(answer, AsyncIterator):
                take(await answer, given)
                return
            async for each in answer:
                take(each, given)

    asyncio.run(run())


def by_shared_calls(target: str, way: Way, given: list[Any]) -> None:
    """Ten tasks, whose calls the client makes as one."""

    async def run() -> None:
        async with idalloc.aio.Client(target, timeout=10) as client:
            answers = await asyncio.gather(*(way(client) for _ in range(10)), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    assert isinstance(answer, idalloc.ProtocolError), repr(answer)
                else:
                    take(answer, given)
            raise next(each for each in answers if isinstance(each, BaseException))

    asyncio.run(run())


def take(answer: Any, given: list[Any]) -> None:
    """Notes what a caller got: of a range, of a list and of an iterator each single id."""
    many = isinstance(answer, Iterable) and not isinstance(answer, str)
    given += islice(answer, 1000) if many else [answer]


def bounded(do: Callable[[], None], seconds: float = SECONDS) -> BaseException | None:
    """Runs what must end soon and take little memory; returns what it raised."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            do()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    tracemalloc.start()
    try:
        threading.Thread(target=run, daemon=True).start()
        error = done.exception(seconds)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    return error


CALLS = [
    pytest.param(lie, by, way, id=f"{lie.name}, {name}, {by.__name__}")
    for lie in LIES
    for name, way in of_lie(lie, CALLERS)
    for by in (by_threads, by_asyncio, by_shared_calls)
    if by is not by_shared_calls or name == "allocate_range"
]
RUNS = [pytest.param(lie, args, id=f"{lie.name}, {' '.join(args)}") for lie in LIES for args in of_lie(lie, COMMANDS)]
# Of streams, the bench looks at each message by itself, and with --verify at their order.
BENCHES = [
    pytest.param(lie, args, id=lie.name)
    for lie in LIES
    for args in of_lie(lie, SCENARIOS)
    if not lie.honest and "missing" not in lie.says
]


@pytest.mark.parametrize(("lie", "by", "way"), CALLS)
def test_a_lie_is_one_error_and_gives_nothing(lie: Lie, by: Callable[[str, Way, list[Any]], None], way: Way) -> None:
    """Each lie ends in one ProtocolError that says what is wrong, before anything of it is given out."""
    given: list[Any] = []
    with lying(lie) as target:
        error = bounded(lambda: by(target, way, given))
    assert isinstance(error, idalloc.ProtocolError), f"{error!r}, given {given[:10]}"
    assert re.search(lie.says, str(error))
    assert error.reason == "PROTOCOL_ERROR"
    assert len(given) == lie.honest


@pytest.mark.parametrize(("lie", "args"), RUNS)
def test_the_command_says_it_in_one_line(lie: Lie, args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints one line with the reason, prints nothing of the lie, and exits with 1."""
    codes: list[int] = []
    with lying(lie) as target:
        error = bounded(lambda: codes.append(cli.main(["--server", target, "--timeout", "10s", *args])))
    out, err = capsys.readouterr()
    assert error is None
    assert codes == [1]
    [line] = err.splitlines()
    assert re.match(f"PROTOCOL_ERROR: .*({lie.says})", line)
    assert bool(out) == (lie.honest > 0 and lie.rpc != "ListSequences")  # a list is printed when all of it came


@pytest.mark.parametrize(("lie", "args"), BENCHES)
def test_the_bench_counts_it_as_failed(lie: Lie, args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The bench counts a lie as a failed call, with its reason, and counts none of its ids."""
    once = ["--total", "1", "--concurrency", "1", "--warm-up", "0s", "--json"]
    codes: list[int] = []
    with lying(lie) as target:
        error = bounded(lambda: codes.append(cli.main(["--server", target, "bench", *args, *once])))
    out, err = capsys.readouterr()
    assert (error, codes, err) == (None, [1], "")
    report = json.loads(out)
    [[failure, count]] = report["errorDistribution"].items()
    assert re.search(f"PROTOCOL_ERROR: .*({lie.says})", failure)
    assert (count, report["ids"]) == (1, 0)


def test_every_reply_has_a_check() -> None:
    """No method of the contract is left out of the checks."""
    streams = {"StreamRangesResponse", "StreamDocIdsResponse"}
    services = [service for service in SERVICES if service.file.package == "idalloc.v1"]
    methods = [method for service in services for method in service.methods]
    assert {method.output_type.name for method in methods} == {kind.__name__ for kind in CHECKS} | streams


@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_stream_that_stays_open_after_its_total_ends(
    by: Callable[[str, Way, list[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends at its total, also where the server never ends it."""
    monkeypatch.setattr("idalloc._sync.streams.END_TIMEOUT", 0.2)
    monkeypatch.setattr("idalloc.aio._streams.END_TIMEOUT", 0.2)
    stays = threading.Event()

    def tell(request: Any) -> Iterator[Any]:
        yield from chunks(request)
        stays.wait(SECONDS)

    given: list[Any] = []
    with lying(Lie("it stays open", "StreamRanges", tell, "")) as target:
        error = bounded(lambda: by(target, lambda client: client.stream_ranges("orders", 10, 5), given))
        stays.set()
    assert error is None
    assert given == list(range(1, 11))


@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_ids_give_what_came_before_a_lie_and_go_on(by: Callable[[str, Way, list[Any]], None]) -> None:
    """A lie in a range that was asked for ahead is raised once, where its first id would be next."""
    asked: list[int] = []

    def tell(request: Any) -> Any:
        first = sum(asked) + 1
        asked.append(request.id_count)
        return reply(ids(first, request.id_count), ttl=Duration(seconds=-1 if len(asked) == 3 else 60))

    given: list[int] = []
    with lying(Lie("the third range", "AllocateRange", tell, "")) as target:
        error = bounded(lambda: by(target, lambda client: client.ids("orders"), given))
    assert isinstance(error, idalloc.ProtocolError)
    assert given == list(range(1, 1 + sum(asked[:2])))


@pytest.mark.parametrize("name", ["more ids than asked for", "a chunk too large", "one run too many"])
@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_lie_is_not_in_the_log(by: Callable[..., None], name: str, tmp_path: Path) -> None:
    """The log of issued ids has no record of a reply that was refused."""
    [lie] = [lie for lie in LIES if lie.name == name]
    for way_name, way in of_lie(lie, CALLERS):
        log = tmp_path / f"{way_name}.jsonl"
        with lying(lie) as target:
            error = bounded(lambda: by(target, way, [], log=log))  # noqa: B023
        assert isinstance(error, idalloc.ProtocolError)
        [header] = log.read_text().splitlines()
        assert "idalloc_log" in header


def test_ids_end_in_time_where_each_refusal_leaves_one_less() -> None:
    """`ids()` ends within its timeout where each refusal of a large range says that one id less is left."""

    def tell(request: Any) -> Any:
        if request.id_count < 256:
            return reply(ids(1, request.id_count))
        refused.append(request.id_count)
        time.sleep(0.02)
        left = {"largest_range": str(request.id_count - 1)}
        raise Refuse("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE, metadata=left)

    def take_all(client: Any) -> list[int]:
        return list(islice(client.ids("orders"), 10_000))

    async def take_all_by_asyncio(target: str) -> None:
        async with idalloc.aio.Client(target, timeout=1.0) as client:
            async for _ in client.ids("orders"):
                pass

    for by_asyncio in (False, True):
        refused: list[int] = []
        with lying(Lie("one less is left", "AllocateRange", tell, "")) as target:
            if by_asyncio:
                error = bounded(lambda: asyncio.run(take_all_by_asyncio(target)))
            else:
                with idalloc.Client(target, timeout=1.0) as client:
                    error = bounded(lambda: take_all(client))  # type: ignore[arg-type]
        assert isinstance(error, idalloc.SequenceExhausted)
        assert 1 < len(refused) < 100


@pytest.mark.parametrize("rpc", ["StreamRanges", "StreamDocIds"])
@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_stream_ignores_a_pushback_of_11_days(by: Callable[[str, Way, list[Any]], None], rpc: str) -> None:
    """A stream without a timeout waits by its own pauses, whatever the server asks gRPC's retry policy for."""
    asked: list[Any] = []

    def tell(request: Any) -> Iterable[Any]:
        asked.append(request)
        if len(asked) == 1:
            raise Pushback
        return chunks(request) if rpc == "StreamRanges" else [batch(request, 1, 5), batch(request, 6, 5)]

    given: list[Any] = []
    [(_, way)] = CALLERS[rpc]
    with lying(Lie("a pushback of 11 days", rpc, tell, "")) as target:
        error = bounded(lambda: by(target, way, given), seconds=10)
    assert error is None
    assert len(given) == 10
    assert len(asked) == 2


@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_call_with_a_pushback_of_11_days_ends_in_time(by: Callable[[str, Way, list[Any]], None]) -> None:
    """A call whose retry the server puts off for 11 days ends at its timeout."""

    def tell(_: Any) -> Any:
        raise Pushback

    with lying(Lie("a pushback of 11 days", "GetNode", tell, "")) as target:
        error = bounded(lambda: by(target, lambda client: client.node(), []))
    assert isinstance(error, idalloc.DeadlineExceeded)
