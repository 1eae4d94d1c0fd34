"""Client of idalloc, a server that allocates unique ids.

    with idalloc.Client("127.0.0.1:50051") as client:
        list(client.allocate_range("orders", 3))  # [1, 2, 3]
        client.doc_ids(3)  # ["0000674b2a…", …]
        client.sequences.create("invoices", format="INV-{year}-{value:06d}", reset="yearly")
        client.allocate_range("invoices", 2, texts=True).texts  # ("INV-2026-000001", …)
        for i in client.ids("orders"):  # endless; most ids cost no call
            print(i)

``idalloc.aio.Client`` has the same methods for asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import idalloc.aio as aio
    from idalloc._core.errors import (
        ClientClosed,
        DeadlineExceeded,
        DocIdTimestampRefused,
        IdallocError,
        InternalError,
        InvalidConfig,
        InvalidRequest,
        PermissionDenied,
        PrefixInUse,
        ProtocolError,
        QuotaExceeded,
        RequestIdBurned,
        RequestIdReused,
        SequenceAheadOfClock,
        SequenceChanged,
        SequenceExhausted,
        SequenceExists,
        SequenceInvalid,
        SequenceNotFound,
        ServerDraining,
        ServerUnreachable,
        StoreRefused,
        StoreUnavailable,
        StoreWentBackwards,
        TooManySequences,
        Unauthenticated,
        Unavailable,
    )
    from idalloc._core.sequences import SequenceSettings
    from idalloc._core.types import Node, ParsedId, Range, Sequence, SequenceChange
    from idalloc._sync.allocate_stream import AllocateStream
    from idalloc._sync.client import Client
    from idalloc._sync.ids import Ids

__all__ = [
    "AllocateStream",
    "Client",
    "ClientClosed",
    "DeadlineExceeded",
    "DocIdTimestampRefused",
    "IdallocError",
    "Ids",
    "InternalError",
    "InvalidConfig",
    "InvalidRequest",
    "Node",
    "ParsedId",
    "PermissionDenied",
    "PrefixInUse",
    "ProtocolError",
    "QuotaExceeded",
    "Range",
    "RequestIdBurned",
    "RequestIdReused",
    "Sequence",
    "SequenceAheadOfClock",
    "SequenceChange",
    "SequenceChanged",
    "SequenceExhausted",
    "SequenceExists",
    "SequenceInvalid",
    "SequenceNotFound",
    "SequenceSettings",
    "ServerDraining",
    "ServerUnreachable",
    "StoreRefused",
    "StoreUnavailable",
    "StoreWentBackwards",
    "TooManySequences",
    "Unauthenticated",
    "Unavailable",
    "aio",
]
_MODULES = {
    "AllocateStream": "_sync.allocate_stream",
    "Client": "_sync.client",
    "Ids": "_sync.ids",
    "SequenceSettings": "_core.sequences",
    **dict.fromkeys(("Node", "ParsedId", "Range", "Sequence", "SequenceChange"), "_core.types"),
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `idalloc health` needs none of it, and the server only `idalloc.v1`.
    if name == "__version__":
        from importlib.metadata import version

        return version("idalloc")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "aio":
        return import_module("idalloc.aio")
    return getattr(import_module(f"idalloc.{_MODULES.get(name, '_core.errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
