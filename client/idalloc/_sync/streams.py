"""A stream of the client for threads, which goes on where it broke."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc

from idalloc._core.errors import IdallocError, translated
from idalloc._core.fork import this_process
from idalloc._core.replies import Chunks
from idalloc._core.requests import StreamRequest, StreamResponse
from idalloc._core.resumption import LONGEST_END, Resumption
from idalloc._issued_log.log import log_chunk
from idalloc._sync.base import BaseClient, Stubs
from idalloc._transport.channel import least_busy, leave_behind

T = TypeVar("T")


def resume(
    client: BaseClient,
    method: "Callable[[Stubs], grpc.UnaryStreamMultiCallable[StreamRequest, StreamResponse]]",
    request: Callable[[int], StreamRequest],
    convert: Callable[[StreamResponse], T],
    resumption: Resumption,
) -> Iterator[T]:
    """Gives what a stream brings; asks for what is missing where it breaks.

    Args:
        client: Whose stream it is.
        method: Begins it.
        request: Makes the request for a number of ids.
        convert: What to give for a message.
        resumption: How much is missing.
    """
    while resumption.missing > 0:
        with least_busy(client._connections) as connection:
            stubs = connection.get()
            message = request(resumption.missing)
            asked = 0 if client._log is None else client._log.now()
            process, chunks = this_process(), Chunks(message)
            with translated(client.target), connection.inside_grpc(stubs):
                call = method(stubs)(message, timeout=resumption.time_left(), metadata=client._access.metadata)
            try:
                with translated(client.target):
                    responses = connection.responses(stubs, call)
                    for response in responses:
                        if not next(process):
                            break  # in the child of a fork, where the call is the parent's
                        count = chunks.check(response)
                        if client._log is not None:
                            log_chunk(client._log, message, response, asked)
                        resumption.received(count)
                        yield convert(response)
                        connection.get()  # refuses when the client was closed, or gRPC is not usable after a fork
                        if not next(process):
                            break
                        if not chunks.missing:
                            _end(responses, call, chunks)
                    else:
                        chunks.end()
            except IdallocError as error:
                time.sleep(resumption.pause(error))
            finally:
                if next(process):
                    with connection.inside_grpc(stubs, call):
                        call.cancel()
                else:
                    leave_behind(call)


def _end(responses: Iterator[StreamResponse], call: grpc.RpcContext, chunks: Chunks) -> None:
    """Waits for the end of a stream that has brought its total. A message that comes in its place is refused."""
    timer = threading.Timer(LONGEST_END, call.cancel)
    timer.daemon = True
    try:
        timer.start()
        for response in responses:
            chunks.check(response)
    finally:
        timer.cancel()
