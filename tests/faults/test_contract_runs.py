"""The contract of the stores on real servers, three times in a row."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.cratedb.cluster import URL
from tests.support.faults.scenario import Evidence, Scenario
from tests.support.opensearch.real import RELEASES, missing
from tests.support.paths import ROOT

RUNS = 3
SERVERS = ("cratedb", *(f"opensearch-{version}" for version in RELEASES))


@pytest.mark.long
@pytest.mark.scenario(14, "the contract of the stores on a real server, with mixed-up answers, rollovers and races")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("server", SERVERS)
def test_the_contract_holds_three_times_in_a_row(scenario: Scenario, server: str) -> None:
    """P1 to P7, F7: every test of the stores passes on the real server, in three runs in a row."""
    if server == "cratedb" and not URL:
        pytest.skip("IDALLOC_TEST_CRATEDB_URL is not set: a real CrateDB is not tested")
    if server != "cratedb" and (reason := missing(RELEASES[server.removeprefix("opensearch-")])):
        pytest.skip(reason)
    counts = []
    for _ in range(RUNS):
        command = [sys.executable, "-m", "pytest", "tests/store", "-k", server, "-q", "-n", "2"]
        if server == "cratedb":
            command += ["-m", "cratedb"]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
        found = re.search(r"(\d+) passed", done.stdout)
        assert found, done.stdout[-4000:]
        counts.append(found[1])
    scenario.evidence.append(Evidence(server, 0, 0, 0, 0, 0, 0.0, f"tests passed in each run: {', '.join(counts)}"))
