"""The section of docs/operations/benchmarks-growth.md on many sequences, called in batches."""

from typing import Any

from bench.markdown import number, table, verdict

STEADY, MILLION, BATCH = 10_000, 1_000_000, 1_000
MAX_CPU, MAX_CALL, MAX_MB, MAX_START = 35.0, 0.25, 600.0, 3.0

_ABOUT = """\
{steady:,} sequences have one id a second each, in batches of 1,000: {calls:g} calls a second. After {warm_up:g} s
of that the server is measured for {seconds:g} s; then for {locked:g} s while another process holds the SQLite
file's write lock for 3 s of each 6: a call that waits for the store would take seconds. A million sequences
are stored, and {served:,} of them were used once, in batches, until all are idle; their store is in
memory. CPU is that of one core.
"""


def section(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    found = result["found"]
    is_whole = found["served"] == MILLION
    rows = (
        ("10,000 sequences: CPU, %", number(found["cpu"]), *_at_most(found["cpu"], MAX_CPU)),
        ("refills a second", number(found["refills"]), "", ""),
        ("longest call, ms", number(found["longest"], 1e3), *_at_most(found["longest"], MAX_CALL, 1e3)),
        ("99th percentile, ms", number(found["p99"], 1e3), "", ""),
        (
            "longest call while the store is locked, ms",
            number(found["locked"], 1e3),
            *_at_most(found["locked"], MAX_CALL, 1e3),
        ),
        ("longest call of the warm-up, which creates them, ms", number(found["first"], 1e3), "", ""),
        ("requests without ids", f"{found['failed']:,}", *_at_most(found["failed"], 0)),
        ("memory, MB", number(found["memory"]), "", ""),
        ("a million sequences: start, s", number(found["start"]), *_at_most(found["start"], MAX_START)),
        (
            "memory after their use, MB",
            number(found["idle_memory"]),
            *(_at_most(found["idle_memory"], MAX_MB) if is_whole else ("", "")),
        ),
    )
    about = _ABOUT.format(**result, steady=STEADY, calls=STEADY / BATCH, served=found["served"])
    return "\n".join([about, table(("What", "Measured", "Target", "Result"), "lrrl", rows)])


def _at_most(value: float, target: float, times: float = 1.0) -> tuple[str, str]:
    return f"<= {number(target, times)}", verdict(value <= target)
