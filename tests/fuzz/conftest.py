import pytest

from tests.fuzz.inputs import EXAMPLES, TRIED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many inputs were tried, and how long that took; nothing under pytest-xdist."""
    if EXAMPLES and TRIED:
        seconds: dict[str, float] = {}
        for reports in terminalreporter.stats.values():
            for report in reports:
                if isinstance(report, pytest.TestReport) and report.when == "call":
                    name = report.nodeid.partition("[")[0]
                    seconds[name] = seconds.get(name, 0.0) + report.duration
        terminalreporter.section("inputs tried")
        for name, tried in TRIED.items():
            terminalreporter.line(f"{name}: {tried:,} in {seconds.get(name, 0):.0f} s")
        terminalreporter.line(f"together {TRIED.total():,} in {sum(seconds.values()):.0f} s")


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> str:
    """The name of the test, under which it counts its inputs."""
    return str(request.node.nodeid.partition("[")[0])
