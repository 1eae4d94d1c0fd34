"""Streams of the client for asyncio, which resume after a break."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from typing import Any, TypeVar

from idalloc._core.errors import IdallocError
from idalloc._core.fork import process_marker
from idalloc._core.resumption import END_TIMEOUT, Stream
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._transport.channel import leak, least_busy
from idalloc.aio._base import BaseClient

T = TypeVar("T")


async def read_stream(client: BaseClient, stream: Stream[T]) -> AsyncIterator[T]:
    """Yield the messages of a stream as ``idalloc._sync.streams.read_stream`` does."""
    while stream.missing > 0:
        await client._find_servers()
        with least_busy(client._connections) as connection:
            stubs = connection.stubs()
            process = process_marker()
            request = stream.start_attempt()
            asked = client._now()
            call = stubs.rpc(request)(request, timeout=stream.time_left(), metadata=client._metadata())
            try:
                with translate_rpc_errors(client.target):
                    async for response in call:
                        stream.check(response)
                        client._record(request, response, asked)
                        yield stream.convert(response)
                        if not next(process):
                            connection.stubs()  # raises: the call is the parent's
                        if not stream.missing:
                            await _await_end(call, stream)
                    stream.check_end()
            except IdallocError as error:
                client._failed(connection, error)
                await asyncio.sleep(stream.retry_delay(error))
            except asyncio.CancelledError:
                client._raise_if_closed()
                raise
            finally:
                if next(process):
                    call.cancel()
                else:
                    leak(call)


async def _await_end(call: AsyncIterable[Any], stream: Stream[Any]) -> None:
    """Wait for the end of a stream whose total has arrived. A further message is an error."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_TIMEOUT):
            async for response in call:
                stream.check(response)
