"""The HTTP transport to OpenSearch."""

from typing import Any

from idalloc_server.domain.errors import StoreFailure, StoreOutcomeUnknown, StoreRefused
from idalloc_server.store.cluster.connections import Request
from idalloc_server.store.cluster.transport import Transport, is_unauthorized
from idalloc_server.store.opensearch import answers
from idalloc_server.store.opensearch.answers import AliasUnknown

_HTTP_UNAVAILABLE = 503
# The block that a cluster has until it has recovered its state; before, its nodes know no index.
_NOT_RECOVERED = "1"


def _read_state(host: str, status: int, content: bytes) -> None:
    """Raise ``StoreFailure`` unless the node has a cluster manager and the cluster's state."""
    state: Any = answers.read_answer(host, status, content, parse=dict)
    problem = None
    if state.get("master_node") is None:
        problem = "has no elected cluster manager; start a majority of the nodes that may become it"
    elif _NOT_RECOVERED in state.get("blocks", {}).get("global", {}):
        problem = "has not recovered the state of its cluster; start the nodes that it waits for (gateway.recover_*)"
    if problem:
        raise StoreOutcomeUnknown(f"OpenSearch at {host} {problem}", http_status=_HTTP_UNAVAILABLE)


class OpenSearchHttp(Transport):
    """Sends requests to one of several hosts; see ``Transport``.

    A node without a cluster manager answers ``GET /`` and reads as before. One whose cluster has
    not recovered its state answers 404 for an index that exists. So a node that is alive has both,
    as it shows by its own state.
    """

    PRODUCT = "OpenSearch"
    PORT = 9200
    ALIVE = Request(
        "GET",
        "/_cluster/state/master_node,blocks?local=true&filter_path=master_node,blocks.global",
        None,
        _read_state,
    )

    def may_be_starting(self, error: StoreFailure) -> bool:
        """See ``Transport.may_be_starting``. A node that starts answers anything else with 503."""
        return is_unauthorized(error) or isinstance(error, AliasUnknown)

    def refused(self, error: StoreFailure, subject: str) -> StoreRefused:
        """See ``Transport.refused``."""
        return answers.refused(error, subject)
