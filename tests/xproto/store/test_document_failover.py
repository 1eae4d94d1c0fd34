"""Documents while CrateDB fails over: an add reaches a live host within its timeout, or ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from idalloc_server.domain.errors import StoreFailure, StoreOutcomeUnknown, StoreUnreachable
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DuplicateKey
from idalloc_xproto.documents.protocol import Documents, Inserted
from idalloc_xproto.stores.urls import open_documents
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.xproto.store.test_contract_documents import with_key

ADDED = [Document(key, f'{{"_id": "{key}"}}') for key in "abc"]
INSERT, LOOK_UP = "UNNEST", "LENGTH"  # in the statements of an add


@pytest.fixture
async def crate() -> AsyncIterator[CrateEmulator]:
    async with CrateEmulator() as crate:
        yield crate
        assert crate.unknown == []


@pytest.fixture
async def open_with() -> AsyncIterator[Callable[[str, float], Awaitable[Documents]]]:
    """Open documents on hosts with a timeout, with the collection s.c."""
    opened: list[Documents] = []

    async def run(hosts: str, timeout: float) -> Documents:
        opened.append(open_documents(f"crate://{hosts}/?schema=idalloc", timeout))
        await opened[-1].open()
        await opened[-1].create_schema("s")
        await opened[-1].create_collection("s", "c")
        return opened[-1]

    yield run
    for each in opened:
        await each.close()


OpenWith = Callable[[str, float], Awaitable[Documents]]


@pytest.mark.parametrize("kind", ["drop", "reset"])
@pytest.mark.parametrize("applied", [True, False])
async def test_an_add_survives_a_killed_host(
    crate: CrateEmulator, open_with: OpenWith, kind: str, applied: bool
) -> None:
    """An add whose host is killed goes to the next one; it is stored once, even if applied."""
    documents = await open_with(f"{crate.host},127.0.0.1:{await crate.listen()}", 20)
    crate.inject(Fault(kind, match=INSERT, applied=applied))  # type: ignore[arg-type]
    assert await documents.insert("s", "c", ADDED) == Inserted(3, 0)
    assert await documents.page("s", "c", None) == ADDED
    assert len({port for port, statement in crate.requests if INSERT in statement}) == 2
    with pytest.raises(DuplicateKey):
        await documents.insert("s", "c", ADDED[:1])


async def test_an_add_revives_no_removed_document(crate: CrateEmulator, open_with: OpenWith) -> None:
    """A repeated add has an unknown outcome if another client removed a document of it."""
    documents = await open_with(crate.host, 20)

    async def lose_and_remove() -> None:
        crate.inject(Fault("drop", match=INSERT))
        crate.meanwhile.append((INSERT, lambda: documents.rewrite("s", "c", with_key("b"), lambda _: None)))

    crate.meanwhile.append((INSERT, lose_and_remove))
    with pytest.raises(StoreOutcomeUnknown, match="others changed a document"):
        await documents.insert("s", "c", ADDED)
    assert crate.meanwhile == []


@pytest.mark.parametrize("added", [ADDED, ADDED[:1]], ids=["several", "one"])
@pytest.mark.parametrize("then", [INSERT, "_version"])
async def test_a_repeated_add_that_fails_has_an_unknown_outcome(
    crate: CrateEmulator, open_with: OpenWith, added: list[Document], then: str
) -> None:
    """An add whose first attempt may be applied never says that nothing was written."""
    documents = await open_with(crate.host, 20)
    crate.inject(Fault("drop", match=INSERT))
    crate.inject(Fault("error", match=then, times=-1, status=403, code=4037, message="disk nearly full"))
    with pytest.raises(StoreOutcomeUnknown, match="disk nearly full"):
        await documents.insert("s", "c", added)
    crate.clear_faults()
    assert await documents.page("s", "c", None) == added


@pytest.mark.parametrize("match", ["document_collections", LOOK_UP])
async def test_an_add_waits_for_a_master(crate: CrateEmulator, open_with: OpenWith, match: str) -> None:
    """An add during an election, which live hosts refuse at once, is stored once it has ended."""
    documents = await open_with(f"{crate.host},127.0.0.1:{await crate.listen()}", 20)
    crate.inject(Fault("error", match=match, times=3))
    assert await documents.insert("s", "c", ADDED) == Inserted(3, 0)


@pytest.mark.parametrize(
    ("match", "error"), [("document_collections", StoreUnreachable), (INSERT, StoreOutcomeUnknown)]
)
async def test_no_add_outlives_the_timeout(
    crate: CrateEmulator, open_with: OpenWith, match: str, error: type[StoreFailure]
) -> None:
    """An add to silent hosts ends with store_timeout, and states what may be written."""
    documents = await open_with(f"{crate.host},127.0.0.1:{await crate.listen()}", 0.3)
    crate.inject(Fault("hang", match=match, times=-1, applied=False))
    begun = asyncio.get_running_loop().time()
    with pytest.raises(StoreFailure, match=r"did not answer within 0\.3 s") as raised:
        await documents.insert("s", "c", ADDED)
    assert type(raised.value) is error
    assert 0.3 <= asyncio.get_running_loop().time() - begun < 2.0
