"""The guides on the Python SDK and SQLAlchemy: each code block runs as written."""

from pathlib import Path

import pytest

from tests.support.documents import run_page


def test_the_sdk_guide_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each code block of the SDK guide works, and prints what the page shows."""
    run_page("docs/guides/python-sdk.md", tmp_path, subtests)


def test_the_sqlalchemy_guide_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each code block of the SQLAlchemy guide works, and prints what the page shows."""
    run_page("docs/guides/sqlalchemy.md", tmp_path, subtests)
