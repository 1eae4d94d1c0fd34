"""Criteria select documents as MySQL does."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_xproto.documents.criteria import ID, NULL, Call, Field, Node, Null, Value, keys_of
from idalloc_xproto.documents.evaluation import Context, compile_node, condition_of
from idalloc_xproto.documents.json_text import Json, dump

V = Field(("v",))
# MySQL's recorded collection of mixed types (scenario find/sort_mixed).
MIXED: dict[str, Json] = {
    "b1": 2, "b2": 10, "b3": "10", "b4": "a", "b5": None, "b7": True, "b8": [1], "b9": {"a": 1}, "ba": 1.5, "bb": "B",
    "bc": False,
}  # fmt: skip


def selected(node: Node) -> set[str]:
    documents: dict[str, Json] = {key: {"_id": key, "v": value} for key, value in MIXED.items()}
    documents["b6"] = {"_id": "b6"}
    return {key for key, each in documents.items() if condition_of(node)(each) is True}


class TestMixedTypes:
    @pytest.mark.parametrize(
        ("node", "expected"),
        [
            (Call(">", (V, Value(1))), "b1 b2 b3 b4 b7 b8 b9 ba bb bc"),
            (Call(">", (V, Value("A"))), "b4 b7 b8 b9 bb bc"),
            (Call("<", (V, Value("a"))), "b1 b2 b3 b5 ba bb"),
            (Call("==", (V, Value(True))), "b7"),
            (Call("in", (V, Value(2), Value("a"))), "b1 b4"),
            (V, "b1 b2 b3 b4 b5 b7 b8 b9 ba bb bc"),
            (Call("is", (V, Value(NULL))), "b6"),
            (Call("==", (V, Value(NULL))), ""),
        ],
    )
    def test_as_recorded(self, node: Node, expected: str) -> None:
        """Values of mixed types compare as MySQL 8.0.31 compared them."""
        assert selected(node) == set(expected.split())


class TestKeys:
    def test_keys_are_found_in_conditions(self) -> None:
        """A condition that names keys reads by key, also inside of `and`; any other scans."""
        one = Call("==", (ID, Value("a")))
        some = Call("in", (ID, Value("a"), Value("b")))
        assert keys_of(Call("==", (Value("a"), ID))) == frozenset({"a"})
        assert keys_of(Call("&&", (some, V))) == frozenset({"a", "b"})
        assert keys_of(Call("&&", (some, one))) == frozenset({"a"})
        assert keys_of(Call("||", (one, one))) is None
        assert keys_of(Call("==", (ID, Value(42)))) is None


_VALUES: st.SearchStrategy[Json] = st.sampled_from([0, 1, 1.0, 2**63, 0.5, "", "a", "1", True, False, None, [1]])
_OTHERS: st.SearchStrategy[list[Json | Null]] = st.lists(
    st.sampled_from([0, 1, 2**63, "", "a", "1", True, False, NULL]), min_size=2, max_size=5
)


class TestIn:
    @given(st.sampled_from([V, ID, Field(("missing",))]), _VALUES, _OTHERS)
    def test_in_is_equal_to_one_of(self, tested: Node, value: Json, others: list[Json | Null]) -> None:
        """`in` with any mixture of values is as `in` with each of them, joined by `or`."""
        document: Json = {"_id": value, "v": value}
        each: Node = Call("in", (tested, Value(others[0])))
        for other in others[1:]:
            each = Call("||", (each, Call("in", (tested, Value(other)))))
        whole = compile_node(Call("in", (tested, *map(Value, others))), Context())
        assert whole.run(document) is compile_node(each, Context()).run(document)


def test_nested_comparisons_are_compiled_once() -> None:
    """A deeply nested condition is compiled in time that grows only with its length."""
    node: Node = Call("==", (V, Value("a")))
    for _ in range(100):
        node = Call("==", (node, Value(1)))
    assert condition_of(node)({"v": "a"}) is True


class TestAgainstSqlite:
    @given(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(-5, 5), st.integers(-5, 5) | st.none())
    def test_numbers_compare_equally(self, operator: str, left: int, right: int | None) -> None:
        """Numbers and missing fields compare as SQLite's JSON functions compare them."""
        document: dict[str, Json] = {"v": left} if right is None else {"v": left, "w": right}
        sql = f"SELECT json_extract(?1, '$.v') {operator} json_extract(?1, '$.w')"
        with closing(sqlite3.connect(":memory:")) as db:
            expected = db.execute(sql, (dump(document),)).fetchone()[0]
        holds = condition_of(Call(operator, (V, Field(("w",)))))(document) is True
        assert holds is (expected == 1)
