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
# The most connections of the port of another package, which strangers may open.
MAX_PORT_CONNECTIONS = 4096
# The highest number that gRPC takes.
_MOST = 2**31 - 1

_log = structlog.get_logger("idalloc")


def raise_limit(settings: Settings) -> None:
    """Raise this process's limit of open files as far as allowed; log if that is too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS allows less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = _others(settings) + MIN_GRPC_CONNECTIONS
    if _limit() < needed:
        _log.warning("open_files_limit_low", limit=_limit(), needed=needed)


def most_grpc_connections(settings: Settings) -> int:
    """Return the most gRPC connections that leave descriptors for all else; at least half."""
    return max(_limit() - _others(settings), _limit() // 2)


def most_port_connections() -> int:
    """Return the most connections of the port of another package: a quarter of the descriptors."""
    return min(_limit() // 4, MAX_PORT_CONNECTIONS)


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def _others(settings: Settings) -> int:
    """Return how many files may be open besides gRPC connections."""
    own = {"http_listen": MAX_HTTP_CONNECTIONS, "probe_listen": MAX_PROBE_CONNECTIONS}
    ports = [name for name, address in settings if name.endswith("_listen") and address]
    return OWN + SPARE + sum(own.get(port, most_port_connections()) for port in ports)
