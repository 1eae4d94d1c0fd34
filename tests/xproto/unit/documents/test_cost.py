"""A statement ends when its work, its time or its results exceed a limit."""

import pytest

from idalloc_xproto.documents import cost
from idalloc_xproto.documents.changes import Change, Kind, apply_changes
from idalloc_xproto.documents.cost import Budget, count_parts
from idalloc_xproto.documents.criteria import NULL, ArrayOf, Call, Field, Node, ObjectOf, Value
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import (
    ArgumentsTooLarge,
    CallerLeft,
    DocumentTooLarge,
    ResultTooLarge,
    TookTooLong,
    TooMuchWork,
)
from idalloc_xproto.documents.evaluation import Context, Run, json_of
from idalloc_xproto.documents.json_text import Json, dump, load
from idalloc_xproto.documents.selection import Selection

DOCUMENT = Document("a", '{"_id": "a"}')
WHOLE = Field(())


def written(node: Node) -> Run:
    return json_of(node, Context(is_strict=True))


def test_time_counts_without_that_of_the_client() -> None:
    """The time of a statement ends it, but not the time that its client takes to read."""
    now = 0.0
    budget = Budget(clock=lambda: now)
    with budget.paused():
        now += 1_000
    now += cost.MAX_SECONDS
    budget.check()
    now += 0.1
    with pytest.raises(TookTooLong):
        budget.check()


def test_a_statement_ends_when_its_caller_has_left() -> None:
    """No further document is read for a caller that has left."""
    left = False
    budget = Budget(has_left=lambda: left)
    budget.count_read(DOCUMENT, 1)
    left = True
    with pytest.raises(CallerLeft):
        budget.count_read(DOCUMENT, 1)


def test_steps_are_bounded() -> None:
    """Parts of expressions times documents, and the length of documents, are bounded."""
    for document, own in ((DOCUMENT, cost.MAX_STEPS // 4), (Document("a", " " * (16 * cost.MAX_STEPS // 1000)), 1)):
        budget = Budget()
        with pytest.raises(TooMuchWork):
            for _ in range(4_000):
                budget.count_read(document, own)
        assert cost.steps_of_parts([document], own) > own


def test_arguments_count_at_each_use() -> None:
    """The arguments at all uses together are no larger than a message."""
    budget = Budget(max_size=100)
    budget.count_argument(60)
    with pytest.raises(ArgumentsTooLarge):
        budget.count_argument(60)


def test_literals_of_in_are_no_parts() -> None:
    """Texts and numbers of an `in` do not count; objects, arrays and patterns do by size."""
    assert count_parts(Call("in", (WHOLE, *(Value(number) for number in range(50_000))))) == 2
    assert count_parts(Call("like", (WHOLE, Value("x" * 6_400)))) > 100
    assert count_parts(ObjectOf((("a", WHOLE), ("b", WHOLE)))) == 3
    many: list[Json] = list(range(cost.MAX_STEPS_A_DOCUMENT))
    array = Value(many, is_json=True)
    for node in (array, Call("in", (WHOLE, array)), ObjectOf((("a", WHOLE),) * cost.MAX_STEPS_A_DOCUMENT)):
        with pytest.raises(TooMuchWork):
            count_parts(node)


def test_values_of_in_that_are_compared_are_parts() -> None:
    """NULLs of an `in` count, and numbers in a statement that writes: errors come in order."""
    many = cost.MAX_STEPS_A_DOCUMENT
    texts = Call("in", (WHOLE, *(Value(str(number)) for number in range(many))))
    numbers = Call("in", (WHOLE, *map(Value, range(many))))
    assert count_parts(texts, is_strict=True) == 2
    for node, is_strict in ((numbers, True), (Call("in", (WHOLE, *[Value(NULL)] * many)), False)):
        with pytest.raises(TooMuchWork):
            count_parts(node, is_strict=is_strict)


@pytest.mark.parametrize("value", ["x" * 98, [1] * 33, {"k" * 93: 1}, "\N{GRINNING FACE}" * 24 + "xx"])
def test_a_row_is_bounded_to_the_byte(value: Json) -> None:
    """A row with as many bytes as a message is returned; one byte more is refused."""
    size = len(dump(value).encode())
    assert Budget(max_size=size).row_text(value) == dump(value)
    with pytest.raises(ResultTooLarge):
        Budget(max_size=size - 1).row_text(value)


def test_a_change_may_replace_a_large_document() -> None:
    """What a change writes, and the document after it, are each bounded; their sum is not."""
    text = dump({"_id": "a", "n": "x" * 60})
    replaced = apply_changes(
        text, [Change(Kind.SET, (), written(Value({"m": "y" * 60}, is_json=True)))], Budget(max_size=100)
    )
    assert load(replaced) == {"_id": "a", "m": "y" * 60}
    for changes in (
        [Change(Kind.SET, (name,), written(WHOLE)) for name in "bc"],  # both together
        [Change(Kind.SET, ("b",), written(Value("y" * 60)))],  # with what is there
    ):
        with pytest.raises(DocumentTooLarge):
            apply_changes(text, changes, Budget(max_size=100))


MANY = [[1] * 10 for _ in range(10)]


@pytest.mark.parametrize(
    "node",
    [
        Call("==", (Field(("n",)), Field(("n",)))),
        Call("in", (Field(("n",)), ArrayOf((Field(("n",)), Field(("n",)))))),
        Call("in", (Field(("n",)), Value("x"))),
        Call("like", (Field(("n",)), Value("%x"))),
    ],
)
def test_a_statement_ends_within_a_document(node: Node) -> None:
    """Time also ends a statement between comparisons of one document's large values."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += cost.MAX_SECONDS / 4
        return now

    selection = Selection(Call("||", (node, Call("||", (node, node)))), budget=Budget(clock=clock))
    document = Document("a", dump({"_id": "a", "n": MANY}))
    assert selection.predicate is not None
    content = load(document.text)
    with pytest.raises(TookTooLong):
        for _ in range(4):
            selection.predicate(content)
