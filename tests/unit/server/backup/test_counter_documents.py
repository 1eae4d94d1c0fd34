"""Counter documents of Elasticsearch: parsing, and the errors of invalid counters."""

import sys

import pytest

from idalloc_server.backup.counter_documents import read_lines


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"index":{"_id":"orders"}}', b'{"v":41}'],
        [b'{"create":{"_id":"orders"}}', b'{"v":"41"}'],
        [b'{"_index":"x","_id":"orders","_source":{"v":"41"}}'],
    ],
)
def test_each_form_of_a_counter_is_read(lines: list[bytes]) -> None:
    """P1: a sequence continues after its counter, a number or a text, in lines of _bulk or hits."""
    file = read_lines(lines)
    assert [(item.row.name, item.row.last_value) for item in file.items] == [("orders", 41)]
    assert file.problems == []


def test_the_field_of_the_counter_can_be_named() -> None:
    """A document with several fields needs the name of the counter's."""
    lines = [b'{"_id":"orders","_source":{"v":7,"at":1}}']
    assert [item.row.last_value for item in read_lines(lines, "v").items] == [7]
    assert "name one with --counter-field" in read_lines(lines).problems[0].message


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"-2147483608", "is negative (-2147483608): it wrapped"),
        (b"1.5", "must be a whole number, not 1.5"),
        (b'"1.5"', 'must be a whole number, not "1.5"'),
        (b'"many"', 'must be a whole number, not "many"'),
        (b"null", "must be a whole number, not null"),
        (b"true", "must be a whole number, not true"),
        (b"9223372036854775807", "must be at most 9223372036854775806"),
    ],
)
def test_an_unusable_counter_is_refused_by_name(value: bytes, why: str) -> None:
    """P1: a counter that wrapped, has a fraction or is not a number is not imported."""
    file = read_lines([b'{"_id":"orders","_source":{"v":' + value + b"}}"])
    assert file.items == []
    assert file.problems[0].message.startswith("counter 'orders'")
    assert why in file.problems[0].message


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "the file is empty"),
        ([b"{"], "is not a counter"),
        ([b'{"delete":{"_id":"a"}}'], "must be an index or create action"),
        ([b'{"index":{"_id":"a"}}'], "the document after this action is missing"),
        ([b'{"_id":"a","_source":{"v":1}}', b'{"_id":"a","_source":{"v":2}}'], "is in an earlier line already"),
        ([b'{"_id":"a\\u0000","_source":{"v":1}}'], "control characters"),
    ],
)
def test_an_unusable_line_is_refused(lines: list[bytes], why: str) -> None:
    """The error of a line without a counter names the line."""
    assert why in read_lines(lines).problems[0].message


def test_the_work_is_linear_in_the_lines() -> None:
    """The work grows with the lines only, also if each name is in two of them."""

    def work(count: int) -> int:
        lines = [b'{"_id":"n%d","_source":{"v":%d}}' % (number, number) for number in range(count)] * 2
        calls = 0

        def count_call(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count_call)
        try:
            file = read_lines(lines)
        finally:
            sys.setprofile(None)
        assert (len(file.items), len(file.problems)) == (count, count)
        return calls

    assert work(400) < 2.1 * work(200)
