"""idalloc.v1.NodeService."""

from importlib.metadata import version

from idalloc.v1 import node_pb2, node_pb2_grpc
from idalloc_server.api.rpc import Context
from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.doc_id import DocIds, Keeper
from idalloc_server.domain.errors import InvalidRequest

# What UpdateNode changes, and what it is called in the domain.
_CHANGEABLE = {"prefix": "prefix", "auto_increment_offset": "offset", "auto_increment_increment": "increment"}


class NodeServicer(node_pb2_grpc.NodeServiceServicer):
    """Tells about this process, and changes its settings.

    Args:
        allocator: Issues ranges.
        doc_ids: Makes document ids.
        store: The store's address, without passwords.
        keeper: Who keeps settings over restarts; None where nobody does.
    """

    def __init__(self, allocator: Allocator, doc_ids: DocIds, store: str, keeper: Keeper | None = None) -> None:
        self._allocator = allocator
        self._doc_ids = doc_ids
        self._store = store
        self._keeper = keeper

    async def GetNode(self, request: node_pb2.GetNodeRequest, context: Context) -> node_pb2.GetNodeResponse:
        """See node.proto."""
        return node_pb2.GetNodeResponse(node=self._node())

    async def UpdateNode(self, request: node_pb2.UpdateNodeRequest, context: Context) -> node_pb2.UpdateNodeResponse:
        """See node.proto."""
        given = {_CHANGEABLE[field]: getattr(request.node, field) for field in _to_change(request)}
        if request.persist and self._keeper is None:
            raise InvalidRequest("persist", "this node keeps no settings")
        await self._doc_ids.change(**given, keeper=self._keeper if request.persist else None)
        return node_pb2.UpdateNodeResponse(node=self._node())

    def _node(self) -> node_pb2.Node:
        return node_pb2.Node(
            prefix=self._doc_ids.prefix,
            start_timestamp=self._doc_ids.start_timestamp,
            auto_increment_offset=self._doc_ids.offset,
            auto_increment_increment=self._doc_ids.increment,
            version=version("idalloc"),
            store=self._store,
            lease_count=self._allocator.lease_count,
        )


def _to_change(request: node_pb2.UpdateNodeRequest) -> list[str]:
    if not request.HasField("node"):
        raise InvalidRequest("node", "must be given")
    for path in request.update_mask.paths:
        if path not in _CHANGEABLE:
            raise InvalidRequest("update_mask", f"{path!r} cannot be changed, but {', '.join(_CHANGEABLE)} can")
    fields = list(request.update_mask.paths) or [field for field in _CHANGEABLE if getattr(request.node, field)]
    if not fields:
        raise InvalidRequest("update_mask", "nothing is to be changed; to set prefix to 0, name it here")
    return fields
