"""`idalloc bench`, which needs a package that the other verbs do not."""

from pathlib import Path
from typing import Annotated

import typer

from idalloc.cli import _output
from idalloc.cli._options import Log, Server, Timeout, arguments, count, opening_log, seconds, settings, whole_number

SCENARIOS = ("unary", "stream", "docids", "mixed")


def _scenario(text: str) -> str:
    if text not in SCENARIOS:
        raise typer.BadParameter("must be unary, stream, docids or mixed")
    return text


def _duration(text: str | float) -> float:
    return text if isinstance(text, float) else seconds(text)


def _warm_up(text: str | float) -> float:
    return 0.0 if text in ("0", "0s") else _duration(text)


def _file(text: str) -> Path:
    """Reads the name of a file that can be written, which is better known before the run than after it."""
    file = Path(text)
    try:
        file.touch()
    except OSError as error:
        raise typer.BadParameter(f"cannot be written: {error.strerror}") from None
    return file


def bench(
    context: typer.Context,
    scenario: Annotated[
        str, typer.Argument(metavar="unary|stream|docids|mixed", parser=_scenario, help="What to call.")
    ] = "unary",
    sequence: Annotated[str, typer.Option(metavar="NAME", help="The sequence that ranges are taken from.")] = "bench",
    id_count: Annotated[int, typer.Option(metavar="N", parser=count, help="How many ids a unary call takes.")] = 1,
    total_ids: Annotated[
        int | None,
        typer.Option(metavar="N", parser=count, help="How many ids a stream has: 100,000."),
    ] = None,
    chunk: Annotated[int, typer.Option(metavar="N", parser=count, help="How many ids its messages have.")] = 10_000,
    concurrency: Annotated[
        int, typer.Option(metavar="N", parser=whole_number(1, 10_000), help="How many callers, a call at a time each.")
    ] = 64,
    connections: Annotated[
        int, typer.Option(metavar="N", parser=whole_number(1, 1_000), help="How many connections they share.")
    ] = 4,
    duration: Annotated[
        float | None, typer.Option(metavar="DURATION", parser=_duration, help="How long to begin calls and count: 10s.")
    ] = None,
    total: Annotated[
        int | None, typer.Option(metavar="CALLS", parser=count, help="How many calls to count, in place of a duration.")
    ] = None,
    warm_up: Annotated[
        float,
        typer.Option(
            metavar="DURATION", parser=_warm_up, show_default="2s", help="How long to call before any counts."
        ),
    ] = 2.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="Look at every id: does one come twice, are they in order?")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=_file, help="Write the report as JSON to a file, too.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE.html", parser=_file, help="Write a page with charts.")
    ] = None,
    log: Log = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, in ghz's shape.")] = False,
) -> None:
    """Load a server, and tell how fast it answered; the exit code is 0 only if no call failed and all ids were right.

    unary: AllocateRange. stream: StreamRanges. docids: GenerateDocId, or StreamDocIds with --total-ids, to texts.
    mixed: 70, 6, 20 and 4 calls of a hundred. The ids that it takes are gone. A failed call is not tried again.
    """
    if duration is not None and total is not None:
        raise typer.BadParameter("say either --duration or --total", context)
    target, limit = settings(context, server, timeout)
    try:
        from idalloc._issued_log.log import IssuedLog
        from idalloc._transport.config import ChannelConfig
        from idalloc.bench import _chart, _engine, _plan, _report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "hdrh":
            raise
        _output.say("idalloc bench needs the package hdrhistogram: pip install 'idalloc[bench]'")
        raise typer.Exit(2) from error
    plan = _plan.Plan(
        target,
        scenario=scenario,
        sequence=sequence,
        id_count=id_count,
        total_ids=total_ids,
        chunk=chunk,
        concurrency=concurrency,
        connections=connections,
        duration=duration or 10.0,
        total=total,
        warm_up=warm_up,
        timeout=limit,
        verify=verify,
    )
    access = ChannelConfig(target, **arguments(context, target))
    with opening_log(context):
        issued = None if log is None else IssuedLog(log)
    try:
        done = _engine.run(plan, access, issued)
    finally:
        if issued is not None:
            issued.close()
    report = _output.to_json(_report.to_json(done))
    if output is not None:
        output.write_text(report, encoding="utf-8")
    if chart is not None:
        chart.write_text(_chart.to_html(done), encoding="utf-8")
    _output.write_report(report if as_json else _report.to_text(done))
    if not _report.succeeded(done):
        raise typer.Exit(1)
