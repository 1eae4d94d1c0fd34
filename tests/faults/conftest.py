"""Fault scenarios: `make test-long` runs a short form of each, `make faults` the long one.

`make faults` writes docs/operations/fault-tests.md.
"""

import asyncio
import os
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from idalloc_server.domain.clock import SystemClock
from idalloc_server.store.urls import open_store
from tests.support.faults import results_page
from tests.support.faults.issued_ranges import ReservedPort
from tests.support.faults.local_clients import LoggedClients
from tests.support.faults.scenario import Scenario

# Time limits of a scenario, whose processes share few cores.
SHORT_SECONDS = 240
LONG_SECONDS = 900
# One process runs all tests of a release of OpenSearch, also those of its store, so that it starts
# once.
RELEASE = "3.8.0"
ON_OPENSEARCH = pytest.mark.xdist_group(f"opensearch-{RELEASE}")
REAL_OPENSEARCH = pytest.param("opensearch", marks=ON_OPENSEARCH)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the long forms of the fault scenarios")
    parser.addoption("--soak", type=float, metavar="SECONDS", help="how long the soak lasts")
    parser.addoption("--document", type=Path, metavar="FILE", help="write what the scenarios found as Markdown")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    full = config.getoption("--full", False) or config.getoption("--soak", None)
    if not full:  # the short form has one variant of each scenario
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    for item in items:
        if "/faults/test_" in item.nodeid:  # real processes that are killed, paused, filled up and restarted
            item.add_marker(pytest.mark.test_long)
        if item.get_closest_marker("scenario") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS if full else SHORT_SECONDS), append=False)


@pytest.fixture
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scenario]:
    """A scenario, marked with its number and title; its processes end with the test."""
    mark = request.node.get_closest_marker("scenario")
    assert mark, "the test needs @pytest.mark.scenario(number, title)"
    number, title = mark.args
    made = Scenario(tmp_path, full=bool(request.config.getoption("--full", False)))
    try:
        yield made
    finally:
        made.close()
        request.node.user_properties += [
            (results_page.PROPERTY, [number, title, asdict(each)]) for each in made.evidence
        ]


@pytest.fixture
def opensearch_url(opensearch_host: Callable[[str], str]) -> str:
    """The URL of a store with its own indices, created early: that may outlast a short timeout."""
    url = f"opensearch://{opensearch_host(RELEASE)}/?prefix=idalloc-{uuid.uuid4().hex[:12]}"

    async def create() -> None:
        store = open_store(url, SystemClock())
        await store.open()
        await store.close()

    asyncio.run(create())
    return url


@pytest.fixture(params=["sqlite", REAL_OPENSEARCH])
def on_each_store(request: pytest.FixtureRequest, scenario: Scenario) -> None:
    """Run the scenario on SQLite, and on a real OpenSearch."""
    if request.param == "opensearch":
        scenario.store = request.getfixturevalue("opensearch_url")


@pytest.fixture
def rng() -> random.Random:
    """Random delays and choices; a failed test prints the seed for IDALLOC_TEST_SEED."""
    seed = int(os.environ.get("IDALLOC_TEST_SEED") or random.randrange(2**32))
    print(f"IDALLOC_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def ports() -> Iterator[list[ReservedPort]]:
    """Three ports for nodes that restart at the same address."""
    made = [ReservedPort() for _ in range(3)]
    yield made
    for port in made:
        port.close()


@pytest.fixture
def logs(tmp_path: Path) -> LoggedClients:
    return LoggedClients(tmp_path)


class Documented:
    """Updates docs/operations/fault-tests.md after each test: an aborted run keeps its results."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.setdefault(report.nodeid, []).append(report)
        if report.when == "teardown":
            results_page.write(self._file, report.nodeid, self._reports.pop(report.nodeid))


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--document", None)
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Documented(file))
