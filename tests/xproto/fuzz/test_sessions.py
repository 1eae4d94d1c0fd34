"""Sessions with damaged frames after their login harm neither the port nor other sessions."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from idalloc.xprotocol.v1 import statement_pb2
from idalloc_xproto import frames
from idalloc_xproto.documents.document import Document
from tests.fuzz.inputs import EXAMPLES, TRIED
from tests.support.faults.resources import read_resources
from tests.xproto.fuzz.test_statements import RECORDED, SENT, parsed
from tests.xproto.support.client import Reply, insert
from tests.xproto.support.served import Served, served

# ``make fuzz`` sends 100,000.
FRAMES = EXAMPLES * 5 or 200
OF_A_SESSION, AT_ONCE = 10, 5
MOST_MB = 100

STATEMENTS = [
    frames.frame(12, statement_pb2.StmtExecute(stmt=text.encode()))
    for text in (
        "CREATE DATABASE IF NOT EXISTS raw", "DROP DATABASE raw", "DROP TABLE raw.c", "SELECT COUNT(*) FROM raw.c",
        "SHOW DATABASES LIKE 'r%'", "SET SESSION auto_increment_increment = 7, auto_increment_offset = 3", "USE raw",
        "SET GLOBAL mysqlx_document_id_unique_prefix = 9", "SELECT @@version, CONNECTION_ID(), 'text' AS t LIMIT 1",
    )
]  # fmt: skip
ADD = frames.frame(18, insert("{}", '{"n": 1}', schema="raw"))
KINDS = [RECORDED, SENT, STATEMENTS, [ADD]]
# How many of the frames that cannot be parsed are sent: the first one ends its session.
UNPARSED = 0.03


def damaged(random: Random, frame: bytes) -> bytes:
    """Return a frame with bytes changed, removed, doubled or inserted; its length is right."""
    content = bytearray(frame[4:]) or bytearray(1)
    for _ in range(random.randint(0, 3)):
        at, size = random.randint(1, len(content)), random.randint(1, 8)
        how = random.choice(("flip", "cut", "double", "insert"))
        if how == "flip":
            # Also the frame's type, now and then.
            content[random.randrange(len(content))] ^= random.randint(1, 255)
        elif how == "cut":
            del content[at : at + size]
        else:
            content[at:at] = content[at : at + size] if how == "double" else random.randbytes(size)
    return len(content).to_bytes(4, "little") + bytes(content)


def drawn(random: Random) -> bytes:
    """Return a frame to send."""
    while True:
        frame = damaged(random, random.choice(random.choice(KINDS)))
        if parsed(frame) is not None or random.random() < UNPARSED:
            return frame


def replies_of(content: bytes) -> Iterator[Reply]:
    """Yield each frame that a server sent, and assert that nothing follows the last one."""
    while content:
        size = int.from_bytes(content[:4], "little")
        assert 1 <= size <= len(content) - 4
        reply = Reply()
        reply.add(content[4], content[5 : 4 + size])
        yield reply
        content = content[4 + size :]


async def converse(port: Served, random: Random) -> list[Reply]:
    """Send damaged frames in a session of its own, and return the frames of the answers."""
    client = await port.client("root")
    client.writer.write(b"".join(drawn(random) for _ in range(OF_A_SESSION)))
    if random.random() < 0.1:
        client.writer.write(random.randbytes(20))
        client.close()
        return []
    client.writer.write(frames.frame(3))
    try:
        async with asyncio.timeout(60):
            return list(replies_of(await client.rest()))
    finally:
        client.close()


async def refill(port: Served) -> None:
    """Make the recorded collection as the frames expect it."""
    await port.documents.drop_schema("raw")
    await port.documents.create_schema("raw")
    await port.documents.create_collection("raw", "c")
    await port.documents.insert("raw", "c", [Document(f"a{n}", f'{{"_id": "a{n}", "n": {n}}}') for n in range(3)])


@contextmanager
def faults() -> Iterator[list[object]]:
    """Return the log without the audit, which would fill memory, and the event loop's errors."""
    found: list[object] = []

    def keep(logger: object, method: str, line: Any) -> Any:
        if line["event"] != "audit":
            found.append(line)
        raise structlog.DropEvent

    processors = structlog.get_config()["processors"]
    before = list(processors)
    processors[:] = [keep]
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: found.append(context))
    try:
        yield found
    finally:
        processors[:] = before


@pytest.mark.parametrize("seed", [1 if not EXAMPLES else Random().getrandbits(32)])
async def test_damaged_frames_after_a_login_harm_nobody(tmp_path: Path, tried: str, seed: int) -> None:
    """Whatever a session sends: no fault, no repeated id, bounded memory; new sessions work."""
    random, seen, codes = Random(seed), set[str](), Counter[int]()
    made, rest = 0, 0.0
    async with served(tmp_path) as port:
        with faults() as found:
            for number in range(0, FRAMES, OF_A_SESSION * AT_ONCE):
                await refill(port)
                sessions = [converse(port, Random(random.getrandbits(64))) for _ in range(AT_ONCE)]
                for reply in [reply for replies in await asyncio.gather(*sessions) for reply in replies]:
                    codes[reply.code] += 1
                    made += len(reply.ids)
                    seen.update(reply.ids)
                assert found == [], f"seed {seed}, after {number} frames"
                if number <= FRAMES // 10:
                    rest = read_resources(os.getpid()).memory
            TRIED[tried] += FRAMES
            client = await port.client("root")
            await refill(port)
            assert (await client.sql("SELECT 1")).rows == [b"\x02"]
            last = (await client.add("{}", schema="raw")).ids
            client.close()
    assert found == []
    assert len(seen) == made > FRAMES // 50
    assert len(last) == 1
    assert not seen.intersection(last)
    assert {0, 5000} <= {*codes}
    assert read_resources(os.getpid()).memory - rest < MOST_MB
