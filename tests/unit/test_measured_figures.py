"""Figures in the documents are those of docs/operations/benchmarks.md."""

import re

from tests.support.paths import ROOT

MEASURED = (ROOT / "docs/operations/benchmarks.md").read_text()
# Numbers with a separator, a point or at least three digits; not those in names, links and dates.
FIGURE = re.compile(r"(?<![\w.,:/#(-])(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\d{3,})(?![\w-])")
# Other numbers of the page on performance: rounded, measured elsewhere, or no measurement.
OTHERS = {
    "450": "CPU of a call, in rounded µs",
    "5.8": "5.79",
    "500": "the store that was away, by hand",
    "25,000": "the same",
}


def test_the_figures_of_the_page_on_performance() -> None:
    """Each figure of the page is in the benchmarks: after `make bench-peers` or `make bench-growth`, write it anew."""
    page = (ROOT / "docs/explanation/performance.md").read_text()
    figures = {*FIGURE.findall(page)}
    assert len(figures) > 30
    assert sorted(each for each in figures - OTHERS.keys() if each not in FIGURE.findall(MEASURED)) == []


def test_the_figure_of_the_guide_to_keys() -> None:
    """The guide to keys has the figure of `ids()` that the benchmarks have."""
    [row] = re.findall(
        r"^\| idalloc grpcio on SQLite: `ids\(\)`, one by one \| 1 \| - \| ([\d,]+) \|", MEASURED, re.MULTILINE
    )
    guide = (ROOT / "docs/guides/choosing-a-key.md").read_text()
    assert f"gave {row} ids a second" in guide
    assert f"{round(int(row.replace(',', '')), -5):,} by `ids()`" in guide
