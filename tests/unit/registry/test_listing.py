"""Lists for callers who may see some names only: how much is read for a page, and that none is left out."""

import pytest

from idalloc_server.domain import listing
from idalloc_server.domain.access import Patterns
from tests.fakes import MemoryStore
from tests.unit.registry.conftest import Node, new

AT_ONCE, READS = 4, 3
NAMES = [f"n{number:02}" for number in range(40)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "ROWS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(listing, "READS_AT_MOST", READS)


@pytest.fixture
async def filled(node: Node) -> Node:
    for name in NAMES:
        await node.registry.create(name, {}, new())
    return node


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("pattern", ["*39", "*0", "*1", "*x*", "*", "n0*", "n3*5"])
async def test_a_page_is_read_in_few_steps_and_all_pages_have_all(
    filled: Node, store: MemoryStore, pattern: str, most: int
) -> None:
    shows = Patterns([pattern])
    found: list[str] = []
    after, pages = "", 0
    while after or not pages:
        before = len(store.calls_of("list"))
        page, goes_on = await filled.registry.list("", after, most, deleted=False, shows=shows)
        reads = len(store.calls_of("list")) - before
        assert reads <= READS or len(page) <= 1  # it looks on until there is something to go on behind
        assert len(page) <= most
        assert goes_on == "" or goes_on > after
        found += [shown.row.name for shown in page]
        after, pages = goes_on, pages + 1
    assert found == [name for name in NAMES if shows.match(name)]


async def test_a_page_may_be_short_and_is_empty_at_the_end_only(filled: Node, store: MemoryStore) -> None:
    page, after = await filled.registry.list("", "", 5, deleted=False, shows=Patterns(["*05"]))
    assert ([shown.row.name for shown in page], after) == (["n05"], "n05")
    assert len(store.calls_of("list")) == READS
    page, after = await filled.registry.list("", "", 5, deleted=False, shows=Patterns(["*39"]))
    assert ([shown.row.name for shown in page], after) == (["n39"], "n39")
    assert await filled.registry.list("", "n39", 5, deleted=False, shows=Patterns(["*39"])) == ([], "")
