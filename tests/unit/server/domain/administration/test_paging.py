"""Lists for callers who may see some names only: how much is read for a page, and that none is left out."""

import pytest

from idalloc_server.domain.administration import paging
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.patterns import Patterns
from tests.support.fake_store import MemoryStore
from tests.unit.server.domain.administration.conftest import Node, new

AT_ONCE, AT_MOST = 4, 12
NAMES = [f"n{number:02}" for number in range(40)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "ROWS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(paging, "ROWS_AT_MOST", AT_MOST)


@pytest.fixture
async def filled(node: Node) -> Node:
    for name in NAMES:
        await node.registry.create(name, {}, new())
    return node


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize(
    "patterns",
    [["*0"], ["*1"], ["*"], ["n0*"], ["n39"], ["zz"], ["n3*5", "n35"], ["n05", "n1*", "n39", "x*"], ["n0", "n00*"], []],
)
async def test_a_page_is_read_in_few_steps_and_all_pages_have_all(
    filled: Node, store: MemoryStore, patterns: list[str], most: int
) -> None:
    shows = Patterns(patterns)
    found: list[str] = []
    after, pages = "", 0
    while after or not pages:
        before = len(store.calls_of("list"))
        page, goes_on = await filled.registry.list("", after, most, deleted=False, shows=shows)
        assert len(store.calls_of("list")) - before <= AT_MOST / AT_ONCE + len(patterns)
        assert len(page) <= most
        assert goes_on == "" or goes_on > after
        found += [shown.row.name for shown in page]
        after, pages = goes_on, pages + 1
    assert found == [name for name in NAMES if shows.match(name)]


async def test_a_page_may_be_short(filled: Node, store: MemoryStore) -> None:
    page, after = await filled.registry.list("", "", 5, deleted=False, shows=Patterns(["*05"]))
    assert ([shown.row.name for shown in page], after) == (["n05"], "n05")
    assert len(store.calls_of("list")) == AT_MOST / AT_ONCE


async def test_a_page_without_a_name_to_go_on_behind_is_refused(filled: Node, store: MemoryStore) -> None:
    """A reader of few among many names causes bounded work, and learns no name that it may not see."""
    shows = Patterns(["*39"])
    with pytest.raises(InvalidRequest, match="looked through 12 names and found none") as refused:
        await filled.registry.list("", "", 5, deleted=False, shows=shows)
    assert refused.value.field == "name_prefix"
    assert len(store.calls_of("list")) == AT_MOST / AT_ONCE
    page, after = await filled.registry.list("n3", "", 5, deleted=False, shows=shows)
    assert ([shown.row.name for shown in page], after) == (["n39"], "")
    assert await filled.registry.list("", "n39", 5, deleted=False, shows=shows) == ([], "")
