"""`idalloc bench`. It needs the extra `idalloc[bench]`."""

from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idalloc.cli import _connection
from idalloc.cli._options import MAX_INT64, Log, choices, integer_parser, parse_seconds, with_options
from idalloc.cli._printer import failure, to_json
from idalloc.cli._usage import UsageError

if TYPE_CHECKING:
    from idalloc.bench._engine import Bench


def _parse_warm_up(text: str | float) -> float:
    return 0.0 if text in ("0", "0s") else parse_seconds(text)


def _parse_output_file(text: str) -> Path:
    """Create a file for output: a path that cannot be written then fails before the run."""
    file = Path(text)
    try:
        file.touch()
    except OSError as error:
        raise typer.BadParameter(f"cannot be written: {error.strerror}") from None
    return file


def _count(text: str, maximum: int = MAX_INT64) -> Any:
    return typer.Option(metavar="N", parser=integer_parser(1, maximum), help=text)


def _output_file(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, parser=_parse_output_file, help=text)


_WARM_UP = typer.Option(
    metavar="DURATION", parser=_parse_warm_up, show_default="2s", help="How long to make calls before counting them."
)
_DURATION = typer.Option(metavar="DURATION", parser=parse_seconds, help="How long to count calls; default: 10s.")
_TOTAL = typer.Option(metavar="CALLS", parser=integer_parser(1), help="The number of calls to count.")
_VERIFY = typer.Option("--verify", metavar="", help="Verify that no id was issued twice, and that all are in order.")


@with_options
def bench(
    context: typer.Context,
    scenario: Annotated[
        str, typer.Argument(**choices("unary", "stream", "docids", "mixed"), help="The RPCs to call.")
    ] = "unary",
    sequence: Annotated[str, typer.Option(metavar="NAME", help="The sequence to allocate from.")] = "bench",
    id_count: Annotated[int, _count("Ids per unary call.")] = 1,
    total_ids: Annotated[int | None, _count("Ids per stream; default: 100,000.")] = None,
    chunk: Annotated[int, _count("Ids per message of a stream.")] = 10_000,
    concurrency: Annotated[
        int, _count("The number of concurrent callers; each makes one call at a time.", 10_000)
    ] = 64,
    connections: Annotated[int, _count("The number of connections that the callers share.", 1_000)] = 4,
    duration: Annotated[float | None, _DURATION] = None,
    total: Annotated[int | None, _TOTAL] = None,
    warm_up: Annotated[float, _WARM_UP] = 2.0,
    verify: Annotated[bool, _VERIFY] = False,
    report: Annotated[Path | None, _output_file("FILE", "Also write the JSON report here.")] = None,
    chart: Annotated[Path | None, _output_file("FILE.html", "Write a page with charts.")] = None,
    log: Log = None,
) -> None:
    """Run a load test, and report latencies and rates.

    The exit code is 0 only if no call failed and no id was wrong. As JSON, the report has the form
    of ghz's reports.

    unary: AllocateRange. stream: StreamRanges. docids: GenerateDocId, or StreamDocIds with
    --total-ids, decoded. mixed: 70 % AllocateRange, 20 % GenerateDocId, 6 % StreamRanges, 4 %
    StreamDocIds.

    The bench discards the ids that it allocates, and retries no failed call.
    """
    if duration is not None and total is not None:
        raise UsageError("--duration and --total are mutually exclusive; give one of them", context)
    target, limit = _connection.target_and_timeout(context)
    result = _run(
        context,
        log,
        verify,
        target=target,
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
    )
    _print(context, result, report, chart)


def _run(context: typer.Context, log: Path | None, verify: bool, target: str, **options: Any) -> "Bench":
    try:
        from idalloc._issued_log.log import IssuedLog
        from idalloc._transport.config import ChannelConfig
        from idalloc.bench import _engine, _plan
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "numpy":
            raise
        raise failure("idalloc bench needs the package numpy: pip install 'idalloc[bench]'", 2) from error
    plan = _plan.Plan(target, **options)
    access = ChannelConfig(target, **_connection.channel_arguments(context, target))
    with ExitStack() as stack:
        if verify and log is None:
            log = Path(stack.enter_context(TemporaryDirectory(prefix="idalloc-bench-"))) / "issued.log"
        issued = None
        if log is not None:
            with _connection.log_errors_as_usage(context):
                issued = stack.enter_context(closing(IssuedLog(log)))
        result = _engine.run(plan, access, issued)
        if verify and log is not None:
            result.verify(log)
        return result


def _print(context: typer.Context, result: "Bench", report: Path | None, chart: Path | None) -> None:
    from idalloc.bench import _chart, _report

    if report is not None:
        report.write_text(to_json(_report.to_json(result)), encoding="utf-8")
    if chart is not None:
        chart.write_text(_chart.to_html(result), encoding="utf-8")
    context.obj.lines(_report.to_text(result).splitlines(), lambda: _report.to_json(result))
    if not _report.succeeded(result):
        raise typer.Exit(1)
