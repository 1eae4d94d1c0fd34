"""The HTTP transport to OpenSearch."""

from typing import Any

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreRefused
from idalloc_server.store.connections import Request
from idalloc_server.store.opensearch import answers
from idalloc_server.store.transport import Transport, is_unauthorized

_HTTP_FORBIDDEN = 403
_HTTP_UNAVAILABLE = 503


def _read_health(host: str, status: int, content: bytes) -> None:
    """Raises ``StoreFailure`` if a node has no cluster manager; one that refuses to say is alive."""
    if status == _HTTP_FORBIDDEN:
        return
    health: Any = answers.read_answer(host, status, content, parse=dict)
    if health.get("discovered_master") is False or health.get("discovered_cluster_manager") is False:
        raise StoreAnsweredError(f"OpenSearch at {host} has no cluster manager", http_status=_HTTP_UNAVAILABLE)


class OpenSearchHttp(Transport):
    """Sends requests to one of several hosts; see ``Transport``.

    A node without a cluster manager answers ``GET /`` and reads as before, but not the check of its health.
    """

    PRODUCT = "OpenSearch"
    PORT = 9200
    ALIVE = Request(
        "GET",
        "/_cluster/health?local=true&filter_path=status,discovered_master,discovered_cluster_manager",
        None,
        _read_health,
    )

    def may_be_starting(self, error: StoreFailure) -> bool:
        """See ``Transport.may_be_starting``. A node that starts answers anything else with 503."""
        return is_unauthorized(error)

    def refused(self, error: StoreFailure, subject: str) -> StoreRefused:
        """See ``Transport.refused``."""
        return answers.refused(error, subject)
