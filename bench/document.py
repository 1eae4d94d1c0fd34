"""Write docs/operations/benchmarks.md and its chart from the last results in .build/bench.

python -m bench.document    writes them without measuring.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import added_documents, faults_table, first_seconds_table
from bench.markdown import number, table, verdict
from bench.questions import QUESTIONS, draw

PEERS, GROWTH = Path(".build/bench/peers.json"), Path(".build/bench/growth.json")
OPENSEARCH, FAULTS = Path(".build/bench/opensearch.json"), Path(".build/bench/faults.json")
XPROTO, FIRST_SECONDS = Path(".build/bench/xproto.json"), Path(".build/bench/first_seconds.json")
DOCUMENT = Path("docs/operations/benchmarks.md")
_CHARTS_TITLE, _TARGETS_TITLE = "## Charts\n", "## Targets\n"
_PEERS_TITLE, _GROWTH_TITLE = "## idalloc beside the alternatives\n", "## Cost as work grows\n"
_MACHINE_TITLE = "## The machine\n"
_UNFAIR_TITLE = "## What was not fair\n"
_COUNTER_DOCUMENT_TITLE = "## The counter document of OpenSearch\n"
_NOT_RUN = "This part did not run yet.\n"

_HEAD = """\
# Benchmarks

This page compares idalloc with Redis, PostgreSQL, etcd and the recipes for CrateDB and OpenSearch on one machine. It
shows how long calls take while the store fails, and what grows with sequences, nodes and connections. It also compares
the X Protocol's port with MySQL. Five commands write it on your machine: `make bench-peers`, `make bench-opensearch`,
`make bench-faults`, `make bench-growth` and `make bench-xproto`.
"""

_WHAT = """\
A **call** is one request that allocates. A client that prefetches ids makes no such calls: it has no latency,
and its CPU is given per id. All contenders took turns, {rounds} rounds of {seconds:g} s each; a figure is the median of
the rounds. All contenders write an acknowledged allocation to disk: SQLite with `synchronous = FULL`, Redis with
`appendonly yes` and `appendfsync always`, PostgreSQL with its defaults, CrateDB with
`translog.durability = REQUEST`, its default. etcd and OpenSearch have their defaults, which write to disk, too.
"""

_COUNTER_DOCUMENT = """\
The recipe of OpenSearch's users is one scripted `_update` of a counter document a call, with `upsert` and
`retry_on_conflict=10`. A call that loses all its tries answers 409 and has no id. idalloc uses the same node as its
store. All took turns, {rounds} rounds of {seconds:g} s each; a figure is the median of the rounds.
"""

_COUNTER_DOCUMENT_UNFAIR = """\
What was not fair: the recipe writes to OpenSearch on each call, idalloc only for a new lease, so ids of a lease that
a crash loses are burned. `ids()` makes no calls of its own, so it has no latency. The callers of the recipe are
threads of one Python process, which limits both sides. OpenSearch ran with 256 MB of heap and the JIT's first tier, as
in the tests; its own speed is higher with more of both.
"""

_UNFAIR = """\
## What was not fair

These differences favour one side or the other. Read the figures with them in mind.

- {share}
- One machine: the network between client and server, missing here, would cost all contenders the same per call, which
  favours ranges and `ids()`.
- An fsync took {fsync_ms:g} ms on this disk (median, 4 kB, {file_system}). Contenders that write on each call (the
  recipes, Redis, PostgreSQL's segment table, `RISING`) are limited by it and gain from a faster disk. Calls that
  idalloc serves from a lease are not.
- ghz uses CPU, too, and has a maximum rate; near that rate the figures of `native` measure ghz. Its latencies include
  its own time.
- The clients differ: ghz in Go, pgbench and redis-benchmark in C, the SDK, the recipe's threads and Redis over a
  socket in Python. The client's CPU includes the cost of Python.
- Redis and PostgreSQL can allocate blocks as well (`INCRBY orders 1000`, a sequence with `INCREMENT 1000`). A client
  that counts through a block has what `ids()` does, without expiry, generation and order. The segment table measures
  this approach.
- PostgreSQL writes a sequence to its log for every 32nd `nextval` only; the others need no disk.
- etcd has no increment: the counter reads its value and compares it in a transaction. The client uses the JSON
  gateway, which costs more than gRPC. With several clients most transactions find another value, and repeat.
- OpenSearch ran with 256 MB of heap, see above; its recipe has 64 callers.
- Redis by default, with `appendfsync everysec` or none, is many times as fast; a power cut can then repeat ids.
- The recipe fails after five unsuccessful attempts, as in the guide; such a call counts without an id. Its turns take
  3 s or more, because of its pauses.
- Other load on a shared machine changes single figures from run to run. Ratios compare turns of the same round.
"""

_REPEAT = """\
## How to repeat them

```sh
make bench-peers                                   # about 7 minutes
# with a running CrateDB, in a separate schema:
IDALLOC_BENCH_CRATEDB_URL='crate://crate@127.0.0.1:4200/?schema=bench' make bench-peers
make bench-opensearch                              # about 2 minutes
make bench-growth                                  # about 7 minutes
make bench-faults                                  # about 6 minutes for each store, then 13 minutes
python -m bench.first_seconds --outage-reserve 10 --used 5   # a short form of its second part
make bench-xproto                                  # about 2 minutes
```

They need Linux. `ghz` makes the unary calls if it is on the PATH. Otherwise `idalloc bench` does, which uses more CPU
than the servers and so improves every ratio to the no-op server. Debian's packages `redis-server`, `redis-tools`,
`postgresql` and `etcd-server` provide the others, and Go builds the no-op server in Go; the page lists missing ones.
Running servers are not touched: all servers start on free ports of loopback, with their files in a temporary folder,
and are stopped at the end. `ARGS="--rounds 3 --seconds 1"` makes it shorter. `make bench-faults` needs
`IDALLOC_TEST_CRATEDB_URL` and `IDALLOC_TEST_CRATEDB_HARM` for CrateDB: its hosts, and a command that pauses,
resumes, kills and starts one of them (`tests/support/cratedb/cluster.py`). `make bench-xproto` needs Maven, which
fetches MySQL, and Debian's `libaio1` and `libnuma1`.
"""


def write() -> None:
    """Write the page and the charts; parts without results in .build/bench stay on the page."""
    results = {
        path: json.loads(path.read_text())
        for path in (PEERS, OPENSEARCH, FAULTS, FIRST_SECONDS, GROWTH, XPROTO)
        if path.exists()
    }
    old = _sections(DOCUMENT.read_text()) if DOCUMENT.exists() else {}
    parts = [_HEAD]
    if PEERS in results:
        parts.append(charts(results[PEERS]))
        parts.append(peers(results[PEERS]))
    else:
        parts += [old[title] for title in (_CHARTS_TITLE, _TARGETS_TITLE) if title in old]
        parts.append(_kept(old, _PEERS_TITLE))
    for path, title, section in (
        (OPENSEARCH, _COUNTER_DOCUMENT_TITLE, counter_document),
        (FAULTS, faults_table.TITLE, faults_table.section),
        (FIRST_SECONDS, first_seconds_table.TITLE, first_seconds_table.section),
        (GROWTH, _GROWTH_TITLE, growth),
        (XPROTO, added_documents.TITLE, added_documents.section),
    ):
        parts.append(section(results[path]) if path in results else _kept(old, title))
    parts += _machines(results, old)
    if PEERS in results or _UNFAIR_TITLE not in old:
        parts += [_unfair(each["machine"]) for each in list(results.values())[:1]]
    else:
        parts.append(old[_UNFAIR_TITLE])
    parts.append(_REPEAT)
    DOCUMENT.write_text("\n".join(f"{each.rstrip()}\n" for each in parts))


def _machines(results: dict[Path, dict[str, Any]], old: dict[str, str]) -> Iterator[str]:
    """Yield the machine of each part; the line of a part that did not run now is kept."""
    yield _MACHINE_TITLE
    before = old.get(_MACHINE_TITLE, "").splitlines()
    for path, what in (
        (PEERS, "idalloc beside the alternatives"),
        (OPENSEARCH, "The counter document of OpenSearch"),
        (FAULTS, "While the store fails"),
        (FIRST_SECONDS, "While the store fails: from the first seconds"),
        (GROWTH, "Cost as work grows"),
        (XPROTO, "Documents beside MySQL"),
    ):
        if path in results:
            yield _machine(what, results[path]["machine"])
        else:
            yield from (each for each in before if each.startswith(f"{what}, "))


def _sections(page: str) -> dict[str, str]:
    """Return the sections of a page by their titles, each with its title."""
    found = (f"## {each.rstrip()}\n" for each in f"\n{page}".split("\n## ")[1:])
    return {each.partition("\n")[0] + "\n": each for each in found}


def _kept(old: dict[str, str], title: str) -> str:
    return old.get(title, f"{title}\n{_NOT_RUN}")


def charts(result: dict[str, Any]) -> str:
    """Write the charts, and return them as Markdown: one for each question."""
    parts = [_CHARTS_TITLE]
    for each in QUESTIONS:
        if drawn := draw(each, result):
            DOCUMENT.with_name(each.file).write_text(drawn)
            parts.append(f"### {each.title}\n\n![{each.axis}, on a logarithmic scale]({each.file})\n\n{each.about}\n")
    return "\n".join(parts)


def peers(result: dict[str, Any]) -> str:
    """Return the results of `make bench-peers` as Markdown."""
    shown = [each for each in result["contenders"] if each["rounds"]]
    parts = [
        _TARGETS_TITLE,
        table(("What", "Measured", "Target", "Result"), "lrrl", (_target(each) for each in result["targets"])),
        _PEERS_TITLE,
        _WHAT.format(**result),
        table(
            ("What", "In flight", "Calls/s", "Ids/s", "p50, ms", "p99, ms", "CPU of server", "CPU of client", "Driver"),
            "lrrrrrrrl",
            (_row(each) for each in shown),
        ),
        "CPU is in µs a call, or in ns an id where there are no calls. A dash means unknown or not measured.\n",
        "### Refills\n",
        *(_refills(each) for each in result["refills"]),
        "\n### Idle streams\n",
        *(_idle(transport, kb) for transport, kb in result["idle_stream_kb"].items()),
        "",
    ]
    missing = [
        f"{each['name']}, {each['in_flight']} in flight, in {len(each['failures'])} turns: {each['failures'][-1]}"
        for each in result["contenders"]
        if each["failures"]
    ]
    if missing or result["skipped"]:
        parts += ["### What did not run\n", *(f"- {each}" for each in [*result["skipped"], *missing]), ""]
    return "\n".join(parts)


def counter_document(result: dict[str, Any]) -> str:
    """Return the results of `make bench-opensearch` as Markdown."""
    shown = [each for each in result["contenders"] if each["rounds"]]
    rows = [(*_row(each)[:6], "-" if each["refused"] is None else f"{each['refused']:.1%}") for each in shown]
    found = [f"- {each['what']}: {number(each['value'])} times the ids/s" for each in result["ratios"]]
    first, target = result["ratios"][0]["value"], result["target"]
    met = None if first is None else first >= target
    failures = [f"- {each['name']} failed: {each['failures'][-1]}" for each in result["contenders"] if each["failures"]]
    return "\n".join(
        [
            _COUNTER_DOCUMENT_TITLE,
            _COUNTER_DOCUMENT.format(**result),
            table(("What", "In flight", "Calls/s", "Ids/s", "p50, ms", "p99, ms", "Refused"), "lrrrrrr", rows),
            *found,
            "",
            f"The target of the first is >= {number(target)}: {verdict(met)}.\n",
            *failures,
            _COUNTER_DOCUMENT_UNFAIR,
        ]
    )


def growth(result: dict[str, Any]) -> str:
    """Return the results of `make bench-growth` as Markdown."""
    parts = [_GROWTH_TITLE]
    for part in result["parts"]:
        parts += [f"### {part['title']}\n", part["about"] + "\n"]
        if part["failure"]:
            parts.append(f"This part did not run: {part['failure']}\n")
        if part["rows"]:
            parts.append(table(part["head"], "r" * len(part["head"]), part["rows"]))
    return "\n".join(parts)


def _target(row: dict[str, Any]) -> Sequence[str]:
    value, sign = row["value"], ">=" if row["at"] == "least" else "<="
    return row["what"], number(value), f"{sign} {number(row['target'])}", verdict(row["met"])


def _row(each: dict[str, Any]) -> Sequence[str]:
    has_calls = each["sees_calls"]
    return (
        each["name"],
        f"{each['in_flight']}",
        number(each["rate"]) if has_calls else "-",
        number(each["ids_rate"]),
        number(each["p50"], 1e3),
        number(each["p99"], 1e3),
        *(_cost(each[name], has_calls) for name in ("server_cost", "client_cost")),
        each["driver"],
    )


def _cost(seconds: float | None, has_calls: bool) -> str:
    if seconds is None:
        return "-"
    return f"{number(seconds, 1e6)} µs" if has_calls else f"{number(seconds, 1e9)} ns"


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
        "The load generator used half of the cores, the servers the other half."
        if machine["own_cores"]
        else f"Client, server and store share {machine['cores']} cores. Two workers cannot serve twice the calls\n"
        "  then, so their CPU a call is compared."
    )
    return _UNFAIR.format(share=share, **machine)


if __name__ == "__main__":
    write()
