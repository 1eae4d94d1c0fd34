"""Server reflection that ghz and grpcurl both understand."""

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection


def enable(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Lets clients ask a server for the protos of these services, and of reflection itself."""
    pool: Any = _MethodAwarePool()
    reflection.enable_server_reflection([*services, reflection.SERVICE_NAME], server, pool=pool)


class _MethodAwarePool:
    """The default descriptor pool, which also finds the file of a method.

    ghz asks for the file of ``idalloc.v1.NodeService.GetNode``. Protobuf's pool knows no methods by name, only
    the service, one name up.
    """

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindFileContainingSymbol(symbol.rpartition(".")[0])
