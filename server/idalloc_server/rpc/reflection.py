"""Server reflection, v1 and v1alpha, that works with ghz, grpcurl and Connect."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from typing import Any

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.call_types import Context
from idalloc_server.domain.errors import Refusal
from idalloc_server.rpc.calls import UNDECODABLE, CallLayer, Service, undecodable_request
from idalloc_server.rpc.draining import Draining

# Its annotations declare a coroutine, but it is an async generator.
_Base: Any = reflection.aio.ReflectionServicer
# grpcio-reflection has v1alpha only. The messages of v1 are equal on the wire.
_PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")


class AuthenticatedReflection(_Base):  # type: ignore[misc]
    """Serves the protos of services, and of reflection itself, to authenticated callers.

    They need no role. Both services have this class: grpc.reflection.v1.ServerReflection and
    grpc.reflection.v1alpha.ServerReflection.

    Args:
        services: The full names of the services.
        access_control: Authenticates callers.
        calls: Answers rejected callers.
        draining: Ends the streams.
    """

    descriptor: Any = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

    def __init__(
        self, services: Iterable[str], access_control: AccessControl, calls: CallLayer, draining: Draining
    ) -> None:
        self._names = [f"{package}.{self.descriptor.name}" for package in _PACKAGES]
        super().__init__([*services, *self._names], pool=_ReflectionPool())
        self._access_control = access_control
        self._calls = calls
        self._draining = draining

    def services(self) -> list[Service]:
        """Return both versions of reflection."""
        method = "ServerReflectionInfo"
        return [Service(self.descriptor, name, {method: self._serve(f"/{name}/{method}")}) for name in self._names]

    def _serve(self, method: str) -> Any:
        reply_to = super().ServerReflectionInfo

        async def serve(requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
            try:
                self._access_control.authenticator.authenticate(method, context)
                async with aclosing(reply_to(self._charge(method, requests, context), context)) as replies:
                    async for reply in replies:
                        yield reply
            except Refusal as refusal:
                await self._calls.abort(context, refusal)

        return serve

    async def _charge(self, method: str, requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
        async with aclosing(self._draining.read_requests(requests, is_call=False)) as incoming:
            async for request in incoming:
                if request is UNDECODABLE:
                    raise undecodable_request()
                identity = self._access_control.authenticator.authenticate(method, context)
                self._access_control.limits.charge_call(method, identity)
                yield request


class _ReflectionPool:
    """The default descriptor pool, with what clients of reflection need in addition.

    - The file of a method: ghz requests the file of ``idalloc.v1.NodeService.GetNode``. Protobuf's
      pool finds services by name, but no methods.
    - The file of reflection v1.
    - The JSON names of fields: without them grpcurl prints ``first_id`` instead of ``firstId``.
    """

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()
        file = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        # In a pool of its own: it would clash with the same file of another package.
        self._v1 = descriptor_pool.DescriptorPool()
        self._v1.Add(
            text_format.Parse(text_format.MessageToString(file).replace("v1alpha", "v1"), FileDescriptorProto())
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileByName(self, name: str) -> "_JsonNamedFile":
        return self._find("FindFileByName", name)

    def FindFileContainingSymbol(self, symbol: str) -> "_JsonNamedFile":
        try:
            return self._find("FindFileContainingSymbol", symbol)
        except KeyError:
            return self._find("FindFileContainingSymbol", symbol.rpartition(".")[0])

    def _find(self, method: str, name: str) -> "_JsonNamedFile":
        try:
            return _JsonNamedFile(getattr(self._pool, method)(name))
        except KeyError:
            return _JsonNamedFile(getattr(self._v1, method)(name))


class _JsonNamedFile:
    """A file whose fields have their JSON names, which generated Python code leaves out."""

    def __init__(self, file: FileDescriptor) -> None:
        self._file = file
        self.name = file.name
        self.dependencies = [_JsonNamedFile(each) for each in file.dependencies]

    def CopyToProto(self, proto: FileDescriptorProto) -> None:
        self._file.CopyToProto(proto)
        for message in proto.message_type:
            _set_json_names(message, self._file.message_types_by_name[message.name])


def _set_json_names(proto: DescriptorProto, message: Descriptor) -> None:
    for field in proto.field:
        field.json_name = message.fields_by_name[field.name].json_name
    for nested in proto.nested_type:
        _set_json_names(nested, message.nested_types_by_name[nested.name])
