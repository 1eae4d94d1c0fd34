"""Writes docs/benchmarks.md and its chart from what the last runs left in .build/bench.

python -m tests.load.document    writes them anew, without measuring.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.load import chart

PEERS, GROWTH = Path(".build/bench/peers.json"), Path(".build/bench/growth.json")
DOCUMENT, CHART = Path("docs/benchmarks.md"), Path("docs/benchmarks.svg")
_NOT_RUN = "This part did not run yet.\n"

_HEAD = """\
# How fast, beside what people would use instead

Measured on one machine, by two commands that write this page: `make bench-peers` and `make bench-growth`.
"""

_WHAT = """\
**Calls** are allocations that were asked for one by one. Where the client asks ahead in larger parts, single calls
are not seen: there is no latency, and CPU is that of an id. All contenders took turns, {rounds} rounds of
{seconds:g} s each; a figure is the median of the rounds. All of them have an acknowledged allocation on the disk:
SQLite with `synchronous = FULL`, Redis with `appendonly yes` and `appendfsync always`, PostgreSQL with its
defaults, CrateDB with `translog.durability = REQUEST`, its default.
"""

_UNFAIR = """\
## What was not fair

- {share}
- One machine: there is no network between client and server, which every contender would pay for alike, and which
  makes ranges and `ids()` worth more than they look here.
- An fsync took {fsync_ms:g} ms on this disk (median, 4 kB, {file_system}). What writes for each call (the recipes,
  Redis, PostgreSQL's segment table, `RISING`) is bound by that and does better on a quicker disk; what idalloc
  serves from a lease is not.
- ghz costs CPU, too, and ends at some rate of its own; where `native` comes near that, ghz is what was measured.
  Its latencies include its own.
- The clients differ: ghz in Go, pgbench and redis-benchmark in C, the SDK, the recipe's threads and Redis over a
  socket in Python. Python's own cost is in the client's CPU.
- Redis and PostgreSQL can give blocks as well (`INCRBY orders 1000`, a sequence with `INCREMENT 1000`), and a
  client that counts through them itself has what `ids()` does, without the lease's end, generation and order. The
  segment table shows that way.
- PostgreSQL writes a sequence to its log for every 32nd `nextval` only; the others need no disk.
- Redis as it comes, with `appendfsync everysec` or none, is many times as fast; a power cut can then bring ids back.
- The recipe gives up after five attempts in vain, as the guide has it: those count as calls, but give no id. Its
  turns are of 3 s at least, for the sake of its pauses.
- Shared machines are not quiet. Ratios are of turns in the same round; single figures move from run to run.
"""

_REPEAT = """\
## How to repeat it

```sh
make bench-peers                                   # about 7 minutes
# with a CrateDB that runs, in a schema of its own:
IDALLOC_BENCH_CRATEDB_URL='crate://crate@127.0.0.1:4200/?schema=bench' make bench-peers
make bench-growth                                  # about 5 minutes
```

On Linux. With `ghz` on the PATH it makes the unary calls, otherwise `idalloc bench` does, which costs more than the
servers and so flatters every ratio to the no-op server. Debian's packages `redis-server`, `redis-tools` and
`postgresql` bring the others; what is missing is left out, and said so. Nothing that runs already is touched: all
servers are started on free ports of loopback, with their files in a temporary folder, and ended. `ARGS="--rounds 3
--seconds 1"` makes it shorter.
"""


def write() -> None:
    """Writes the page and the chart from what is there."""
    found, grown = (json.loads(path.read_text()) if path.exists() else None for path in (PEERS, GROWTH))
    parts = [_HEAD]
    if found:
        parts += [_chart(found), peers(found)]
    else:
        parts += ["## Beside others\n", _NOT_RUN]
    parts += ["## Cost as work grows\n", growth(grown) if grown else _NOT_RUN]
    machines = [
        (what, one["machine"]) for what, one in (("Beside others", found), ("Cost as work grows", grown)) if one
    ]
    parts += ["## The machine\n", *(_machine(what, each) for what, each in machines)]
    if machines:
        parts.append(_unfair(machines[0][1]))
    parts.append(_REPEAT)
    DOCUMENT.write_text("\n".join(parts))


def peers(found: dict[str, Any]) -> str:
    """What `make bench-peers` found, as Markdown."""
    shown = [each for each in found["contenders"] if each["rounds"]]
    parts = [
        "## Targets\n",
        _table(("what", "measured", "target", ""), "lrrl", (_target(each) for each in found["targets"])),
        "## Beside others\n",
        _WHAT.format(**found),
        _table(
            ("what", "in flight", "calls/s", "ids/s", "p50, ms", "p99, ms", "CPU of server", "CPU of client", "driver"),
            "lrrrrrrrl",
            (_row(each) for each in shown),
        ),
        "CPU is in µs a call, or in ns an id where no calls are seen. - is not known, or not ours to look at.\n",
        "### Refills\n",
        *(_refills(each) for each in found["refills"]),
        "\n### Idle streams\n",
        *(_idle(transport, kb) for transport, kb in found["idle_stream_kb"].items()),
        "",
    ]
    missing = [
        f"{each['name']}, {each['in_flight']} in flight, in {len(each['failures'])} turns: {each['failures'][-1]}"
        for each in found["contenders"]
        if each["failures"]
    ]
    if missing or found["skipped"]:
        parts += ["### What did not run\n", *(f"- {each}" for each in [*found["skipped"], *missing]), ""]
    return "\n".join(parts)


def growth(found: dict[str, Any]) -> str:
    """What `make bench-growth` found, as Markdown."""
    parts = []
    for part in found["parts"]:
        parts += [f"### {part['title']}\n", part["about"] + "\n"]
        if part["failure"]:
            parts.append(f"This part did not run: {part['failure']}\n")
        if part["rows"]:
            parts.append(_table(part["head"], "r" * len(part["head"]), part["rows"]))
    return "\n".join(parts)


def _chart(found: dict[str, Any]) -> str:
    named = [(_bar(each), each["ids_rate"]) for each in found["contenders"] if each["ids_rate"]]
    CHART.write_text(chart.bars("Ids a second", named))
    return f"![Ids a second, on a logarithmic scale]({CHART.name})\n"


def _bar(each: dict[str, Any]) -> str:
    name = each["name"].partition(" (")[0].replace("`", "")
    told = name.endswith(("threads", "writers", "one by one", "stream_doc_ids", "on the wire", "pipelined 16"))
    return name if told else f"{name}, {each['in_flight']} in flight"


def _table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---:" if each == "r" else "---" for each in align], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _target(row: dict[str, Any]) -> Sequence[str]:
    value, sign = row["value"], ">=" if row["at"] == "least" else "<="
    verdict = {None: "did not run", True: "met", False: "**missed**"}[row["met"]]
    return row["what"], number(value), f"{sign} {number(row['target'])}", verdict


def _row(each: dict[str, Any]) -> Sequence[str]:
    seen = each["sees_calls"]
    return (
        each["name"],
        f"{each['in_flight']}",
        number(each["rate"]) if seen else "-",
        number(each["ids_rate"]),
        number(each["p50"], 1e3),
        number(each["p99"], 1e3),
        *(_cost(each[name], seen) for name in ("server_cost", "client_cost")),
        each["driver"],
    )


def _cost(seconds: float | None, seen: bool) -> str:
    if seconds is None:
        return "-"
    return f"{number(seconds, 1e6)} µs" if seen else f"{number(seconds, 1e9)} ns"


def _refills(each: dict[str, Any]) -> str:
    if each["failure"]:
        return f"- {each['store']}: did not run: {each['failure']}"
    few = "" if each["refills"] >= each["wanted"] else f" Those are fewer refills than the {each['wanted']} wanted."
    return (
        f"- {each['store']}: at {each['rate']:,} calls a second p99 is {number(each['p99_with'], 1e3)} ms over"
        f" {each['refills']:,} refills a turn, {number(each['p99_without'], 1e3)} ms over at most"
        f" {each['writes_without']:,}: {number(each['ratio'])} times.{few}"
    )


def _idle(transport: str, kb: float | str) -> str:
    cost = f"{kb:.1f} kB of the server's memory each" if isinstance(kb, float) else f"did not run: {kb}"
    return f"- {transport}: {cost}"


def _machine(what: str, machine: dict[str, Any]) -> str:
    versions = {"Python": machine["python"]} | machine["packages"] | machine["programs"]
    return (
        f"{what}, {machine['date']}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['kernel']}, {machine['file_system']}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. "
        f"Load before the run: {machine['load_before']}.\n"
    )


def _unfair(machine: dict[str, Any]) -> str:
    share = (
        "The load generator had half of the cores to itself, the servers the other half."
        if machine["own_cores"]
        else f"Client, server and store share {machine['cores']} cores, and each takes from the others. Two workers\n"
        "  cannot show twice the calls then, so their CPU a call is compared."
    )
    return _UNFAIR.format(share=share, **machine)


def number(value: float | None, times: float = 1.0) -> str:
    """A figure with three digits or all before the point; a dash for one that is not known."""
    if value is None:
        return "-"
    value *= times
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    write()
