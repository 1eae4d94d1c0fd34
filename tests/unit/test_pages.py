"""A test runs each command block of README.md, guides and examples, or a list has the reason."""

import re
from pathlib import Path

import pytest

from scripts.reference import pages
from tests.support.documents import Block, blocks
from tests.support.pages import BY_HEADING, NOT_RUN, WHOLE
from tests.support.paths import ROOT

# Languages of blocks that are data or output: nothing in them can be run.
DATA = {"ini", "json", "text", "toml", "yaml"}
GUIDES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/guides").glob("*.md"))]
EXAMPLES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "examples").glob("*/README.md"))]
PAGES = sorted({"README.md", *GUIDES, *EXAMPLES, *WHOLE, *BY_HEADING})


def read(name: str) -> str:
    return pages.read(ROOT / name)


def command_blocks(page: str) -> list[Block]:
    """Return the blocks of a page but data and output."""
    return [each for each in blocks(read(page)) if each.is_run or each.language not in DATA]


def unaccounted(page: str) -> list[str]:
    """Return the blocks that no test runs and that are not in the list."""
    sources = "".join(read(test) for test in BY_HEADING.get(page, ()))
    return [
        str(each)
        for each in command_blocks(page)
        if not each.first_line.startswith((*NOT_RUN.get(page, {}),))
        and not (each.is_run and (page in WHOLE or f'"{each.heading}"' in sources))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_each_command_block_is_run_or_listed(page: str) -> None:
    """A test runs the block, or the list has its page and first line."""
    assert command_blocks(page)
    assert unaccounted(page) == []
    assert [str(each) for each in blocks(read(page)) if each.language == "text" and each.text.startswith("$ ")] == []


@pytest.mark.parametrize("page", NOT_RUN)
def test_the_list_names_blocks_with_reasons(page: str) -> None:
    """Each line of the list begins a command block of its page; each test in a reason exists."""
    lines = [each.first_line for each in command_blocks(page)]
    assert [start for start in NOT_RUN[page] if not any(line.startswith(start) for line in lines)] == []
    assert all(NOT_RUN[page].values())
    named = re.findall(r"tests/[\w/]+\.py", " ".join(NOT_RUN[page].values()))
    assert [test for test in named if not (ROOT / test).exists()] == []


@pytest.mark.parametrize(("page", "test"), WHOLE.items())
def test_a_page_is_in_the_test_that_runs_it(page: str, test: str) -> None:
    """The named test has the page among those that it runs."""
    assert "run_page(" in read(test)
    assert page in read(test) or f'"{Path(page).stem}"' in read(test)
