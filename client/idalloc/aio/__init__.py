"""The client for asyncio: ``idalloc.aio.Client`` has the methods of ``idalloc.Client``."""

from idalloc.aio._allocate_stream import AllocateStream
from idalloc.aio._client import Client
from idalloc.aio._ids import Ids

__all__ = ["AllocateStream", "Client", "Ids"]
