"""The guides of sequences and of formats, run as they stand there."""

from pathlib import Path

import pytest

from tests.support.documents import run_page
from tests.support.processes import running

pytestmark = [pytest.mark.timeout(600), pytest.mark.test_long]


@pytest.mark.parametrize(
    ("page", "not_run"),
    [
        ("sequences", {"crate://": "needs CrateDB"}),
        ("formats-and-resets", {}),
    ],
)
def test_every_command_of_a_guide(
    page: str, not_run: dict[str, str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Each command and program of the page succeeds on a running server and prints what the page shows."""
    # Short leases: some commands wait until a change is effective.
    with running(tmp_path, lease_ttl="3s", outage_reserve="1s", store_timeout="1s") as server:
        port = int(server.address.rpartition(":")[2])
        run_page(f"docs/guides/{page}.md", tmp_path, subtests, not_run=not_run, ports={50051: port})
