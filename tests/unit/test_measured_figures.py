"""Figures in the documents are those of the pages of benchmarks."""

import re

from tests.support.paths import ROOT

MEASURED = "".join((ROOT / f"docs/operations/{name}.md").read_text() for name in ("benchmarks", "benchmarks-growth"))
# Numbers with a separator, a point or at least three digits; not those in names, links and dates.
FIGURE = re.compile(r"(?<![\w.,:/#(-])(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\d{3,})(?![\w-])")
# Other numbers of the page on performance: no measurement, or measured apart.
OTHERS = {
    "0.858": "on `grpcio` in a run before",
    "0.854": "the same, a day before",
    "0.875": "on `native` in a run before",
    "0.775": "on `native`, a day before",
    "0.065": "6,555 calls a second of idalloc by 101,488 of Redis",
    "163": "the CPU time of a call, before and after a change, by hand",
    "177": "the same",
    "0.94": "of the calls of the former no-op server, by hand",
    "0.87": "the same before",
    "0.90": "the goal",
    "322,000": "instructions of a call on the no-op server, counted by Valgrind",
    "359,000": "the same on idalloc",
    "15,900": "misses of caches, simulated by Valgrind",
    "17,100": "the same on idalloc",
    "6,900": "misses of caches for data",
    "7,500": "the same on idalloc",
    "430": "misses of the second cache",
    "730": "the same on idalloc",
    "1.010": "a no-op handler in an idalloc server, by hand",
    "1.056": "three changes on `grpcio`, by hand",
    "1.046": "the same on `native`",
    "7.7": "ten functions in a no-op handler, by hand",
    "0.5": "the same again",
    "4,786": "docs/operations/capacity.md",
    "100": "heartbeats of 1,000 nodes",
    "83,600": "simulated, times 1,000 nodes",
    "150,000": "from 4,786 and the writes of a pair",
    "16,700": "the same",
    "3,240": "the same",
    "10,000,000": "sequences of 1,000 nodes",
    "118,000": "`python -m bench.batches`",
    "2,280": "the same with a call each",
    "107": "the first use of a client in a new process, by hand",
}
# Requests over streams, of `make load ARGS="--only streams"`.
STREAMS = {
    *["0.63", "0.73", "0.83", "0.84", "0.85", "0.93", "0.99", "1.5", "1.69", "2.1", "3.8", "1,000", "1,364"],
    *["3,951", "4,927", "6,251", "7,636", "10,839", "10,946", "13,486", "17,113"],
}
# Ratios, and microseconds of a call, of `python -m bench.stages`.
STAGES = {
    *[
        "0.988",
        "0.950",
        "0.978",
        "0.985",
        "0.869",
        "0.880",
        "0.913",
        "0.900",
        "158.5",
        "149.1",
        "150.9",
        "152.8",
        "175.1",
        "167.9",
        "169.5",
    ],
    *["170.8", "0.7", "1.3", "1.0", "0.3", "2.6", "0.9", "3.6", "2.4", "5.9", "4.6", "3.7", "10.7", "7.5", "6.9"],
    *["1.9", "3.2", "8.8", "7.2", "5.8", "4.4"],
}


def test_the_figures_of_the_page_on_performance() -> None:
    """The benchmarks have each figure of the page; update it after a `make bench-…` run."""
    page = (ROOT / "docs/explanation/performance.md").read_text()
    measured = {*FIGURE.findall(MEASURED), *FIGURE.findall((ROOT / "docs/operations/flame-idalloc.svg").read_text())}
    figures = {*FIGURE.findall(page)}
    assert len(figures) > 30
    assert sorted(each for each in figures - OTHERS.keys() - STREAMS - STAGES if each not in measured) == []


def test_the_figure_of_the_guide_to_keys() -> None:
    """The guide to keys has the figure of `ids()` that the benchmarks have."""
    [row] = re.findall(
        r"^\| idalloc grpcio on SQLite: `ids\(\)`, one by one \| 1 \| - \| ([\d,]+) \|", MEASURED, re.MULTILINE
    )
    guide = (ROOT / "docs/guides/choosing-a-key.md").read_text()
    assert f"gave {row} ids a second" in guide
    assert f"{round(int(row.replace(',', '')), -5):,} by `ids()`" in guide
