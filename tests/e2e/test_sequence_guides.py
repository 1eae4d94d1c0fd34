"""The guides of sequences and of formats, run as written."""

from pathlib import Path

import pytest

from tests.support.cratedb.tables_of_users import table_with_a_row
from tests.support.documents import run_page
from tests.support.processes import running

pytestmark = [pytest.mark.timeout(600), pytest.mark.test_long]


@pytest.mark.parametrize("page", ["sequences", "formats-and-resets"])
def test_every_command_of_a_guide(page: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command and program of the page succeeds on a server and prints what the page shows."""
    # Short leases: some commands wait until a change is effective.
    with (
        table_with_a_row("doc.orders", 75_000, tmp_path) as crate,
        running(tmp_path, lease_ttl="3s", outage_reserve="1s", store_timeout="1s") as server,
    ):
        ports = {50051: int(server.address.rpartition(":")[2]), 4200: crate}
        run_page(f"docs/guides/{page}.md", tmp_path, subtests, ports=ports)
