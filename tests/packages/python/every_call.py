"""Make every call of both clients: ``every_call.py SERVER CA TOKEN_FILE``.

The server has TLS and checks tokens. It prints as JSON what the client for threads and the one for
asyncio got, by the names in ``scripts/python.api``.
"""

import asyncio
import inspect
import json
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc

import idalloc
from idalloc.ext.sqlalchemy import idalloc_default

SERVER, CA, TOKEN_FILE = sys.argv[1:]
CREDENTIALS = grpc.ssl_channel_credentials(Path(CA).read_bytes())
TOKEN = Path(TOKEN_FILE).read_text().strip()


async def got(value: Any) -> Any:
    """Return the value of a call of either client: awaited, and with all of its iterator."""
    if inspect.isawaitable(value):
        return await value
    if isinstance(value, AsyncIterator):
        return [each async for each in value]
    return list(value) if isinstance(value, Iterator) else value


async def take(ids: Any, n: int) -> list[int]:
    """Take ids of either client's pool."""
    if isinstance(ids, Iterator):
        return list(islice(ids, n))
    return [await anext(ids) for _ in range(n)]


async def failure(call: Any) -> list[object]:
    """Return the class, reason and metadata of the error with which a call ends."""
    try:
        await got(call())
    except idalloc.IdallocError as error:
        return [type(error).__name__, error.reason, error.metadata]
    raise AssertionError("the call did not fail")


async def allocation(client: Any, sequence: str) -> dict[str, Any]:
    """Make the calls of the client itself."""
    request_id = uuid.uuid4()
    first = await got(client.allocate_range(sequence, 3, request_id=request_id))
    again = await got(client.allocate_range(sequence, 3, request_id=str(request_id)))
    texts = await got(client.allocate_range(f"{sequence}-texts", 2, texts=True))
    parsed = await got(client.parse_id(f"{sequence}-texts", texts.texts[0]))
    batch = await got(client.allocate_ranges([(sequence, 2), ("", 1)]))
    ranges = await got(client.stream_ranges(sequence, 25, 10))
    node = await got(client.update_node(auto_increment_increment=7))
    return {
        "Client.allocate_range": [list(first), list(again), texts.texts],
        "Client.allocate_ranges": [list(batch[0]), type(batch[1]).__name__],
        "Client.parse_id": parsed.to_dict(),
        "Client.stream_ranges": [each for ids in ranges for each in ids],
        "Client.doc_ids": await got(client.doc_ids(2)),
        "Client.stream_doc_ids": [each for ids in await got(client.stream_doc_ids(25, 10)) for each in ids],
        "Client.uuids": [str(each) for n, version in ((2, 7), (1, 4)) for each in await got(client.uuids(n, version))],
        "Client.update_node": node.auto_increment_increment,
        "Client.node": (await got(client.node())).to_dict(),
    }


async def parts(client: Any, sequence: str) -> dict[str, Any]:
    """Make the calls of a pool and of a stream."""
    ids, stream = client.ids(sequence), client.allocate_stream()
    pooled = await take(ids, 3)
    ids.clear()
    found = {
        "Client.ids": pooled,
        "Ids.clear": await take(ids, 1),
        "Client.allocate_stream": type(stream).__name__,
        "AllocateStream.allocate_range": list(await got(stream.allocate_range(sequence, 2, idempotent=True))),
        "AllocateStream.doc_ids": await got(stream.doc_ids()),
        "AllocateStream.close": await got(stream.close()),
    }
    try:
        await got(stream.doc_ids())
    except RuntimeError as error:
        found["AllocateStream.close"] = str(error)
    return found


async def administration(client: Any, name: str) -> dict[str, Any]:
    """Make the calls of ``client.sequences``."""
    sequences = client.sequences
    created = await got(sequences.create(name, start=10, description="by a test", labels={"team": "tests"}))
    read = await got(sequences.get(name))
    updated = await got(sequences.update(name, etag=read.etag, description=None))
    advanced = await got(sequences.advance(name, 500))
    deleted = await got(sequences.delete(name))
    return {
        "Client.sequences.create": [created.start, created.description, dict(created.labels)],
        "Client.sequences.get": read == created,
        "Client.sequences.update": updated.sequence.description,
        "Client.sequences.advance": advanced.sequence.last_value,
        "Client.sequences.delete": deleted.sequence.delete_time is not None,
        "Client.sequences.list": [
            [each.name for each in await got(sequences.list(name, show_deleted=shown))] for shown in (False, True)
        ],
    }


async def errors(client: Any, kind: Any) -> list[list[object]]:
    """Return the errors of calls that fail."""
    stranger = kind(SERVER, credentials=CREDENTIALS, token="wrong")
    lost = kind("127.0.0.1:1", timeout=0.5)
    found = [
        await failure(lambda: client.allocate_range("orders", 2_000_000)),
        await failure(lambda: client.sequences.get("nowhere")),
        await failure(lambda: client.uuids(0)),
        await failure(stranger.node),
        await failure(lost.node),
    ]
    for each in (stranger, lost):
        await got(each.close())
    return found


async def every_call(kind: Any, sequence: str) -> dict[str, Any]:
    """Make every call of a client."""
    client = kind(SERVER, credentials=CREDENTIALS, token=TOKEN)
    await got(client.sequences.create(f"{sequence}-texts", format="INV-{value:06d}"))
    found = {
        **await allocation(client, sequence),
        **await parts(client, sequence),
        **await administration(client, f"{sequence}-made"),
        "errors": await errors(client, kind),
        "last_value": (await got(client.sequences.get(sequence))).last_value,
    }
    await got(client.close())
    try:
        await got(client.node())
    except RuntimeError as error:
        found["Client.close"] = str(error)
    configured = kind.from_environment(timeout=30)
    found["Client.from_environment"] = (await got(configured.node())).version
    await got(configured.close())
    return found


def main() -> None:
    """Print what both clients got."""
    found = {
        "installed": [idalloc.__version__, idalloc.__file__],
        "threads": asyncio.run(every_call(idalloc.Client, "threads")),
        "asyncio": asyncio.run(every_call(idalloc.aio.Client, "asyncio")),
    }
    next_id = idalloc_default("threads")
    found["ext.sqlalchemy.idalloc_default"] = [next_id(), next_id()]
    print(json.dumps(found))


main()
