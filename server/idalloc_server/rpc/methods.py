"""The RPCs of this server's own services, and their types as go-grpc-middleware names them."""

from google.protobuf.descriptor import MethodDescriptor

from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2

SERVICES = (
    id_allocator_pb2.DESCRIPTOR.services_by_name["IdAllocatorService"],
    sequences_pb2.DESCRIPTOR.services_by_name["SequenceService"],
    node_pb2.DESCRIPTOR.services_by_name["NodeService"],
)


def _type_of(method: MethodDescriptor) -> str:
    if method.client_streaming:
        return "bidi_stream" if method.server_streaming else "client_stream"
    return "server_stream" if method.server_streaming else "unary"


METHOD_TYPES = {
    f"/{service.full_name}/{method.name}": _type_of(method) for service in SERVICES for method in service.methods
}
