"""Requests to OpenSearch: paths, parameters, and the answers to ``_bulk``."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, cast

import pytest

from idalloc_server.domain.errors import StoreOutcomeUnknown, StoreRefused, StoreUnreachable
from idalloc_server.domain.store.records import RecordedAllocation
from idalloc_server.domain.store.retirement import RETIREMENT
from idalloc_server.store.cluster.http_connections import Request, WrongAnswer
from idalloc_server.store.opensearch import scripts
from idalloc_server.store.opensearch.http import AliasUnknown, OpenSearchHttp
from idalloc_server.store.opensearch.indices import SEQUENCES
from idalloc_server.store.opensearch.requests import BulkItem, Requests, RowUpdate, script
from idalloc_server.store.opensearch.results import OpenedIndex, Written, WrongItems
from idalloc_server.store.opensearch.store import OpenSearchStore

REQUESTS = Requests("idalloc", timeout=40.0)
GRANT = RowUpdate("s", script(scripts.TOUCH), "last_value")


class Kept:
    """Keeps requests in place of sending them."""

    def __init__(self) -> None:
        self.requests: list[Request[Any]] = []

    async def send_write(self, request: Request[Any], *, may_fail_over: bool = True) -> NoReturn:
        """Keep a write."""
        self.requests.append(request)
        raise StoreUnreachable("nothing is sent")


async def sent(call: Callable[[OpenSearchStore], Awaitable[object]]) -> Request[Any]:
    """Return the first write of a call."""
    http = Kept()
    with pytest.raises(StoreUnreachable):
        await call(OpenSearchStore("", cast(OpenSearchHttp, http), "idalloc", 40.0))
    return http.requests[0]


async def retirement() -> Request[Any]:
    """Return the request that reads the retirement row."""
    return await sent(lambda store: store.get(RETIREMENT))


async def recording(*request_ids: str) -> Request[Any]:
    """Return the request that records allocations."""
    allocation = RecordedAllocation("", "s", 1, 1, 1, generation=1, period="", prefix=1, node="n")
    return await sent(lambda store: store.record([allocation._replace(request_id=each) for each in request_ids]))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("..", ".."),
        ("a/b", "a%2Fb"),
        ("a+b c", "a%2Bb%20c"),
        ("100%", "100%25"),
        ("a?b#c", "a%3Fb%23c"),
        ("é\x1f2026", "%C3%A9%1F2026"),
    ],
)
async def test_a_name_is_one_segment_of_the_path(name: str, path: str) -> None:
    """A name cannot change the path of a request."""
    request = await sent(lambda store: store.get(name))
    assert request.path.partition("?")[0] == f"/idalloc-sequences/_update/{path}"


async def test_every_write_needs_an_alias_and_ends_before_its_caller() -> None:
    """P1: no write creates an index, or is applied long after its caller has gone."""
    writes = (
        REQUESTS.update(SEQUENCES, *GRANT),
        REQUESTS.update_rows([GRANT, GRANT._replace(name="t")]),
        REQUESTS.bulk(SEQUENCES, [BulkItem("r", action="delete", options={"if_seq_no": 1, "if_primary_term": 1})]),
        await sent(lambda store: store.grant("s", 1, 1000)),
        await sent(lambda store: store.give_back("s", 1, (1, 2, 3))),
        await sent(lambda store: store.raise_start(1, 2)),
        await retirement(),
        await recording("r"),
    )
    for request in writes:
        assert request.method == "POST"
        assert "?require_alias=true&timeout=36000ms" in request.path


async def test_a_tail_is_returned_on_one_version_only() -> None:
    """P1: a compare-and-set is never retried by the cluster."""
    request = await sent(lambda store: store.give_back("s", 1, (7, 2, 1)))
    assert "if_seq_no=7&if_primary_term=2" in request.path
    assert "retry_on_conflict" not in request.path


def error(status: int, kind: str, key: str = RETIREMENT) -> dict[str, object]:
    return {"status": status, "_id": key, "error": {"type": kind, "reason": f"[{key}]: {kind}"}}


def bulk(*items: dict[str, object]) -> bytes:
    return json.dumps({"errors": True, "items": [{"update": item} for item in items]}).encode()


MISSING_ROW = "document_missing_exception"
MISSING = error(404, MISSING_ROW)
CONFLICT = error(409, "version_conflict_engine_exception")
MADE = {"status": 201, "_id": "r", "get": {"_source": {"name": "s"}}}
CONFIRMED = {"status": 200, "_id": "\x1fconfirm"}


class TestBulk:
    async def test_a_failed_item_of_a_record_is_missing(self) -> None:
        """P7: whether a failed item was recorded is unknown; the others are known."""
        refused = error(409, "version_conflict_engine_exception", "q")
        assert (await recording("r", "q")).read("h", 200, bulk(MADE, refused)) == [{"name": "s"}, None]

    async def test_a_missing_alias_is_refused(self) -> None:
        """STORE_REFUSED: ``_bulk`` answers 200 for a missing alias, perhaps before the recovery."""
        missing = [error(404, "index_not_found_exception", key) for key in "rq"]
        record = await recording("r", "q")
        with pytest.raises(AliasUnknown):
            record.read("h", 200, bulk(*missing))

    async def test_a_confirmed_missing_retirement_is_none(self) -> None:
        """P1: the second write confirms that the store is not retired."""
        assert (await retirement()).read("h", 200, bulk(MISSING, CONFIRMED))[0] is None

    @pytest.mark.parametrize("items", [(CONFLICT, CONFIRMED), (MISSING, {**CONFLICT, "_id": "\x1fconfirm"})])
    async def test_an_unconfirmed_retirement_is_unknown(self, items: tuple[dict[str, object], ...]) -> None:
        """P1: without both writes nothing is known of a retirement."""
        request = await retirement()
        with pytest.raises(StoreOutcomeUnknown):
            request.read("h", 200, bulk(*items))

    @pytest.mark.parametrize(
        "answer",
        [
            b'{"items": ["r", "q"]}',
            b'{"items": [{}, {}]}',
            b'{"items": {"r": 1, "q": 1}}',
            b'{"items": [{"update": "r"}, {"update": "q"}]}',
            b'{"items": [{"update": {"_id": "r", "status": 200, "get": {"_source": 5}}}, {"update": {"_id": "q"}}]}',
        ],
    )
    async def test_an_answer_of_another_shape_is_unknown(self, answer: bytes) -> None:
        """P7: an answer without what each item must have proves nothing about this request."""
        record = await recording("r", "q")
        with pytest.raises(StoreOutcomeUnknown, match="; check what answers"):
            record.read("h", 200, answer)

    @pytest.mark.parametrize("items", [(MADE,), (MADE, MADE), ()])
    async def test_an_answer_about_other_rows_is_refused(self, items: tuple[dict[str, object], ...]) -> None:
        """P7: an answer with fewer rows, or about another request id, records nothing."""
        record = await recording("r", "q")
        with pytest.raises(WrongAnswer):
            record.read("h", 200, bulk(*items))


def granted(key: str, nonce: str = "") -> dict[str, object]:
    source = {"last_value": 5, "nonce": nonce}
    return {"status": 200, "_id": key, "_index": "i", "result": "updated", **VERSION, "get": {"_source": source}}


VERSION = {"_seq_no": 7, "_primary_term": 2}
TOGETHER = [GRANT, GRANT._replace(name="t")]
OF_ANOTHER_ROW = [granted("q"), error(404, MISSING_ROW, "q"), error(403, "any", "q")]


class TestJoined:
    def test_each_update_has_its_outcome(self) -> None:
        """P1: the row with its version, none, or the failure of this update alone."""
        read = REQUESTS.update_rows([*TOGETHER, GRANT._replace(name="u")]).read
        refused = error(403, "security_exception", "u")
        written, missing, failed = read("h", 200, bulk(granted("s"), error(404, MISSING_ROW, "t"), refused))
        assert written == Written({"last_value": 5, "nonce": ""}, 7, 2)
        assert (missing, type(failed)) == (None, StoreRefused)

    @pytest.mark.parametrize("item", OF_ANOTHER_ROW)
    def test_without_nonces_an_item_discredits_all(self, item: dict[str, object]) -> None:
        """P1: an item about another row shows that the answer is that of another request."""
        with pytest.raises(WrongAnswer) as caught:
            REQUESTS.update_rows(TOGETHER).read("h", 200, bulk(granted("s"), item))
        assert not isinstance(caught.value, WrongItems)

    @pytest.mark.parametrize("item", [granted("t", "other"), *OF_ANOTHER_ROW])
    def test_with_nonces_the_others_are_believed(self, item: dict[str, object]) -> None:
        """P1: an item that repeats its nonce is the answer to its update, whatever the others."""
        requests = Requests("idalloc", timeout=40.0)
        requests.opened["idalloc-sequences"] = OpenedIndex("i", "uuid", has_nonce=True)
        request = requests.update_rows(TOGETHER)
        assert request.body is not None
        nonce = json.loads(request.body.splitlines()[1])["script"]["params"]["nonce"]
        with pytest.raises(WrongItems) as caught:
            request.read("h", 200, bulk(granted("s", nonce), item))
        written, wrong = caught.value.outcomes
        assert written == Written({"last_value": 5, "nonce": nonce}, 7, 2)
        assert isinstance(wrong, WrongAnswer)

    def test_one_that_may_be_applied_is_not_sent_again(self) -> None:
        """P1: beside an item whose outcome is unknown, an unknown alias is no error of all."""
        items = error(404, "index_not_found_exception", "s"), error(503, "unavailable_shards_exception", "t")
        outcomes = REQUESTS.update_rows(TOGETHER).read("h", 200, bulk(*items))
        assert [type(outcome) for outcome in outcomes] == [AliasUnknown, StoreOutcomeUnknown]


def test_a_refresh_of_no_shard_is_a_failure() -> None:
    """A refresh that answers 200 without a shard made nothing visible."""
    answer = json.dumps({"_shards": {"total": 1, "successful": 0, "failed": 0}}).encode()
    with pytest.raises(StoreOutcomeUnknown):
        REQUESTS.refresh(SEQUENCES).read("h", 200, answer)
