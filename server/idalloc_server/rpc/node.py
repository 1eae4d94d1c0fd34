"""The servicer of idalloc.v1.NodeService."""

from dataclasses import dataclass
from importlib.metadata import version

from idalloc.v1 import node_pb2
from idalloc_server.auth.call_types import Context
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.node.change import NodeChanges
from idalloc_server.settings.persisted import SETTINGS


@dataclass(eq=False)
class NodeServicer:
    """Describes this node, and changes its settings."""

    descriptor = node_pb2.DESCRIPTOR.services_by_name["NodeService"]

    allocator: Allocator
    doc_ids: DocIdGenerator
    store: str  # the store's address, without credentials
    changes: NodeChanges
    witness: str = ""  # the witness's address, without credentials; empty without one

    async def GetNode(self, request: node_pb2.GetNodeRequest, context: Context) -> node_pb2.GetNodeResponse:
        """See node.proto."""
        return node_pb2.GetNodeResponse(node=self._node())

    async def UpdateNode(self, request: node_pb2.UpdateNodeRequest, context: Context) -> node_pb2.UpdateNodeResponse:
        """See node.proto."""
        if not request.HasField("node"):
            raise InvalidRequest("node", "must be set")
        for path in request.update_mask.paths:
            if path not in SETTINGS:
                raise InvalidRequest("update_mask", f"must be one of {', '.join(SETTINGS)}, not {path!r}")
        fields = list(request.update_mask.paths) or [field for field in SETTINGS if getattr(request.node, field)]
        if not fields:
            raise InvalidRequest("update_mask", "is empty, and node has no field set; to set prefix to 0, list it here")
        given = {field: getattr(request.node, field) for field in fields}
        await self.changes.change(given, request.persist, context.time_remaining())
        return node_pb2.UpdateNodeResponse(node=self._node())

    def _node(self) -> node_pb2.Node:
        workers = self.changes.workers
        return node_pb2.Node(
            **self.doc_ids.settings,
            start_timestamp=self.doc_ids.start_timestamp,
            version=version("idalloc"),
            store=self.store,
            lease_count=self.allocator.lease_count + (workers.other_lease_count if workers else 0),
            worker_count=workers.count if workers else 1,
            store_error=self.allocator.store_health.error,
            witness=self.witness,
        )
