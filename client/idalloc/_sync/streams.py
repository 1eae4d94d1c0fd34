"""Streams of the client for threads, which resume after a break."""

import threading
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import grpc

from idalloc._core.errors import IdallocError
from idalloc._core.fork import process_marker
from idalloc._core.resumption import END_TIMEOUT, Stream
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._sync.base import BaseClient
from idalloc._transport.channel import leak, least_busy

T = TypeVar("T")


def read_stream(client: BaseClient, stream: Stream[T]) -> Iterator[T]:
    """Yield the converted messages of a stream; if it breaks, request the missing ids again."""
    while stream.missing > 0:
        client._find_servers()
        with least_busy(client._connections) as connection:
            stubs = connection.stubs()
            process = process_marker()
            request = stream.start_attempt()
            asked = client._now()
            with translate_rpc_errors(client.target), connection.abandon_if_interrupted(stubs):
                call = stubs.rpc(request)(request, timeout=stream.time_left(), metadata=client._metadata())
            try:
                with translate_rpc_errors(client.target):
                    responses = connection.responses(stubs, call)
                    for response in responses:
                        if not next(process):
                            break  # in a forked child, where the call is the parent's
                        stream.check(response)
                        client._record(request, response, asked)
                        yield stream.convert(response)
                        connection.stubs()  # raises if the client is closed, or gRPC is unusable after a fork
                        if not next(process):
                            break
                        if not stream.missing:
                            _await_end(responses, call, stream)
                    else:
                        stream.check_end()
            except IdallocError as error:
                client._failed(connection, error)
                time.sleep(stream.retry_delay(error))
            finally:
                if next(process):
                    with connection.abandon_if_interrupted(stubs, call):
                        call.cancel()
                else:
                    leak(call)


def _await_end(responses: Iterator[Any], call: grpc.RpcContext, stream: Stream[Any]) -> None:
    """Wait for the end of a stream whose total has arrived. A further message is an error."""
    timer = threading.Timer(END_TIMEOUT, call.cancel)
    timer.daemon = True
    try:
        timer.start()
        for response in responses:
            stream.check(response)
    finally:
        timer.cancel()
