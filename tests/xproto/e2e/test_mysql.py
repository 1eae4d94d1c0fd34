"""Compares serials of document ids with a live MySQL, as offset, increment and prefix change."""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator

import pytest

from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from tests.support import environments
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.paths import ROOT
from tests.xproto.support.mysql import server

pytestmark = [
    pytest.mark.mysql,
    pytest.mark.timeout(900),  # including downloads and installation
    pytest.mark.skipif("IDALLOC_TEST_MYSQL" not in os.environ, reason="needs a live MySQL: make test-mysql"),
]

Insert = Callable[[int, int, int, int], list[str]]


@pytest.fixture
def insert() -> Iterator[Insert]:
    """Return a function that inserts documents into a new MySQL and return their ids."""
    interpreter = environments.mysqlx_python()
    with server.running() as port:
        client = subprocess.Popen(
            [interpreter, ROOT / "tests/xproto/support/mysql/insert_documents.py", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with client:
            assert client.stdin is not None
            assert client.stdout is not None
            requests, answers = client.stdin, client.stdout

            def insert(offset: int, increment: int, prefix: int, count: int) -> list[str]:
                wanted = {"offset": offset, "increment": increment, "prefix": prefix, "count": count}
                requests.write(json.dumps(wanted) + "\n")
                requests.flush()
                ids: list[str] = json.loads(answers.readline())
                return ids

            yield insert
        assert client.returncode == 0


def settings(chance: random.Random) -> Iterator[tuple[int, int]]:
    """Yield offsets and increments: edges, small ones with a distant offset, and random ones."""
    edges = [1, 2, 3, 10, 16, 255, 256, 65_534, 65_535]
    yield from [(10, 3), (16, 8), (1, 1), (65_535, 2), (65_535, 65_535), (5, 1)]
    for _ in range(100):
        yield chance.choice(edges), chance.choice(edges)
        yield chance.randint(1, 40), chance.randint(1, 12)
        yield chance.randint(1, 65_535), chance.randint(1, 65_535)


async def test_serials_equal_those_of_mysql(insert: Insert) -> None:
    """The same offsets, increments and prefixes give the same serials as on a live MySQL."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    start_timestamps = StartTimestamps(MemoryStore(), FakeClock(), prefix=0, holder="test", max_clock_skew=1)
    doc_ids = DocIdGenerator(start_timestamps, await start_timestamps.start())
    compared = 0
    for offset, increment in settings(chance):
        if chance.random() < 0.1:
            await doc_ids.change(prefix=chance.randint(0, 65_535))
        count = chance.choice([1, 2, 7, 50])
        theirs = insert(offset, increment, doc_ids.prefix, count)
        ours = [text for run in await doc_ids.issue(count, offset, increment) for text in run.texts()]
        # All but the timestamp, for which MySQL uses its clock.
        assert [(text[:4], text[12:]) for text in ours] == [(text[:4], text[12:]) for text in theirs], (
            f"seed {seed}, offset {offset}, increment {increment}"
        )
        compared += len(ours)
    assert compared > 1000
