"""Streams of the client for asyncio, resumed where they break."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

import grpc

from idalloc._core.errors import IdallocError
from idalloc._core.fork import process_marker
from idalloc._core.reply_checks import ChunkChecker
from idalloc._core.requests import StreamRequest, StreamResponse
from idalloc._core.resumption import END_TIMEOUT, Resumption
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._issued_log.log import log_chunk
from idalloc._transport.channel import leak, least_busy
from idalloc.aio._base import BaseClient, Stubs

T = TypeVar("T")


async def read_stream(
    client: BaseClient,
    method: "Callable[[Stubs], grpc.aio.UnaryStreamMultiCallable[StreamRequest, StreamResponse]]",
    request: Callable[[int], StreamRequest],
    convert: Callable[[StreamResponse], T],
    resumption: Resumption,
) -> AsyncIterator[T]:
    """Yield the messages of a stream as ``idalloc._sync.streams.read_stream`` does."""
    while resumption.missing > 0:
        with least_busy(client._connections) as connection:
            stubs = connection.stubs()
            message = request(resumption.missing)
            asked = 0 if client._log is None else client._log.now()
            process, checker = process_marker(), ChunkChecker(message)
            call = method(stubs)(message, timeout=resumption.time_left(), metadata=client._config.metadata)
            try:
                with translate_rpc_errors(client.target):
                    async for response in call:
                        count = checker.check(response)
                        if client._log is not None:
                            log_chunk(client._log, message, response, asked)
                        resumption.received(count)
                        yield convert(response)
                        if not next(process):
                            connection.stubs()  # raises: the call is the parent's
                        if not checker.missing:
                            await _await_end(call, checker)
                    checker.end()
            except IdallocError as error:
                await asyncio.sleep(resumption.retry_delay(error))
            finally:
                if next(process):
                    call.cancel()
                else:
                    leak(call)


async def _await_end(call: AsyncIterable[StreamResponse], checker: ChunkChecker) -> None:
    """Wait for the end of a stream whose total has arrived. A further message is an error."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_TIMEOUT):
            async for response in call:
                checker.check(response)
