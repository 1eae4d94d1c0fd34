"""Write docs/operations/benchmarks.md and benchmarks-growth.md from the results of the last runs in
.build/bench.

python -m bench.document    writes them without measuring.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import added_documents, faults_table, first_seconds_table, many_names_table
from bench.markdown import number, ratio, table, verdict
from bench.questions import QUESTIONS, Question

RESULTS, PAGES = Path(".build/bench"), Path("docs/operations")
PEERS, GROWTH, OPENSEARCH = RESULTS / "peers.json", RESULTS / "growth.json", RESULTS / "opensearch.json"
FAULTS, FIRST_SECONDS = RESULTS / "faults.json", RESULTS / "first_seconds.json"
XPROTO, MANY_NAMES = RESULTS / "xproto.json", RESULTS / "many_names.json"
_COMMANDS = {
    PEERS.name: "make bench-peers",
    OPENSEARCH.name: "make bench-opensearch",
    FAULTS.name: "make bench-faults",
    FIRST_SECONDS.name: "python -m bench.first_seconds",
    GROWTH.name: "make bench-growth",
    XPROTO.name: "make bench-xproto",
    MANY_NAMES.name: "python -m bench.many_names",
}

_HEAD = """\
# Benchmarks

idalloc beside Redis, PostgreSQL, etcd, MySQL and the recipes for CrateDB and OpenSearch, on one machine: one table for
each question. [Performance](../explanation/performance.md) explains the figures. `make bench-peers` repeats them on
your machine; [how to repeat them](benchmarks-growth.md#how-to-repeat-them) has the other commands. The transport
`native` is [experimental](../guides/deployment.md#transports).
"""
_HEAD_OF_GROWTH = """\
# Benchmarks for maintainers

How long calls take while the store fails, and what grows with sequences, nodes and connections.
[Benchmarks](benchmarks.md) compares idalloc with others.
"""
_WHAT = """\
All contenders took turns, {rounds} rounds of {seconds:g} s each; a figure is the median of the rounds. A **call** is
one request that allocates; a client that prefetches ids makes no such calls. CPU is the server's, for a call, or for an
id where there are no calls. A dash means unknown or not measured. All contenders write an acknowledged allocation to
disk: SQLite with `synchronous = FULL`, Redis with `appendonly yes` and `appendfsync always`, PostgreSQL, etcd, CrateDB
and OpenSearch with their defaults.
"""
_COUNTER_DOCUMENT = """\
The recipe of OpenSearch's users is one scripted `_update` of a counter document a call, with `upsert` and
`retry_on_conflict=10`. A call that loses all its tries answers 409 and has no id. idalloc uses the same node as its
store. All took turns, {rounds} rounds of {seconds:g} s each.
"""
_UNFAIR = """\
These differences favour one side or the other:

- {share}
- One machine: the network, missing here, would cost all contenders the same per call, which favours ranges and `ids()`.
- An fsync took {fsync_ms:g} ms on this disk (median, 4 kB, {file_system}). Contenders that write on each call are
  limited by it and gain from a faster disk. Calls that idalloc serves from a lease are not.
- ghz makes the unary calls. It uses CPU, too, and near its maximum rate the figures of `native` measure ghz.
- The clients differ: ghz in Go, pgbench and redis-benchmark in C; the SDK, the recipes' threads and Redis with 1 and 16
  in flight in Python, whose cost is in the figures.
- Redis and PostgreSQL can allocate blocks as well (`INCRBY orders 1000`, a sequence with `INCREMENT 1000`). A client
  that counts through a block has what `ids()` does, without expiry, generation and order. The segment table measures
  this approach.
- PostgreSQL writes a sequence to its log for every 32nd `nextval` only. Redis by default, with `appendfsync everysec`
  or none, is many times as fast; a power cut can then repeat ids.
- etcd has no increment: the counter reads its value and compares it in a transaction, over the JSON gateway.
- OpenSearch ran with 256 MB of heap and the JIT's first tier, as in the tests. Its recipe, like CrateDB's, writes on
  each call; idalloc burns the rest of a lease in a crash.
- CrateDB's recipe fails after five unsuccessful attempts, as in the guide; such a call counts without an id. Its turns
  take 3 s or more, because of its pauses.
- Other load on a shared machine changes single figures from run to run. Ratios compare turns of the same round.
"""
_REPEAT = """\
## How to repeat them

```sh
make bench-peers                                   # about 7 minutes
# with a running CrateDB, in a separate schema:
IDALLOC_BENCH_CRATEDB_URL='crate://crate@127.0.0.1:4200/?schema=bench' make bench-peers
make bench-opensearch                              # about 2 minutes
make bench-growth                                  # about 7 minutes, then 8
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
_COLUMNS = ("In flight", "Calls/s", "Ids/s", "p50, ms", "p99, ms", "CPU of server")


class Section(NamedTuple):
    """A section of a page."""

    title: str
    source: Path  # the result that it shows
    content: Callable[[dict[str, Any]], str]
    has_machine: bool = False  # whether it ends with the date and the machine


def write() -> None:
    """Write both pages; a section without a result in .build/bench stays as it is on its page."""
    for page, head, sections, end in (
        (PAGES / "benchmarks.md", _HEAD, _sections(), ""),
        (PAGES / "benchmarks-growth.md", _HEAD_OF_GROWTH, _sections_of_growth(), _REPEAT),
    ):
        old = _split(page.read_text()) if page.exists() else {}
        parts = [head, *(_render(each, old) for each in sections), end]
        page.write_text("\n".join(f"{each.rstrip()}\n" for each in parts if each))


def _sections() -> Iterator[Section]:
    yield Section("How to read the tables", PEERS, lambda result: _WHAT.format(**result), has_machine=True)
    for question in QUESTIONS:
        yield Section(question.title, PEERS, partial(answer, question))
    yield Section("The counter document of OpenSearch", OPENSEARCH, counter_document, has_machine=True)
    yield Section("Documents beside MySQL", XPROTO, added_documents.section, has_machine=True)
    yield Section("Targets", PEERS, targets)
    yield Section("What was not fair", PEERS, lambda result: _unfair(result["machine"]))


def _sections_of_growth() -> Iterator[Section]:
    yield Section("While the store fails", FAULTS, faults_table.section, has_machine=True)
    yield Section("From the first seconds", FIRST_SECONDS, first_seconds_table.section, has_machine=True)
    yield Section("Refills", PEERS, refills, has_machine=True)
    yield Section("Many sequences in batches", MANY_NAMES, many_names_table.section, has_machine=True)
    yield Section("Cost as work grows", GROWTH, growth, has_machine=True)


def _render(section: Section, old: dict[str, str]) -> str:
    path = section.source
    if not path.exists():
        return old.get(section.title, f"## {section.title}\n\nThis part did not run yet.\n")
    result = json.loads(path.read_text())
    end = [f"{_machine(_COMMANDS[path.name], result['machine'])}\n"] if section.has_machine else []
    return "\n".join([f"## {section.title}\n", f"{section.content(result).rstrip()}\n", *end])


def _split(page: str) -> dict[str, str]:
    """Return the sections of a page by their titles, each with its title."""
    return {each.partition("\n")[0]: f"## {each}" for each in f"\n{page}".split("\n## ")[1:]}


def answer(question: Question, result: dict[str, Any]) -> str:
    """Return the table of a question, the fastest first."""
    if question.keys is None:
        hung = sorted((each for each in result["hangs"] if each["longest"]), key=lambda each: float(each["longest"]))
        longest = [(each["name"], f"{each['in_flight']}", number(each["longest"], 1e3)) for each in hung]
        return f"{question.about}\n\n{table(('What', 'In flight', 'Longest call, ms'), 'lrr', longest)}"
    asked = (each for each in result["contenders"] if each["rounds"] and each["key"] in question.keys)
    rows = map(_row, sorted(asked, key=lambda each: -float(each["ids_rate"])))
    return f"{question.about}\n\n{table(('What', *_COLUMNS), 'lrrrrrr', rows)}"


def targets(result: dict[str, Any]) -> str:
    """Return the targets as Markdown, and what did not run."""
    failed = (
        f"{each['name']}, {each['in_flight']} in flight, turns: {len(each['failures'])}; {each['failures'][-1]}"
        for each in result["contenders"]
        if each["failures"]
    )
    missing = [f"- Did not run: {each}" for each in (*result["skipped"], *failed)]
    head = ("What", "Measured", "Target", "Result")
    return "\n".join([table(head, "lrrl", map(_target, result["targets"])), *missing])


def counter_document(result: dict[str, Any]) -> str:
    """Return the results of `make bench-opensearch` as Markdown."""
    shown = [each for each in result["contenders"] if each["rounds"]]
    rows = [(*_row(each)[:6], "-" if each["refused"] is None else f"{each['refused']:.1%}") for each in shown]
    found = f"{result['name']}: {ratio(result['ratio'])} times the calls that got an id."
    failures = [f"- {each['name']} failed: {each['failures'][-1]}" for each in result["contenders"] if each["failures"]]
    return "\n".join(
        [
            _COUNTER_DOCUMENT.format(**result),
            table(("What", *_COLUMNS[:5], "Refused"), "lrrrrrr", rows),
            found,
            *failures,
        ]
    )


def refills(result: dict[str, Any]) -> str:
    """Return what refills cost callers as Markdown."""
    return "\n".join(map(_refills, result["refills"]))


def growth(result: dict[str, Any]) -> str:
    """Return the results of `make bench-growth` as Markdown."""
    parts = []
    for part in result["parts"]:
        parts += [f"### {part['title']}\n", part["about"] + "\n"]
        if part["failure"]:
            parts.append(f"This part did not run: {part['failure']}\n")
        if part["rows"]:
            parts.append(table(part["head"], "r" * len(part["head"]), part["rows"]))
    return "\n".join(parts)


def _target(row: dict[str, Any]) -> Sequence[str]:
    value, sign = row["value"], ">=" if row["at"] == "least" else "<="
    shown = ratio(value) if " / " in row["what"] else number(value)
    return row["what"], shown, f"{sign} {number(row['target'])}", verdict(row["met"])


def _row(each: dict[str, Any]) -> Sequence[str]:
    has_calls = each["sees_calls"]
    return (
        each["name"],
        f"{each['in_flight']}",
        number(each["rate"]) if has_calls else "-",
        number(each["ids_rate"]),
        number(each["p50"], 1e3),
        number(each["p99"], 1e3),
        _cost(each["server_cost"], has_calls),
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
        f" {each['writes_without']:,}: {ratio(each['ratio'])} times.{few}"
    )


def _machine(command: str, machine: dict[str, Any]) -> str:
    versions = {"Python": machine["python"]} | machine["packages"] | machine["programs"]
    return (
        f"`{command}` on {machine['date']}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['kernel']}, {machine['file_system']}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. "
        f"Load before the run: {machine['load_before']}."
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
