"""Figures in the documents are those of the pages of benchmarks."""

import re

from tests.support.paths import ROOT

MEASURED = "".join((ROOT / f"docs/operations/{name}.md").read_text() for name in ("benchmarks", "benchmarks-growth"))
# Numbers with a separator, a point or at least three digits; not those in names, links and dates.
FIGURE = re.compile(r"(?<![\w.,:/#(-])(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\d{3,})(?![\w-])")
# Other numbers of the page on performance: no measurement, or measured apart.
OTHERS = {
    "0.65": "the lowest of five runs of `make load`",
    "0.77": "their median",
    "0.92": "their highest, and the goal",
    "1.2": "the layer around a call, called in a loop",
    "2.7": "the servicer, called in a loop",
    "4.2": "the whole handler, called in a loop",
    "313": "one call in flight, 20 rounds, by hand",
    "287": "the same on the no-op server",
    "1.09": "their ratio",
    "4,786": "docs/operations/capacity.md",
    "100": "heartbeats of 1,000 nodes",
    "100,000": "simulated, times 1,000 nodes",
    "16,700": "the same",
    "3,240": "the same",
    "10,000,000": "sequences of 1,000 nodes",
    "118,000": "`python -m bench.batches`",
    "2,280": "the same with a call each",
    "107": "the first use of a client in a new process, by hand",
    "593": "a million idle sequences, by hand",
}
# Requests over streams, of `make load ARGS="--only streams"`.
STREAMS = {
    *["0.63", "0.73", "0.83", "0.84", "0.85", "0.93", "0.99", "1.5", "1.69", "2.1", "3.8", "1,000", "1,364"],
    *["3,951", "4,927", "6,251", "7,636", "10,839", "10,946", "13,486", "17,113"],
}


def test_the_figures_of_the_page_on_performance() -> None:
    """The benchmarks have each figure of the page; update it after a `make bench-…` run."""
    page = (ROOT / "docs/explanation/performance.md").read_text()
    measured = {*FIGURE.findall(MEASURED), *FIGURE.findall((ROOT / "docs/operations/flame-idalloc.svg").read_text())}
    figures = {*FIGURE.findall(page)}
    assert len(figures) > 30
    assert sorted(each for each in figures - OTHERS.keys() - STREAMS if each not in measured) == []


def test_the_figure_of_the_guide_to_keys() -> None:
    """The guide to keys has the figure of `ids()` that the benchmarks have."""
    [row] = re.findall(
        r"^\| idalloc grpcio on SQLite: `ids\(\)`, one by one \| 1 \| - \| ([\d,]+) \|", MEASURED, re.MULTILINE
    )
    guide = (ROOT / "docs/guides/choosing-a-key.md").read_text()
    assert f"gave {row} ids a second" in guide
    assert f"{round(int(row.replace(',', '')), -5):,} by `ids()`" in guide
