"""The guides on the Python SDK, SQLAlchemy and CrateDB: each code block runs as written."""

from pathlib import Path

import pytest

from tests.support.cratedb.tables_of_users import table_with_a_row
from tests.support.documents import run_page


@pytest.mark.parametrize("page", ["python-sdk", "sqlalchemy", pytest.param("pandas", marks=pytest.mark.test_long)])
def test_each_guide_runs(page: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each code block of a guide works, and prints what the page shows."""
    run_page(f"docs/guides/{page}.md", tmp_path, subtests)


@pytest.mark.test_long
def test_the_guide_to_auto_increment_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each code block of the guide to CrateDB's keys works, and prints what the page shows."""
    with table_with_a_row("doc.others", 1, tmp_path) as crate:
        run_page("docs/guides/cratedb-auto-increment.md", tmp_path, subtests, ports={4200: crate})
