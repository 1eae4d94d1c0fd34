"""The runbook's table leads from what an operator sees to a section."""

import re

from tests.support.paths import ROOT

PAGE = (ROOT / "docs/operations/runbook.md").read_text()
TABLE = PAGE.partition("| You see | Section |")[2].partition("\n## ")[0]
SOURCES = [path.read_text() for path in (ROOT / "server").rglob("*.py")]
# Each has words of its own.
NO_SYMPTOM = {"before-you-begin", "the-highest-id-in-use"}


def test_the_table_names_each_section() -> None:
    """Each section is in the table, and each link of the table names one."""
    headings = re.findall(r"^##+ (.*)$", re.sub(r"(?s)```.*?```", "", PAGE), re.MULTILINE)
    sections = re.findall(r"^## (.*)$", re.sub(r"(?s)```.*?```", "", PAGE), re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    links = set(re.findall(r"\(#([\w-]+)\)", PAGE))
    assert links <= {*anchors}
    in_table = set(re.findall(r"\(#([\w-]+)\)", TABLE))
    assert in_table == {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in sections} - NO_SYMPTOM


def test_the_table_names_each_warning_of_the_log() -> None:
    """Each event that the server logs as a warning or an error is in the table."""
    calls = r"_?log\.(?:warning|error|exception|critical)\(\s*\"(\w+)\""
    events = {event for source in SOURCES for event in re.findall(calls, source)}
    assert len(events) > 20
    assert {event for event in events if f"`{event}`" not in TABLE} == set()
