"""metrics.md: the metrics of the HTTP port, from the code that serves them."""

from idalloc_server.telemetry.exposition import CALL_COUNTERS, CALL_LABELS, CALL_SECONDS
from idalloc_server.telemetry.families import COUNTERS, DEBUG_METRICS, GAUGES, HISTOGRAMS, Family
from idalloc_server.telemetry.latencies import BUCKETS
from scripts.reference.markdown import document, table

_HEAD = f"""\
# Metrics

Find any metric of `/metrics`, with its labels and its unit. [Monitoring](../operations/monitoring.md) shows how to turn
it on.

Counters begin at 0 when the server starts. With several workers they are summed, also those of workers that exited. All
histograms have the buckets {", ".join(f"{each:g}" for each in BUCKETS)} s.

Metrics for developers of idalloc are there only with the setting [`debug_metrics`](settings.md#debug_metrics).

The metrics `process_…` of prometheus_client have the label `process`: `server`, or with several workers `supervisor`,
`worker 1` and so on. The sum of all is that of the server.
"""


def _rows(families: dict[str, Family], suffix: str = "") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, family in families.items():
        debug = " Only with `debug_metrics`." if name in DEBUG_METRICS else ""
        rows.append((f"`{name}{suffix}`", ", ".join(f"`{each}`" for each in family.labels), f"{family.help}{debug}"))
    return rows


def page() -> str:
    """Return the page."""
    calls = {name: Family(text, CALL_LABELS) for name, text in CALL_COUNTERS.items()}
    calls["grpc_server_handled"] = calls["grpc_server_handled"]._replace(labels=(*CALL_LABELS, "grpc_code"))
    seconds = {CALL_SECONDS[0]: Family(CALL_SECONDS[1], CALL_LABELS)}
    parts = [_HEAD]
    for title, rows in {
        "Calls": _rows(calls, "_total") + _rows(seconds),
        "Counters": _rows(COUNTERS, "_total"),
        "Gauges": _rows(GAUGES),
        "Histograms": _rows(HISTOGRAMS),
    }.items():
        parts += [f"## {title}", table(("metric", "labels", "meaning"), rows)]
    return document(*parts)
