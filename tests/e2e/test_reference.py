"""The commands of docs/reference/ run as written."""

from pathlib import Path

import pytest

from tests.support.documents import run_page


@pytest.mark.test_long
@pytest.mark.timeout(600)  # some 25 commands, each a process
def test_the_examples_of_all_commands_run(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each example of docs/reference/cli.md succeeds, in the order of the page."""
    run_page("docs/reference/cli.md", tmp_path, subtests)
