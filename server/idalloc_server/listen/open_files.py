"""The limit of open files, of which each connection needs one."""

import resource
from contextlib import suppress

import structlog

from idalloc_server.files.descriptors import SPARE
from idalloc_server.listen.connections import MAX_HTTP_CONNECTIONS, MAX_PROBE_CONNECTIONS
from idalloc_server.settings.model import Settings

# The most files that a process has open besides connections, such as its store, its log and its
# threads' events.
OWN = 64
# The fewest connections of gRPC that the settings ask for.
MIN_GRPC_CONNECTIONS = 256
# The highest number that gRPC takes.
_MOST = 2**31 - 1

_log = structlog.get_logger("idalloc")


def raise_limit(settings: Settings) -> None:
    """Raise this process's limit of open files as far as allowed; log if that is too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS allows less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, others = _limit_and_others(settings)
    if limit < others + MIN_GRPC_CONNECTIONS:
        _log.warning("open_files_limit_low", limit=limit, needed=others + MIN_GRPC_CONNECTIONS)


def most_grpc_connections(settings: Settings) -> int:
    """Return the most gRPC connections that leave descriptors for all else; at least half."""
    limit, others = _limit_and_others(settings)
    return max(limit - others, limit // 2)


def _limit_and_others(settings: Settings) -> tuple[int, int]:
    """Return the limit, and how many files may be open besides gRPC connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)
    limits = {"http": MAX_HTTP_CONNECTIONS, "probe": MAX_PROBE_CONNECTIONS}
    suffix = "_max_connections"  # of the ports of other packages
    limits |= {name.removesuffix(suffix): limit for name, limit in settings if name.endswith(suffix)}
    others = sum(most for port, most in limits.items() if getattr(settings, f"{port}_listen"))
    return limit, OWN + SPARE + others
