import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import grpc.aio
import pytest
from hypothesis import Phase, find, settings, strategies

from tests.support.opensearch.real import RELEASES, OpenSearchNode, missing

# How to get the tools that tests are skipped without.
TOOLS = {
    "actionlint": "make tools, with Go",
    "helm": "make tools, with Go",
    "prometheus": "apt install prometheus",
    "promtool": "apt install prometheus",
    "systemd-analyze": "apt install systemd",
}

# No test depends on speed.
settings.register_profile("idalloc", deadline=None)
# For `make test`: `make test-long` runs the same tests with all examples.
settings.register_profile("few", deadline=None, max_examples=25)
# For `make mutants`: the same examples each time, and no search for a smaller one.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("idalloc")

# A shell without job control starts background jobs with SIGINT ignored, and the processes under
# test inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# gRPC's queue for asyncio ends with the last object that uses it. If a call of an earlier test is
# still pending then, the garbage collector of some later test waits for ever. With this use the
# queue never ends.
grpc.aio.init_grpc_aio()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector: thousands of tests are made, and none is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        # Makes Hypothesis's generator, to which the collector sees no reference once it is frozen.
        find(strategies.none(), lambda _: True)
        gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with each promise that its docstring begins with: ``P1, P9: …``."""
    if isinstance(item, pytest.Function):
        for owner in filter(None, (item.function, item.cls)):
            named = re.match(r"(P\d+\b[^:]*):", owner.__doc__ or "")
            for first, last in re.findall(r"P(\d+)(?: to P(\d+))?", named[1] if named else ""):
                for number in range(int(first), int(last or first) + 1):
                    item.add_marker(f"P{number}")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # its line is the last
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Print in one line which tools are missing, how many tests need them, and how to get them."""
    yield
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    found = (re.search(r"Skipped: (\S+) is not installed'\)$", reason) for reason in skipped)
    if missing := Counter(each[1] for each in found if each):
        tools = (f"{name} ({count} tests; {TOOLS.get(name, 'see CONTRIBUTING.md')})" for name, count in missing.items())
        terminalreporter.write_line(f"Not installed, so that tests were skipped: {', '.join(sorted(tools))}")


@pytest.fixture(scope="session")
def opensearch_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Start the real OpenSearch of a version once for all tests, and return its HOST:PORT.

    ``IDALLOC_TEST_OPENSEARCH_HOST`` names a running server that is used in place of all of them, by
    one process: some tests block writes in the whole cluster for a while.
    """
    nodes: dict[str, OpenSearchNode] = {}
    with ExitStack() as stack:

        def host(version: str) -> str:
            if running := os.environ.get("IDALLOC_TEST_OPENSEARCH_HOST"):
                workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
                assert workers == 1, f"{workers} processes would change the settings of {running}: run pytest -n 0"
                return running
            if reason := missing(RELEASES[version]):
                pytest.skip(reason)
            if version not in nodes:
                nodes[version] = stack.enter_context(
                    OpenSearchNode(RELEASES[version], tmp_path_factory.mktemp("opensearch"))
                )
            return nodes[version].host

        yield host
