"""The tutorial, run as written."""

from pathlib import Path

import pytest

from tests.support.documents import run_page


@pytest.mark.timeout(600)
@pytest.mark.test_long
def test_every_command_of_the_tutorial(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command and program of docs/tutorial.md succeeds and prints what the page shows."""
    run_page("docs/tutorial.md", tmp_path, subtests)
