"""Requests to OpenSearch: paths, parameters, and the answers to ``_bulk``."""

import json

import pytest

from idalloc_server.domain.errors import StoreOutcomeUnknown
from idalloc_server.domain.store.records import NO_FLOOR
from idalloc_server.domain.store.retirement import RETIREMENT
from idalloc_server.store.opensearch.answers import AliasUnknown
from idalloc_server.store.opensearch.indices import SEQUENCES
from idalloc_server.store.opensearch.requests import Hit, Requests

REQUESTS = Requests("idalloc", timeout=40.0)


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
def test_a_name_is_one_segment_of_the_path(name: str, path: str) -> None:
    """A name cannot change the path of a request."""
    assert REQUESTS.get(name).path.partition("?")[0] == f"/idalloc-sequences/_update/{path}"


def test_every_write_needs_an_alias_and_ends_before_its_caller() -> None:
    """P1: no write creates an index, or is applied long after its caller has gone."""
    writes = (
        REQUESTS.grant("s", 1, 1000, NO_FLOOR),
        REQUESTS.give_back("s", 1, (1, 2, 3)),
        REQUESTS.retirement(),
        REQUESTS.record([{"request_id": "r"}]),
        REQUESTS.forget([Hit("r", 1, 1, {})]),
        REQUESTS.claim(1, 2, "me", 3),
    )
    for request in writes:
        assert request.method == "POST"
        assert "?require_alias=true&timeout=36000ms" in request.path


def test_a_tail_is_returned_on_one_version_only() -> None:
    """P1: a compare-and-set is never retried by the cluster."""
    path = REQUESTS.give_back("s", 1, (7, 2, 1)).path
    assert "if_seq_no=7&if_primary_term=2" in path
    assert "retry_on_conflict" not in path


RECORD = REQUESTS.record([{"request_id": "r"}])
RETIRED = (RETIREMENT, "\x1fconfirm")


def bulk(*items: dict[str, object], keys: tuple[str, ...] = ("r", "r2")) -> bytes:
    named = [{"_id": key, **item} for key, item in zip(keys, items, strict=False)]
    return json.dumps({"errors": True, "items": [{"update": item} for item in named]}).encode()


MISSING = {"status": 404, "error": {"type": "document_missing_exception", "reason": "missing"}}
CONFLICT = {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "conflict"}}
NO_INDEX = {"status": 404, "error": {"type": "index_not_found_exception", "reason": "no such index"}}
MADE = {"status": 201, "get": {"_source": {"name": "s"}}}


class TestBulk:
    def test_a_failed_item_of_a_record_is_missing(self) -> None:
        """P7: whether a failed item was recorded is unknown; the others are known."""
        two = REQUESTS.record([{"request_id": "r"}, {"request_id": "r2"}])
        assert two.read("h", 200, bulk(MADE, CONFLICT)) == [{"name": "s"}, None]

    def test_a_missing_alias_is_refused(self) -> None:
        """STORE_REFUSED: ``_bulk`` answers 200 for a missing alias, perhaps before the cluster has its state."""
        with pytest.raises(AliasUnknown):
            RECORD.read("h", 200, bulk(NO_INDEX))

    def test_a_confirmed_missing_retirement_is_none(self) -> None:
        """P1: the second write confirms that the store is not retired."""
        answer = bulk(MISSING, {"status": 200}, keys=RETIRED)
        assert REQUESTS.retirement().read("h", 200, answer)[0] is None

    @pytest.mark.parametrize("items", [(CONFLICT, {"status": 200}), (MISSING, CONFLICT)])
    def test_an_unconfirmed_retirement_is_unknown(self, items: tuple[dict[str, object], ...]) -> None:
        """P1: without both writes nothing is known of a retirement."""
        with pytest.raises(StoreOutcomeUnknown):
            REQUESTS.retirement().read("h", 200, bulk(*items, keys=RETIRED))

    @pytest.mark.parametrize(
        "answer",
        [
            bulk(),
            bulk(MADE, MADE),
            bulk(MADE, keys=("other",)),
            bulk({"get": {"_source": {}}}),
            b'{"items": ["r"]}',
            b'{"items": [{}]}',
            b'{"items": {"r": 1}}',
            b'{"items": [{"update": "r"}]}',
            b'{"items": [{"update": {"_id": "r", "status": 200, "get": {"_source": 5}}}]}',
        ],
    )
    def test_an_answer_to_other_items_is_unknown(self, answer: bytes) -> None:
        """P7: an answer with fewer items, or those of another request, says nothing of this one."""
        with pytest.raises(StoreOutcomeUnknown, match="; check what answers"):
            RECORD.read("h", 200, answer)


def test_a_refresh_of_no_shard_is_a_failure() -> None:
    """A refresh that answers 200 without a shard made nothing visible."""
    answer = json.dumps({"_shards": {"total": 1, "successful": 0, "failed": 0}}).encode()
    with pytest.raises(StoreOutcomeUnknown):
        REQUESTS.refresh(SEQUENCES).read("h", 200, answer)
