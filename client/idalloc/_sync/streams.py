"""Streams of the client for threads, resumed where they break."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc

from idalloc._core.errors import IdallocError
from idalloc._core.fork import process_marker
from idalloc._core.reply_checks import ChunkChecker
from idalloc._core.requests import StreamRequest, StreamResponse
from idalloc._core.resumption import END_TIMEOUT, Resumption
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._issued_log.log import log_chunk
from idalloc._sync.base import BaseClient, Stubs
from idalloc._transport.channel import leak, least_busy

T = TypeVar("T")


def read_stream(
    client: BaseClient,
    method: "Callable[[Stubs], grpc.UnaryStreamMultiCallable[StreamRequest, StreamResponse]]",
    request: Callable[[int], StreamRequest],
    convert: Callable[[StreamResponse], T],
    resumption: Resumption,
) -> Iterator[T]:
    """Yield the messages of a stream; if it breaks, request the missing ids again.

    Args:
        client: The client.
        method: Returns the RPC of the stubs.
        request: Returns the request for a total of ids.
        convert: Converts a message to the value to yield.
        resumption: How many ids are missing.
    """
    while resumption.missing > 0:
        with least_busy(client._connections) as connection:
            stubs = connection.stubs()
            message = request(resumption.missing)
            asked = 0 if client._log is None else client._log.now()
            process, checker = process_marker(), ChunkChecker(message)
            with translate_rpc_errors(client.target), connection.abandon_if_interrupted(stubs):
                call = method(stubs)(message, timeout=resumption.time_left(), metadata=client._config.metadata)
            try:
                with translate_rpc_errors(client.target):
                    responses = connection.responses(stubs, call)
                    for response in responses:
                        if not next(process):
                            break  # in the child of a fork, where the call is the parent's
                        count = checker.check(response)
                        if client._log is not None:
                            log_chunk(client._log, message, response, asked)
                        resumption.received(count)
                        yield convert(response)
                        connection.stubs()  # raises if the client is closed, or gRPC is unusable after a fork
                        if not next(process):
                            break
                        if not checker.missing:
                            _await_end(responses, call, checker)
                    else:
                        checker.end()
            except IdallocError as error:
                time.sleep(resumption.retry_delay(error))
            finally:
                if next(process):
                    with connection.abandon_if_interrupted(stubs, call):
                        call.cancel()
                else:
                    leak(call)


def _await_end(responses: Iterator[StreamResponse], call: grpc.RpcContext, checker: ChunkChecker) -> None:
    """Wait for the end of a stream whose total has arrived. A further message is an error."""
    timer = threading.Timer(END_TIMEOUT, call.cancel)
    timer.daemon = True
    try:
        timer.start()
        for response in responses:
            checker.check(response)
    finally:
        timer.cancel()
