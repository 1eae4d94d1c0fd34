"""The RPCs of this server's own services, and their types as go-grpc-middleware names them."""

from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2

SERVICES = (
    id_allocator_pb2.DESCRIPTOR.services_by_name["IdAllocatorService"],
    sequences_pb2.DESCRIPTOR.services_by_name["SequenceService"],
    node_pb2.DESCRIPTOR.services_by_name["NodeService"],
)


_TYPES = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}
METHOD_TYPES = {
    f"/{service.full_name}/{method.name}": _TYPES[method.client_streaming, method.server_streaming]
    for service in SERVICES
    for method in service.methods
}
