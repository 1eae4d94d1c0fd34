"""The servicer of idalloc.v1.NodeService."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Protocol

from idalloc.v1 import node_pb2, node_pb2_grpc
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.document_ids.generator import DocIdGenerator, NodeSettings
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.grpc_types import Context

# The fields that UpdateNode changes, and their names in the domain.
_CHANGEABLE = {"prefix": "prefix", "auto_increment_offset": "offset", "auto_increment_increment": "increment"}


class Workers(Protocol):
    """The workers of a server with several processes; ``count`` is their number."""

    count: int

    async def change(self, given: Mapping[str, int], *, persist: bool) -> None:
        """Change settings in all workers, or in none and raise a ``Refusal``; see ``DocIdGenerator.change``."""
        ...

    async def lease_count(self) -> int:
        """Return the number of leases that the other workers hold."""
        ...


class NodeServicer(node_pb2_grpc.NodeServiceServicer):
    """Describes this node, and changes its settings.

    Args:
        allocator: Issues ranges.
        doc_ids: Generates document ids.
        store: The store's address, without credentials.
        node_settings: Keeps settings across restarts; None if they cannot be kept, or if ``workers`` does it.
        workers: All workers of the server; None if it is a single process.
    """

    descriptor = node_pb2.DESCRIPTOR.services_by_name["NodeService"]

    def __init__(
        self,
        allocator: Allocator,
        doc_ids: DocIdGenerator,
        store: str,
        node_settings: NodeSettings | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._allocator = allocator
        self._doc_ids = doc_ids
        self._store = store
        self._node_settings = node_settings
        self._workers = workers

    async def GetNode(self, request: node_pb2.GetNodeRequest, context: Context) -> node_pb2.GetNodeResponse:
        """See node.proto."""
        return node_pb2.GetNodeResponse(node=await self._node())

    async def UpdateNode(self, request: node_pb2.UpdateNodeRequest, context: Context) -> node_pb2.UpdateNodeResponse:
        """See node.proto."""
        given = {_CHANGEABLE[field]: getattr(request.node, field) for field in _fields_to_change(request)}
        if self._workers is not None:
            await self._workers.change(given, persist=request.persist)
        elif request.persist and self._node_settings is None:
            raise InvalidRequest("persist", "this node cannot keep settings across restarts")
        else:
            await self._doc_ids.change(**given, node_settings=self._node_settings if request.persist else None)
        return node_pb2.UpdateNodeResponse(node=await self._node())

    async def _node(self) -> node_pb2.Node:
        others = await self._workers.lease_count() if self._workers else 0
        return node_pb2.Node(
            prefix=self._doc_ids.prefix,
            start_timestamp=self._doc_ids.start_timestamp,
            auto_increment_offset=self._doc_ids.offset,
            auto_increment_increment=self._doc_ids.increment,
            version=version("idalloc"),
            store=self._store,
            lease_count=self._allocator.lease_count + others,
            worker_count=self._workers.count if self._workers else 1,
            store_error=self._allocator.store_health.error,
        )


def _fields_to_change(request: node_pb2.UpdateNodeRequest) -> list[str]:
    if not request.HasField("node"):
        raise InvalidRequest("node", "must be set")
    for path in request.update_mask.paths:
        if path not in _CHANGEABLE:
            raise InvalidRequest("update_mask", f"{path!r} is not one of {', '.join(_CHANGEABLE)}")
    fields = list(request.update_mask.paths) or [field for field in _CHANGEABLE if getattr(request.node, field)]
    if not fields:
        raise InvalidRequest("update_mask", "is empty, and node has no field set; to set prefix to 0, name it here")
    return fields
