"""The guides on the Python SDK, SQLAlchemy and CrateDB: each code block runs as written."""

from pathlib import Path

import pytest

from tests.support.cratedb.tables_of_users import table_with_a_row
from tests.support.documents import run_page


def test_the_sdk_guide_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each code block of the SDK guide works, and prints what the page shows."""
    run_page("docs/guides/python-sdk.md", tmp_path, subtests)


def test_the_sqlalchemy_guide_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each code block of the SQLAlchemy guide works, and prints what the page shows."""
    run_page("docs/guides/sqlalchemy.md", tmp_path, subtests)


@pytest.mark.test_long
def test_the_pandas_guide_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The code blocks of the guide to pandas that need no CrateDB work."""
    run_page("docs/guides/pandas.md", tmp_path, subtests)


@pytest.mark.test_long
def test_the_guide_to_auto_increment_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each code block of the guide to CrateDB's keys works, and prints what the page shows."""
    with table_with_a_row("doc.others", 1, tmp_path) as crate:
        run_page("docs/guides/cratedb-auto-increment.md", tmp_path, subtests, ports={4200: crate})
