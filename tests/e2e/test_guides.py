"""The commands of the guides run as they stand there."""

from pathlib import Path

import pytest

from tests.support.documents import run_page
from tests.support.processes import running

NOT_RUN = {
    "tls": {},
    "access-control": {},
    "verify": {},
    "choosing-a-key": {"--past-table": "it needs a CrateDB"},
    "migration": {},
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_guides_do_what_they_say(name: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command of a guide succeeds, or prints the error that the guide shows."""
    stopped = ["store export"] if name == "verify" else []
    run_page(f"docs/guides/{name}.md", tmp_path, subtests, not_run=NOT_RUN[name], stopped_before=stopped)


def test_deployment_works_on_a_running_server(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The settings files of the guide are valid, and both Python clients reach one of two servers."""
    with running(tmp_path) as server:
        ports = {50051: int(server.address.rpartition(":")[2])}
        not_run = {"docker run": "it needs a container engine"}
        run_page("docs/guides/deployment.md", tmp_path, subtests, not_run=not_run, files=["protos"], ports=ports)
