"""A web service that numbers invoices: each POST /invoices returns the next number of the year.

    pip install . starlette uvicorn  # in a clone of idalloc
    uvicorn invoice_service:app --port 8000
    curl --request POST --header "Idempotency-Key: $(uuidgen)" http://127.0.0.1:8000/invoices

Needs an idalloc server. IDALLOC_SERVER is its address (default 127.0.0.1:50051); IDALLOC_CA and
IDALLOC_TOKEN_FILE are the CA and the token, if the server needs them.

A caller that gets no answer, or 503, sends the request again with the same Idempotency-Key. For an
hour (the server's request_id_window) the same key gets the same number, from any process of this
service. Numbers are unique, not gapless.
"""

import logging
import math
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import idalloc
import idalloc.aio

SEQUENCE = "example_invoices"
TIMEOUT = 4.0  # seconds, including the client's retries

log = logging.getLogger("uvicorn.error")


class State(TypedDict):
    client: idalloc.aio.Client


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[State]:
    """Open the client in the event loop of the app, once for all requests."""
    async with idalloc.aio.Client.from_environment(timeout=TIMEOUT) as client:
        with suppress(idalloc.SequenceExists):
            await client.sequences.create(
                SEQUENCE, format="INV-{year}-{value:06d}", reset="yearly", time_zone="Europe/Vienna"
            )
        yield {"client": client}


async def create_invoice(request: Request) -> Response:
    key = request_key(request)
    client: idalloc.aio.Client = request.state.client
    [number] = (await client.allocate_range(SEQUENCE, request_id=key, texts=True)).texts
    # Write the invoice here, with the key or the number as its primary key, so that a repeat does
    # not write it twice.
    return JSONResponse({"number": number}, status_code=201)


def request_key(request: Request) -> uuid.UUID:
    try:
        key = uuid.UUID(request.headers.get("Idempotency-Key", ""))
    except ValueError:
        key = uuid.NAMESPACE_URL  # of version 1
    if key.version != 4:
        raise HTTPException(400, "the header Idempotency-Key must be a UUID of version 4")
    return key


async def unavailable(_: Request, error: Exception) -> Response:
    """Answer 503: the same request with the same key may succeed later."""
    assert isinstance(error, idalloc.IdallocError)
    log.warning("no invoice number: %s: %s", error.reason, error)
    seconds = math.ceil(error.retry_after or 1)
    return JSONResponse({"error": error.reason}, status_code=503, headers={"Retry-After": str(seconds)})


async def key_rejected(_: Request, error: Exception) -> Response:
    """Answer 409: only a new key gets a number."""
    assert isinstance(error, idalloc.IdallocError)
    return JSONResponse({"error": error.reason}, status_code=409)


app = Starlette(
    routes=[Route("/invoices", create_invoice, methods=["POST"])],
    lifespan=lifespan,
    # Any other error of idalloc needs an operator or a fix: Starlette answers 500 and logs it.
    exception_handlers={
        idalloc.Unavailable: unavailable,
        idalloc.DeadlineExceeded: unavailable,
        idalloc.RequestIdReused: key_rejected,
        idalloc.RequestIdBurned: key_rejected,
    },
)
