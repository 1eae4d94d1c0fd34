"""Replies that violate the contract: clients and command raise an error and return no id."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

import idalloc
from idalloc import cli
from idalloc._core.reply_checks import CHECKS, check_reply
from idalloc.v1 import id_allocator_pb2 as pb
from tests.support.faults.resources import memory_peak, restart_memory_peak
from tests.support.waiting import hold_for
from tests.support.wrong_replies import (
    FILE,
    SERVICES,
    WRONG_REPLIES,
    ErrorReply,
    Pushback,
    WrongReply,
    batch,
    chunks,
    ids,
    reply,
    serving_wrong,
    table,
)

# The limits of a call on a busy machine: seconds, and bytes of memory, the server of the test
# included.
SECONDS = 30.0
MEMORY = 100_000_000

T = TypeVar("T")
Way = Callable[[Any], Any]
# The callers of each method, by name.
CALLERS: dict[str, list[tuple[str, Way]]] = {
    "AllocateRange": [
        ("allocate_range", lambda client: client.allocate_range("orders", 5)),
        ("ids", lambda client: client.ids("orders")),
    ],
    "AllocateRange ids": [("ids", lambda client: client.ids("orders"))],
    "AllocateRange texts": [("texts", lambda client: client.allocate_range("orders", 5, texts=True))],
    "BatchAllocateRanges": [("allocate_ranges", lambda client: client.allocate_ranges([("orders", 5), ("orders", 5)]))],
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
    "GenerateDocId": [["docid", "5"], ["docid", "5", "--json"]],
    "StreamDocIds": [["docid", "10001"]],
    "GenerateUuid": [["uuid", "5"], ["uuid", "5", "--json"]],
    "ListSequences": [["sequences", "list"], ["sequences", "list", "--json"]],
    "GetSequence": [["sequences", "show", "orders"]],
    "AdvanceSequence": [["sequences", "advance", "orders", "--past", "5"]],
    "GetNode": [["node", "show"]],
    "Check": [["health"]],
}
SCENARIOS: dict[str, list[list[str]]] = {
    "AllocateRange": [["unary", "--id-count", "5"]],
    "StreamRanges": [["stream", "--total-ids", "10", "--chunk", "5"]],
    "GenerateDocId": [["docids", "--id-count", "5"]],
    "StreamDocIds": [["docids", "--total-ids", "10", "--chunk", "5"]],
}


def callers_of(wrong: WrongReply, table: dict[str, list[T]]) -> list[T]:
    """Return the callers in a table that receive a wrong reply."""
    return table.get(f"{wrong.rpc} {wrong.caller}".strip(), [])


def by_threads(target: str, way: Way, given: list[Any], log: Path | None = None, timeout: float = 10) -> None:
    with idalloc.Client(target, timeout=timeout, log=log) as client:
        answer = way(client)
        one_by_one = answer if isinstance(answer, Iterator) else [answer]
        for each in islice(one_by_one, 1000):
            take(each, given)


def by_asyncio(target: str, way: Way, given: list[Any], log: Path | None = None, timeout: float = 10) -> None:
    async def run() -> None:
        async with idalloc.aio.Client(target, timeout=timeout, log=log) as client:
            answer = way(client)
            if not isinstance(answer, AsyncIterator):
                take(await answer, given)
                return
            async for each in answer:
                take(each, given)

    asyncio.run(run())


def by_shared_calls(target: str, way: Way, given: list[Any]) -> None:
    """Run ten tasks, whose calls the client coalesces."""

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
    """Add an answer to ``given``; each id of a range, a list or an iterator by itself."""
    many = isinstance(answer, Iterable) and not isinstance(answer, str)
    given += islice(answer, 1000) if many else [answer]


def bounded(do: Callable[[], None], seconds: float = SECONDS) -> BaseException | None:
    """Run a function that must end soon and use little memory; return its exception."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            do()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    before = restart_memory_peak()
    threading.Thread(target=run, daemon=True).start()
    error = done.exception(seconds)
    assert memory_peak() - before < MEMORY
    return error


CALLS = [
    pytest.param(wrong, by, way, id=f"{wrong.name}, {name}, {by.__name__}")
    for wrong in WRONG_REPLIES
    for name, way in callers_of(wrong, CALLERS)
    for by in (by_threads, by_asyncio, by_shared_calls)
    if by is not by_shared_calls or name == "allocate_range"
]
RUNS = [
    pytest.param(wrong, args, id=f"{wrong.name}, {' '.join(args)}")
    for wrong in WRONG_REPLIES
    for args in callers_of(wrong, COMMANDS)
]
# The bench reports missing ids by a reason of its own.
BENCHES = [
    pytest.param(wrong, args, id=wrong.name)
    for wrong in WRONG_REPLIES
    for args in callers_of(wrong, SCENARIOS)
    if "missing" not in wrong.error
]


@pytest.mark.parametrize(("wrong", "by", "way"), CALLS)
def test_a_wrong_reply_is_one_error_and_returns_nothing(
    wrong: WrongReply, by: Callable[[str, Way, list[Any]], None], way: Way
) -> None:
    """A wrong reply raises one ProtocolError that names the field, and returns no id."""
    given: list[Any] = []
    with serving_wrong(wrong) as target:
        error = bounded(lambda: by(target, way, given))
    assert isinstance(error, idalloc.ProtocolError), f"{error!r}, given {given[:10]}"
    assert re.search(wrong.error, str(error))
    assert error.reason == "PROTOCOL_ERROR"
    assert len(given) == wrong.valid_ids


@pytest.mark.test_long
@pytest.mark.parametrize(("wrong", "args"), RUNS)
def test_the_command_reports_a_wrong_reply_in_one_line(
    wrong: WrongReply, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints one line with the reason, nothing of the wrong reply, and exits with 1."""
    codes: list[int] = []
    with serving_wrong(wrong) as target:
        error = bounded(lambda: codes.append(cli.main(["--server", target, "--timeout", "10s", *args])))
    out, err = capsys.readouterr()
    assert error is None
    assert codes == [1]
    [line] = err.splitlines()
    assert re.match(f"PROTOCOL_ERROR: .*({wrong.error})", line)
    assert bool(out) == (wrong.valid_ids > 0 and wrong.rpc != "ListSequences")  # a list is printed when it is complete


@pytest.mark.test_long
@pytest.mark.parametrize(("wrong", "args"), BENCHES)
def test_the_bench_counts_a_wrong_reply_as_failed(
    wrong: WrongReply, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The bench counts a wrong reply as a failed call with its reason, and none of its ids."""
    once = ["--total", "1", "--concurrency", "1", "--warm-up", "0s", "--json"]
    codes: list[int] = []
    with serving_wrong(wrong) as target:
        error = bounded(lambda: codes.append(cli.main(["--server", target, "bench", *args, *once])))
    out, err = capsys.readouterr()
    assert (error, codes, err) == (None, [1], "")
    report = json.loads(out)
    [[failure, count]] = report["errorDistribution"].items()
    assert re.search(f"PROTOCOL_ERROR: .*({wrong.error})", failure)
    assert (count, report["ids"]) == (1, wrong.valid_ids)


def test_many_texts_are_checked_in_linear_time() -> None:
    """A duplicate among 100,000 texts is found at once; comparing each with each takes a minute."""
    count = 100_000
    request = pb.AllocateRangeRequest(sequence="orders", id_count=count, view=pb.RANGE_VIEW_TEXTS)
    texts = [f"T{number}" for number in range(count - 1)]
    with pytest.raises(idalloc.ProtocolError, match=f"has 'T{count - 2}' twice"):
        check_reply(request, reply(ids(1, count), texts=[*texts, texts[-1]]))


def test_the_other_clients_get_the_same_wrong_replies() -> None:
    """The file of their tests has the replies of this table."""
    assert FILE.read_text() == table(), "run `python -m tests.support.wrong_replies`"


def test_every_reply_has_a_check() -> None:
    """Each method of the contract has a check of its reply, or of the messages of its stream."""
    streams = {"AllocateStreamResponse", "StreamRangesResponse", "StreamDocIdsResponse"}
    services = [service for service in SERVICES if service.file.package == "idalloc.v1"]
    methods = [method for service in services for method in service.methods]
    assert {method.output_type.name for method in methods} == {kind.__name__ for kind in CHECKS} | streams


@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_stream_that_stays_open_after_its_total_ends(
    by: Callable[[str, Way, list[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends at its total, even if the server never ends it."""
    monkeypatch.setattr("idalloc._sync.streams.END_TIMEOUT", 0.2)
    monkeypatch.setattr("idalloc.aio._streams.END_TIMEOUT", 0.2)
    stays = threading.Event()

    def answer(request: Any) -> Iterator[Any]:
        yield from chunks(request)
        stays.wait(SECONDS)

    given: list[Any] = []
    with serving_wrong(WrongReply("it stays open", "StreamRanges", answer, "")) as target:
        error = bounded(lambda: by(target, lambda client: client.stream_ranges("orders", 10, 5), given))
        stays.set()
    assert error is None
    assert given == list(range(1, 11))


@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_ids_return_earlier_ranges_before_the_error(by: Callable[[str, Way, list[Any]], None]) -> None:
    """A wrong prefetched reply raises once, after the ids of the ranges before it."""
    asked: list[int] = []

    def answer(request: Any) -> Any:
        first = sum(asked) + 1
        asked.append(request.id_count)
        return reply(ids(first, request.id_count), ttl=Duration(seconds=-1 if len(asked) == 3 else 60))

    given: list[int] = []
    with serving_wrong(WrongReply("the third range", "AllocateRange", answer, "")) as target:
        error = bounded(lambda: by(target, lambda client: client.ids("orders"), given))
    assert isinstance(error, idalloc.ProtocolError)
    assert given == list(range(1, 1 + sum(asked[:2])))


@pytest.mark.parametrize(
    "name", ["more ids than asked for", "a chunk too large", "one run too many", "each range twice, by 1"]
)
@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_wrong_reply_is_not_logged(by: Callable[..., None], name: str, tmp_path: Path) -> None:
    """The log of issued ids has no record of a wrong reply, only of the one before it."""
    [wrong] = [wrong for wrong in WRONG_REPLIES if wrong.name == name]
    for way_name, way in callers_of(wrong, CALLERS):
        log = tmp_path / f"{way_name}.jsonl"
        with serving_wrong(wrong) as target:
            error = bounded(lambda: by(target, way, [], log=log))  # noqa: B023
        assert isinstance(error, idalloc.ProtocolError)
        header, *records = log.read_text().splitlines()
        assert "idalloc_log" in header
        assert len(records) == wrong.valid_ids


def test_ids_time_out_if_each_error_leaves_one_id_less() -> None:
    """ids() ends within its timeout if each SequenceExhausted reports one id less."""
    firsts = count(1, 256)

    def answer(request: Any) -> Any:
        if request.id_count < 256:
            return reply(ids(next(firsts), request.id_count))
        refused.append(request.id_count)
        hold_for(0.02, "the server's latency")
        left = {"largest_range": str(request.id_count - 1)}
        raise ErrorReply("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE, metadata=left)

    def take_all(client: Any) -> list[int]:
        return list(islice(client.ids("orders", timeout=1.0), 10_000))

    async def take_all_by_asyncio(target: str) -> None:
        async with idalloc.aio.Client(target) as client:
            async for _ in client.ids("orders", timeout=1.0):
                pass

    for by_asyncio in (False, True):
        refused: list[int] = []
        with serving_wrong(WrongReply("one less is left", "AllocateRange", answer, "")) as target:
            if by_asyncio:
                error = bounded(lambda: asyncio.run(take_all_by_asyncio(target)))
            else:
                with idalloc.Client(target) as client:
                    error = bounded(lambda: take_all(client))  # type: ignore[arg-type]
        assert isinstance(error, idalloc.SequenceExhausted)
        assert 1 < len(refused) < 100


@pytest.mark.parametrize("rpc", ["StreamRanges", "StreamDocIds"])
@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_stream_ignores_a_pushback_of_11_days(by: Callable[[str, Way, list[Any]], None], rpc: str) -> None:
    """A stream retries after its own delays, whatever pushback the server requests from gRPC."""
    asked: list[Any] = []

    def answer(request: Any) -> Iterable[Any]:
        asked.append(request)
        if len(asked) == 1:
            raise Pushback
        return chunks(request) if rpc == "StreamRanges" else [batch(request, 1, 5), batch(request, 6, 5)]

    given: list[Any] = []
    [(_, way)] = CALLERS[rpc]
    with serving_wrong(WrongReply("a pushback of 11 days", rpc, answer, "")) as target:
        error = bounded(lambda: by(target, way, given), seconds=10)
    assert error is None
    assert len(given) == 10
    assert len(asked) == 2


@pytest.mark.parametrize("by", [by_threads, by_asyncio])
def test_a_call_with_a_pushback_of_11_days_ends_in_time(by: Callable[..., None]) -> None:
    """A call whose retry the server delays by 11 days raises the server's error in its timeout."""

    def answer(_: Any) -> Any:
        raise Pushback

    with serving_wrong(WrongReply("a pushback of 11 days", "GetNode", answer, "")) as target:
        error = bounded(lambda: by(target, lambda client: client.node(), [], timeout=1))
    assert isinstance(error, idalloc.StoreUnavailable)
