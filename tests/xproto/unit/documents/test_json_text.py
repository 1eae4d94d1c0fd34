"""JSON text is read and written as MySQL does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_xproto.documents import json_text
from idalloc_xproto.documents.errors import InvalidJson, KeyTooLong, TooDeep, TooManyValues
from idalloc_xproto.documents.json_text import dump, key_of, parse

TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


class TestParse:
    @pytest.mark.parametrize(
        ("text", "reason", "position"),
        [
            ("", "The document is empty.", 0),
            ("{", "Missing a name for object member.", 1),
            ('{"a":1,}', "Missing a name for object member.", 7),
            ("{'a':1}", "Missing a name for object member.", 1),
            ("not json", "Invalid value.", 1),
            ('{"a":NaN}', "Invalid value.", 5),
            ('{"_id":"own","a":}', "Invalid value.", 17),
            ('\ufeff{"a":1}', "Invalid value.", 0),
            ('{"a":1}x', "The document root must not be followed by other values.", 7),
            ('{"a":1} {"_id":1}', "The document root must not be followed by other values.", 8),
            ('{"a":"x\ty"}', "Invalid encoding in string.", 7),
            ('{"a":1', "Missing a comma or '}' after an object member.", 6),
            ('{"_id":"own"', "Missing a comma or '}' after an object member.", 12),
            ('{"a":1e400}', "Number too big to be stored in double.", 5),
        ],
    )
    def test_errors_are_mysqls(self, text: str, reason: str, position: int) -> None:
        """A text that is not JSON has the reason and the position that MySQL 8.0.31 gave."""
        with pytest.raises(InvalidJson) as raised:
            parse(text)
        assert (raised.value.reason, raised.value.position) == (reason, position)

    def test_depth_is_bounded(self) -> None:
        """100 levels are allowed; more are refused, also far more."""
        assert parse("[" * 100 + "]" * 100)
        for depth in (101, 100_000):
            with pytest.raises(TooDeep):
                parse("[" * depth + "]" * depth)


class TestDump:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("[1.0, 1.10, 1e15, 1e16, 0.1, 1e-5, -0.0, 1E2]", "[1.0, 1.1, 1e15, 1e16, 0.1, 0.00001, -0.0, 100.0]"),
            ("[18446744073709551615, 18446744073709551616]", "[18446744073709551615, 1.8446744073709552e19]"),
            ("[-9223372036854775808, -9223372036854775809]", "[-9223372036854775808, -9.223372036854776e18]"),
            ('{"bb":1,"a":2,"B":3,"é":4,"":6,"a":9}', '{"": 6, "B": 3, "a": 9, "bb": 1, "é": 4}'),
        ],
    )
    def test_texts_are_normalised(self, text: str, expected: str) -> None:
        """Keys are ordered by length and bytes, the last equal key wins, and numbers are short."""
        assert dump(parse(text)) == expected

    @given(VALUES)
    def test_round_trip(self, value: object) -> None:
        """A written value is read again as the same value, and a normalised text stays as it is."""
        text = dump(value)  # type: ignore[arg-type]
        assert dump(parse(text)) == text
        assert json.loads(text) == value


class TestKeys:
    def test_the_key_has_32_bytes(self) -> None:
        """The limit of an _id is in bytes of its text."""
        assert key_of("é" * 16) == "é" * 16
        assert key_of(42) == "42"
        with pytest.raises(KeyTooLong):
            key_of("é" * 17)


@pytest.mark.parametrize("value", ["1", "[]", "{}", '"[,{"', "[1]", '{"a":1}'])
def test_values_of_a_document_are_bounded(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A text with the most values is parsed, with more refused; those in strings do not count."""
    text = f"[{','.join([value] * 10)}]"
    values = 1 + 10 * (1 + (value in ("[1]", '{"a":1}')))
    containers = 1 + 10 * (value[0] in "[{")
    monkeypatch.setattr(json_text, "MAX_VALUES", values)
    monkeypatch.setattr(json_text, "MAX_CONTAINERS", containers)
    assert parse(text) == json.loads(text)
    for limit, most in (("MAX_VALUES", values), ("MAX_CONTAINERS", containers)):
        with monkeypatch.context() as changed, pytest.raises(TooManyValues):
            changed.setattr(json_text, limit, most - 1)
            parse(text)
