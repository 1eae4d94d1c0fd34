"""guarantees.md and peers-bugs.md name existing tests, which check the promises they stand for."""

import ast
import re

import pytest

from tests.support.exploration.scenarios import SCENARIOS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
PROMISES = {
    int(number): text for number, text in re.findall(r"^## P(\d+): (.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
}
BUGS = re.split(r"^## ", (ROOT / "docs" / "explanation" / "peers-bugs.md").read_text(), flags=re.MULTILINE)[1:]
NAMED_TEST = r"`(tests/[\w/]+\.py)::(\w+)`"


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
    tests = re.findall(NAMED_TEST, PROMISES[number])
    assert tests
    for file, name in tests:
        assert number in promised(docstrings(file)[name]), f"{file}::{name}"


def test_the_tests_of_lost_stores_exist_and_name_p3() -> None:
    """P3: each cell of the page on lost stores names its test, unless nothing notices the loss."""
    page = (ROOT / "docs" / "operations" / "lost-stores.md").read_text()
    tests = re.findall(rf"^(\d+)\. {NAMED_TEST}$", page, re.MULTILINE)
    table = page.partition("\n| What happened")[2].partition("\n\n")[0]
    cells = [cell for line in table.splitlines()[2:] for cell in line.split("|")[2:-1]]
    assert {number for cell in cells for number in re.findall(r"\[(\d+)\]", cell)} <= {number for number, *_ in tests}
    assert all("[" in cell or "not notice" in cell or cell.strip() == "serves other calls" for cell in cells)
    for _, file, name in tests:
        assert {1, 3} & promised(docstrings(file)[name]), name


@pytest.mark.parametrize("number", [6, 7])
def test_the_limits_of_a_promise_are_listed(number: int) -> None:
    """P6, P7: the page lists the limits; tests cover a restored store, a move, the end in time."""
    limits = PROMISES[number].partition("**Its limits.**")[2]
    assert len(re.findall(r"^- ", limits, re.MULTILINE)) == 6
    assert len(re.findall(NAMED_TEST, limits)) >= 2
    for named in ("restored store", "move", "X Protocol"):
        assert named in limits


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.partition(":")[0])
def test_the_tests_that_find_a_bug_exist_and_name_its_promises(bug: str) -> None:
    """A test of a bug's section names each promise that it links to; all its tests exist."""
    linked = {int(number) for number in re.findall(r"\(guarantees\.md#p(\d+)-", bug)}
    named = [promised(docstrings(file)[name]) for file, name in re.findall(NAMED_TEST, bug)]
    assert linked
    assert linked <= set().union(*named)


@pytest.mark.parametrize("number", [number for number in PROMISES if number != 10])
def test_a_promise_names_its_explored_scenarios(number: int) -> None:
    """Each promise but P10 names exactly the scenarios of the exploration that are for it."""
    named = re.search(r"^\[Explored\].*?: (.*?)\.$", PROMISES[number], re.MULTILINE | re.DOTALL)
    assert named
    assert re.findall(r"`([\w-]+)`", named[1]) == [
        scenario.name for scenario in SCENARIOS.values() if number in scenario.promises
    ]
