"""The report of a bench, as text and as JSON in the shape of ghz's."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc

from idalloc._core.text import escaped
from idalloc.bench._engine import Bench, Tally
from idalloc.bench._latencies import PERCENTAGES, Latencies
from idalloc.verify._verdict import Verdict

# The percentages and the steps of the histogram in ghz's report.
_GHZ_PERCENTAGES = (10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)
_GHZ_STEPS = 10
# From this share of a core, the bench itself limits the rate.
_BUSY = 0.9


def succeeded(bench: Bench) -> bool:
    """Return whether ids were received, no call failed, and verifying the log had no finding."""
    received = any(tally.ids for tally in bench.tallies.values())
    return received and not bench.errors and not (bench.verdict and bench.verdict.findings.any)


def to_json(bench: Bench) -> dict[str, Any]:
    """Return the report as JSON.

    The fields of ghz's report have its names and units: nanoseconds, but seconds for the
    histogram's marks. Latencies are of successful calls. The list of single calls (`details`) is
    empty.
    """
    plan = bench.plan
    tallies = list(bench.tallies.values())
    latencies = Latencies.merge(tally.latencies for tally in tallies)
    codes, errors = _outcomes(bench)
    if latencies.count:
        codes["OK"] = latencies.count
    calls = latencies.count + bench.errors
    return {
        "date": bench.date.isoformat().replace("+00:00", "Z"),
        "endReason": "timeout" if plan.total is None else "normal",
        "options": {
            "call": ", ".join(f"idalloc.v1.IdAllocatorService/{rpc}" for rpc in bench.tallies),
            "host": plan.target,
            "insecure": True,
            "concurrency": plan.concurrency,
            "connections": min(plan.connections, plan.concurrency),
            "total": plan.total or 0,
            "duration": 0 if plan.total is not None else round(plan.duration * 1e9),
            "timeout": round(plan.timeout * 1e9),
            "scenario": plan.scenario,
            "sequence": plan.sequence,
            "idCount": plan.id_count,
            "warmUp": round(plan.warm_up * 1e9),
        },
        "count": calls,
        "total": round(bench.seconds * 1e9),
        "average": latencies.average,
        "fastest": latencies.fastest,
        "slowest": latencies.slowest,
        "rps": calls / bench.seconds,
        "errorDistribution": errors,
        "statusCodeDistribution": codes,
        "latencyDistribution": [
            {"percentage": round(percentage), "latency": latency}
            for percentage, latency in _percentiles(latencies, _GHZ_PERCENTAGES)
        ],
        "histogram": [
            {"mark": mark / 1e9, "count": count, "frequency": count / latencies.count}
            for mark, count in latencies.distribution(_GHZ_STEPS)
            if latencies.count
        ],
        "details": [],
        "ids": sum(tally.ids for tally in tallies),
        "idsPerSecond": sum(tally.ids for tally in tallies) / bench.seconds,
        "percentiles": _named_percentiles(latencies),
        "rpcs": [_rpc(tally, bench.seconds) for tally in tallies],
        "clientCpu": bench.cpu_seconds / bench.seconds,
        "verified": bench.verdict and _verified(bench.verdict),
    }


def _verified(verdict: Verdict) -> dict[str, Any]:
    findings = verdict.findings
    return {
        "ids": verdict.ids,
        "duplicates": findings.duplicates,
        "outOfOrder": findings.out_of_order,
        "malformed": findings.malformed,
        "findings": findings.messages,
    }


def _outcomes(bench: Bench) -> tuple[Counter[str], Counter[str]]:
    """Return how many calls failed, by code and by message, in gRPC-Go's spelling."""
    codes = Counter[str]()
    errors = Counter[str]()
    for tally in bench.tallies.values():
        for (code, reason), count in tally.errors.items():
            codes[_go_name(code)] += count
            errors[f"rpc error: code = {_go_name(code)} desc = {reason}: {bench.messages[code, reason]}"] += count
    return codes, errors


def to_text(bench: Bench) -> str:
    return "\n".join(map(escaped, _lines(bench))) + "\n"


def _lines(bench: Bench) -> Iterator[str]:
    plan = bench.plan
    connections = min(plan.connections, plan.concurrency)
    yield f"{plan.scenario} on {plan.target}: {plan.concurrency} callers, {connections} connections"
    yield f"{bench.seconds:.1f} s after a warm-up of {plan.warm_up:g} s"
    yield ""
    yield f"{'':16}{'calls':>12}{'calls/s':>12}{'ids':>16}{'ids/s':>14}{'errors':>9}"
    for tally in bench.tallies.values():
        errors = tally.errors.total()
        calls = tally.latencies.count + errors
        yield (
            f"{tally.rpc:16}{calls:12,}{calls / bench.seconds:12,.0f}"
            f"{tally.ids:16,}{tally.ids / bench.seconds:14,.0f}{errors:9,}"
        )
    yield ""
    yield from _latency_lines(bench)
    yield ""
    is_busy = bench.cpu_seconds / bench.seconds >= _BUSY
    limit = ": the bench limits the rate, not the server; run several of them" if is_busy else ""
    yield f"this process used {bench.cpu_seconds / bench.seconds:.0%} of one core{limit}"
    for tally in bench.tallies.values():
        for (code, reason), count in tally.errors.most_common():
            yield f"{count:,} of {tally.rpc}: {code.name} {reason}: {bench.messages[code, reason]}"
    if bench.verdict is not None:
        findings = bench.verdict.findings
        verified = f"verified {bench.verdict.ids:,} ids, warm-up included: none issued twice, none out of order"
        wrong = (
            f"WRONG: of {bench.verdict.ids:,} ids, {findings.duplicates:,} were issued twice; "
            f"{findings.out_of_order:,} replies are out of order, {findings.malformed:,} are malformed"
        )
        yield wrong if findings.any else verified
        yield from (f"  {message}" for message in findings.messages)


def _latency_lines(bench: Bench) -> Iterator[str]:
    yield "".join([f"{'latency, ms':24}", *(f"{name:>10}" for name in ("p50", "p90", "p95", "p99", "p99.9", "max"))])
    for tally in bench.tallies.values():
        streams = tally.messages.count
        if tally.latencies.count:
            yield _row(f"{tally.rpc}, stream" if streams else tally.rpc, tally.latencies)
        if streams:
            yield _row(f"{tally.rpc}, message", tally.messages)
    if any(tally.messages.count for tally in bench.tallies.values()):
        yield "stream: from its start to its end; message: from the previous one, or the start, to its arrival"
    if cut := sum(tally.cut_streams for tally in bench.tallies.values()):
        yield f"{cut} streams were cut at the end of the duration: only their messages count"


def _row(name: str, latencies: Latencies) -> str:
    values = [value for _, value in latencies.percentiles(PERCENTAGES)] + [latencies.slowest]
    return "".join([f"{name:24}", *(f"{value / 1e6:10,.2f}" for value in values)])


def _rpc(tally: Tally, seconds: float) -> dict[str, Any]:
    errors = tally.errors.total()
    calls = tally.latencies.count + errors
    report: dict[str, Any] = {
        "rpc": tally.rpc,
        "count": calls,
        "rps": calls / seconds,
        "errors": errors,
        "ids": tally.ids,
        "idsPerSecond": tally.ids / seconds,
        "percentiles": _named_percentiles(tally.latencies),
    }
    if tally.messages.count:
        report |= {
            "messages": tally.messages.count,
            "messagePercentiles": _named_percentiles(tally.messages),
            "cutStreams": tally.cut_streams,
        }
    return report


def _named_percentiles(latencies: Latencies) -> dict[str, int]:
    named = {f"p{percentage:g}": value for percentage, value in _percentiles(latencies, PERCENTAGES)}
    return named | {"max": latencies.slowest} if named else {}


def _percentiles(latencies: Latencies, percentages: tuple[float, ...]) -> Iterator[tuple[float, int]]:
    """Yield the percentiles; none without latencies, as in ghz's report."""
    return latencies.percentiles(percentages) if latencies.count else iter(())


def _go_name(code: grpc.StatusCode) -> str:
    """Return a status code's name in Go, as in ghz's report."""
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return "".join(part.capitalize() for part in code.name.split("_"))
