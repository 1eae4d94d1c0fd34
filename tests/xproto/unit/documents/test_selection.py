"""A selection chooses the same documents, however they are split into pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_xproto.documents import cost
from idalloc_xproto.documents.criteria import Call, Field, Value
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import TooManyToSort
from idalloc_xproto.documents.json_text import dump, load
from idalloc_xproto.documents.selection import Chooser, Selection

N = Field(("n",))


def number_of(document: Document) -> int:
    number = load(document.text)["n"]
    assert isinstance(number, int)
    return number


def chosen(selection: Selection, documents: list[Document], page: int) -> list[Document]:
    chooser = Chooser(selection)
    found: list[Document] = []
    for start in range(0, len(documents), page):
        found += chooser.choose(documents[start : start + page])
        if chooser.is_done:
            break
    return [*found, *chooser.sorted()]


@given(
    numbers=st.lists(st.integers(0, 5), max_size=20),
    page=st.integers(1, 7),
    limit=st.none() | st.integers(0, 20),
    offset=st.integers(0, 20),
    descending=st.none() | st.booleans(),
    least=st.none() | st.integers(0, 5),
)
def test_pages_do_not_change_what_is_chosen(
    numbers: list[int], page: int, limit: int | None, offset: int, descending: bool | None, least: int | None
) -> None:
    """Condition, order, offset and limit apply to all documents, in this sequence."""
    documents = [Document(f"{key:02}", dump({"n": number})) for key, number in enumerate(numbers)]
    expected = [each for each in documents if least is None or number_of(each) >= least]
    if descending is not None:
        expected.sort(key=number_of, reverse=descending)
    expected = expected[offset : None if limit is None else offset + limit]
    selection = Selection(
        None if least is None else Call(">=", (N, Value(least))),
        [] if descending is None else [(N, descending)],
        limit,
        offset,
    )
    assert chosen(selection, documents, page) == expected


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_SORTED_DOCUMENTS", 10), ("MAX_SORTED_TEXT", 10 * (7 + 65)), ("MAX_SORTED_KEYS", 10)]
)
def test_a_sort_ends_beyond_its_limits(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    """A sort of too many documents, values or text is refused; without an order none is."""
    monkeypatch.setattr(cost, limit, value)
    documents = [Document(str(number), '{"n":1}') for number in range(11)]
    assert chosen(Selection(order=[(N, False)]), documents[:10], 4) == documents[:10]
    assert chosen(Selection(), documents, 4) == documents
    with pytest.raises(TooManyToSort):
        chosen(Selection(order=[(N, False)]), documents, 4)
