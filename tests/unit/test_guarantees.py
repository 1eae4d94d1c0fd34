"""docs/explanation/guarantees.md names tests that exist and check the promise they are named for."""

import ast
import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
PROMISES = {
    int(number): text for number, text in re.findall(r"^## P(\d+): (.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
}


def docstrings(file: str) -> dict[str, str]:
    """Return the docstrings of a file's tests, by name."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {test.name: ast.get_docstring(test) or "" for test in tests}


def promised(docstring: str) -> set[int]:
    """Return the numbers of the promises that a docstring names, such as ``P1 to P7, P9: …``."""
    named = docstring.partition(":")[0]
    ranges = [range(int(first), int(last or first) + 1) for first, last in re.findall(r"P(\d+)(?: to P(\d+))?", named)]
    return {number for each in ranges for number in each}


def test_every_promise_is_on_the_page() -> None:
    """The page explains P1 to P10, and its table links to each."""
    assert [*PROMISES] == [*range(1, 11)]
    assert [int(number) for number in re.findall(r"^\| \[P(\d+)\]", PAGE, re.MULTILINE)] == [*PROMISES]


@pytest.mark.parametrize("number", PROMISES)
def test_the_tests_of_a_promise_exist_and_name_it(number: int) -> None:
    """Each test that the page names for a promise exists, and its docstring names the promise."""
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PROMISES[number])
    assert tests
    for file, name in tests:
        assert number in promised(docstrings(file)[name]), f"{file}::{name}"
