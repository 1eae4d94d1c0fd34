"""Pages for callers who may read only some names: they are complete, and bounded in work."""

import pytest

from idalloc_server.domain.administration import paging
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.patterns import Patterns
from tests.support.fake_store import MemoryStore
from tests.unit.server.domain.administration.conftest import Node, new_token

BATCH_ROWS, MAX_ROWS = 4, 12
NAMES = [f"n{number:02}" for number in range(40)]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "SCAN_BATCH_ROWS", BATCH_ROWS)
    monkeypatch.setattr(paging, "MAX_SCANNED_ROWS", MAX_ROWS)


@pytest.fixture
async def filled(node: Node) -> Node:
    for name in NAMES:
        await node.service.create(name, {}, new_token())
    return node


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize(
    "patterns",
    [["*0"], ["*1"], ["*"], ["n0*"], ["n39"], ["zz"], ["n3*5", "n35"], ["n05", "n1*", "n39", "x*"], ["n0", "n00*"], []],
)
async def test_pages_are_complete_and_bounded_in_work(
    filled: Node, store: MemoryStore, patterns: list[str], limit: int
) -> None:
    """All pages together have every visible name, and each reads a bounded number of rows."""
    visible = Patterns(patterns)
    found: list[str] = []
    after, pages = "", 0
    while after or not pages:
        before = len(store.calls_of("list"))
        page, next_after = await filled.service.list("", after, limit, with_deleted=False, visible=visible)
        assert len(store.calls_of("list")) - before <= MAX_ROWS / BATCH_ROWS + len(patterns)
        assert len(page) <= limit
        assert next_after == "" or next_after > after
        found += [summary.row.name for summary in page]
        after, pages = next_after, pages + 1
    assert found == [name for name in NAMES if visible.match(name)]


async def test_a_page_may_be_short(filled: Node, store: MemoryStore) -> None:
    """A page ends early once the limit of scanned rows is reached."""
    page, after = await filled.service.list("", "", 5, with_deleted=False, visible=Patterns(["*05"]))
    assert ([summary.row.name for summary in page], after) == (["n05"], "n05")
    assert len(store.calls_of("list")) == MAX_ROWS / BATCH_ROWS


async def test_an_empty_page_before_the_end_is_rejected(filled: Node, store: MemoryStore) -> None:
    """The token of an empty page would reveal a name, so a longer prefix is required."""
    visible = Patterns(["*39"])
    with pytest.raises(InvalidRequest, match="scanned 12 names and found none") as refused:
        await filled.service.list("", "", 5, with_deleted=False, visible=visible)
    assert refused.value.field == "name_prefix"
    assert len(store.calls_of("list")) == MAX_ROWS / BATCH_ROWS
    page, after = await filled.service.list("n3", "", 5, with_deleted=False, visible=visible)
    assert ([summary.row.name for summary in page], after) == (["n39"], "")
    assert await filled.service.list("", "n39", 5, with_deleted=False, visible=visible) == ([], "")


async def test_the_next_page_starts_after_the_last_name(node: Node) -> None:
    """Pages of a prefix continue after the last name."""
    for name in ("a", "b", "ba", "c"):
        await node.service.create(name, {}, new_token())
    found, after = await node.service.list("b", "", 1, with_deleted=False)
    assert ([summary.row.name for summary in found], after) == (["b"], "b")
    found, after = await node.service.list("b", "b", 1, with_deleted=False)
    assert ([summary.row.name for summary in found], after) == (["ba"], "")
