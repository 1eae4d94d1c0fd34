"""idalloc.v1.NodeService."""

from importlib.metadata import version

from idalloc.v1 import node_pb2, node_pb2_grpc
from idalloc_server.api.rpc import Context
from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.doc_id import DocIds


class NodeServicer(node_pb2_grpc.NodeServiceServicer):
    """Tells about this process.

    Args:
        allocator: Issues ranges.
        doc_ids: Makes document ids.
        store: The store's address, without passwords.
    """

    def __init__(self, allocator: Allocator, doc_ids: DocIds, store: str) -> None:
        self._allocator = allocator
        self._doc_ids = doc_ids
        self._store = store

    async def GetNode(self, request: node_pb2.GetNodeRequest, context: Context) -> node_pb2.GetNodeResponse:
        """See node.proto."""
        return node_pb2.GetNodeResponse(
            node=node_pb2.Node(
                prefix=self._doc_ids.prefix,
                start_timestamp=self._doc_ids.start_timestamp,
                auto_increment_offset=self._doc_ids.offset,
                auto_increment_increment=self._doc_ids.increment,
                version=version("idalloc"),
                store=self._store,
                lease_count=self._allocator.lease_count,
            )
        )
