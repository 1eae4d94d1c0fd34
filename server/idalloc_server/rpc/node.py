"""The servicer of idalloc.v1.NodeService."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Protocol

from idalloc.v1 import node_pb2, node_pb2_grpc
from idalloc_server.auth.call_types import Context
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.document_ids.generator import DocIdGenerator, Save
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.settings.persisted import SETTINGS, NodeSettingsFile


class Workers(Protocol):
    """The workers of a server with several processes; ``count`` is their number."""

    count: int

    @property
    def other_lease_count(self) -> int:
        """How many leases all other workers held about a second ago."""
        ...

    async def change(self, given: Mapping[str, int], save: Save | None, timeout: float | None) -> None:
        """Change this worker as ``DocIdGenerator.change`` does, and then all others; a failure here ends the change.

        Args:
            given: The new values, by field.
            save: See ``DocIdGenerator.change``.
            timeout: The time that the caller has left, in seconds; None without a deadline.

        Raises:
            ChangePending: Not all workers changed in time. The change continues, even if the caller leaves.
        """
        ...


class NodeServicer(node_pb2_grpc.NodeServiceServicer):
    """Describes this node, and changes its settings.

    Args:
        allocator: Issues ranges.
        doc_ids: Generates document ids.
        store: The store's address, without credentials.
        node_settings: Keeps settings across restarts; None if they cannot be kept.
        workers: All workers of the server; None if it is a single process.
    """

    descriptor = node_pb2.DESCRIPTOR.services_by_name["NodeService"]

    def __init__(
        self,
        allocator: Allocator,
        doc_ids: DocIdGenerator,
        store: str,
        node_settings: NodeSettingsFile | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._allocator = allocator
        self._doc_ids = doc_ids
        self._store = store
        self._node_settings = node_settings
        self._workers = workers

    async def GetNode(self, request: node_pb2.GetNodeRequest, context: Context) -> node_pb2.GetNodeResponse:
        """See node.proto."""
        return node_pb2.GetNodeResponse(node=self._node())

    async def UpdateNode(self, request: node_pb2.UpdateNodeRequest, context: Context) -> node_pb2.UpdateNodeResponse:
        """See node.proto."""
        given = {field: getattr(request.node, field) for field in _fields_to_change(request)}
        if request.persist and self._node_settings is None:
            raise InvalidRequest("persist", "this node cannot keep settings across restarts")
        kept = self._node_settings if request.persist else None
        await change_node(given, self._doc_ids, kept, self._workers, context.time_remaining())
        return node_pb2.UpdateNodeResponse(node=self._node())

    def _node(self) -> node_pb2.Node:
        others = self._workers.other_lease_count if self._workers else 0
        return node_pb2.Node(
            **self._doc_ids.settings,
            start_timestamp=self._doc_ids.start_timestamp,
            version=version("idalloc"),
            store=self._store,
            lease_count=self._allocator.lease_count + others,
            worker_count=self._workers.count if self._workers else 1,
            store_error=self._allocator.store_health.error,
        )


async def change_node(
    given: Mapping[str, int],
    doc_ids: DocIdGenerator,
    node_settings: NodeSettingsFile | None,
    workers: Workers | None,
    timeout: float | None,
) -> None:
    """Change settings of this node, in all workers.

    Args:
        given: The settings to change.
        doc_ids: Uses them in this process.
        node_settings: Keeps them across restarts; None to change them until the next start.
        workers: All workers of the server; None if it is a single process.
        timeout: How long the caller waits for other workers, in seconds; None for the default.

    Raises:
        Refusal: The settings cannot be changed or kept.
    """
    save = None
    if node_settings is not None:
        node_settings.check(given)
        save = node_settings.save
    if workers is not None:
        await workers.change(given, save, timeout)
    else:
        await doc_ids.change(**given, save=save)


def _fields_to_change(request: node_pb2.UpdateNodeRequest) -> list[str]:
    if not request.HasField("node"):
        raise InvalidRequest("node", "must be set")
    for path in request.update_mask.paths:
        if path not in SETTINGS:
            raise InvalidRequest("update_mask", f"must be one of {', '.join(SETTINGS)}, not {path!r}")
    fields = list(request.update_mask.paths) or [field for field in SETTINGS if getattr(request.node, field)]
    if not fields:
        raise InvalidRequest("update_mask", "is empty, and node has no field set; to set prefix to 0, list it here")
    return fields
