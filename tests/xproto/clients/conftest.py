"""The table of the conformance tests, printed at the end of the run."""

import pytest

TABLE = pytest.StashKey[list[str]]()


@pytest.fixture
def table(pytestconfig: pytest.Config) -> list[str]:
    """Lines to print at the end of the run."""
    return pytestconfig.stash.setdefault(TABLE, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(TABLE, []):
        terminalreporter.write_line(line)
