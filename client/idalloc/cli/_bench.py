"""`idalloc bench`. It needs the extra `idalloc[bench]`."""

from pathlib import Path
from typing import Annotated

import typer

from idalloc.cli import _connection
from idalloc.cli._options import Log, choices, integer_parser, parse_seconds, with_options
from idalloc.cli._printer import to_json, write_stderr
from idalloc.cli._usage import UsageError


def _parse_warm_up(text: str | float) -> float:
    return 0.0 if text in ("0", "0s") else parse_seconds(text)


def _parse_output_file(text: str) -> Path:
    """Create a file for output, so that a path that cannot be written fails before the run."""
    file = Path(text)
    try:
        file.touch()
    except OSError as error:
        raise typer.BadParameter(f"cannot be written: {error.strerror}") from None
    return file


@with_options
def bench(
    context: typer.Context,
    scenario: Annotated[
        str, typer.Argument(**choices("unary", "stream", "docids", "mixed"), help="The RPCs to call.")
    ] = "unary",
    sequence: Annotated[str, typer.Option(metavar="NAME", help="The sequence to allocate from.")] = "bench",
    id_count: Annotated[int, typer.Option(metavar="N", parser=integer_parser(1), help="Ids per unary call.")] = 1,
    total_ids: Annotated[
        int | None, typer.Option(metavar="N", parser=integer_parser(1), help="Ids per stream; default: 100,000.")
    ] = None,
    chunk: Annotated[
        int, typer.Option(metavar="N", parser=integer_parser(1), help="Ids per message of a stream.")
    ] = 10_000,
    concurrency: Annotated[
        int, typer.Option(metavar="N", parser=integer_parser(1, 10_000), help="Concurrent callers, one call each.")
    ] = 64,
    connections: Annotated[
        int, typer.Option(metavar="N", parser=integer_parser(1, 1_000), help="The connections that they share.")
    ] = 4,
    duration: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=parse_seconds, help="How long to count calls; default: 10s."),
    ] = None,
    total: Annotated[
        int | None, typer.Option(metavar="CALLS", parser=integer_parser(1), help="The number of calls to count.")
    ] = None,
    warm_up: Annotated[
        float,
        typer.Option(
            metavar="DURATION", parser=_parse_warm_up, show_default="2s", help="How long to call before counting."
        ),
    ] = 2.0,
    verify: Annotated[
        bool, typer.Option("--verify", metavar="", help="Check every id: none issued twice, all in order.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=_parse_output_file, help="Also write the JSON report here.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE.html", parser=_parse_output_file, help="Write a page with charts.")
    ] = None,
    log: Log = None,
) -> None:
    """Run a load test, and report latencies and rates.

    Exits with 0 only if no call failed and no id was wrong. As JSON, the report has ghz's shape.

    unary: AllocateRange. stream: StreamRanges. docids: GenerateDocId, or StreamDocIds with --total-ids, decoded.
    mixed: 70 %, 6 %, 20 % and 4 % of these. The ids that it allocates are lost. Failed calls are not retried.
    """
    if duration is not None and total is not None:
        raise UsageError("--duration and --total are mutually exclusive; give one of them", context)
    target, limit = _connection.target_and_timeout(context)
    try:
        from idalloc._issued_log.log import IssuedLog
        from idalloc._transport.config import ChannelConfig
        from idalloc.bench import _chart, _engine, _plan, _report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "hdrh":
            raise
        write_stderr("idalloc bench needs the package hdrhistogram: pip install 'idalloc[bench]'")
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
    access = ChannelConfig(target, **_connection.channel_arguments(context, target))
    with _connection.log_errors_as_usage(context):
        issued = None if log is None else IssuedLog(log)
    try:
        result = _engine.run(plan, access, issued)
    finally:
        if issued is not None:
            issued.close()
    if report is not None:
        report.write_text(to_json(_report.to_json(result)), encoding="utf-8")
    if chart is not None:
        chart.write_text(_chart.to_html(result), encoding="utf-8")
    context.obj.lines(_report.to_text(result).splitlines(), lambda: _report.to_json(result))
    if not _report.succeeded(result):
        raise typer.Exit(1)
