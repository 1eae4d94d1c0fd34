"""What a server announces to its terminal, its log and its service manager."""

from collections.abc import Mapping

import structlog

from idalloc_server.listen.transport import is_reachable
from idalloc_server.telemetry import families, logs, service_manager
from idalloc_server.telemetry.metrics import Counts

# The page that states what a stranger can cost there.
WITHOUT_PROXY = "https://example.com/idalloc/blob/main/docs/operations/grpc-without-proxy.md"

_log = structlog.get_logger("idalloc")


def announce_serving(
    address: str, store: str, prefix: int, ports: Mapping[str, str], *, workers: int = 1, created: str = ""
) -> None:
    """Announce that health is SERVING; warn if other machines reach gRPC directly.

    The arguments are those of ``logs.report_serving``.
    """
    logs.report_serving(address, store, prefix, ports, workers=workers, created=created)
    if is_reachable(address):
        _log.warning("grpc_without_proxy", address=address, see=WITHOUT_PROXY)
    service_manager.notify("READY=1")


def announce_stopped(counts: Counts) -> None:
    """Log the final counts."""
    logged = {"burned": families.IDS_BURNED, "log_lines_lost": families.LOG_LINES_LOST}
    totals = {name: dict(+counts.counters[family]) for name, family in logged.items()}
    _log.info("stopped", **{name: total for name, total in totals.items() if total})
