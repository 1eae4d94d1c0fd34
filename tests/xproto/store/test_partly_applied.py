"""A statement on documents that CrateDB applied in part never says that nothing was written."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from idalloc_server.domain.errors import StoreAnsweredError, StoreOutcomeUnknown
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DuplicateKey
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.documents.selection import Selection
from idalloc_xproto.stores.urls import open_documents
from tests.support.cratedb.emulator import CrateEmulator, Fault

MANY = [Document(f"{number:04}", "{}") for number in range(1001)]  # two statements
FEW = MANY[:3]


def passes(match: str, times: int = 1) -> Fault:
    """Let statements pass before the next fault."""
    return Fault("delay", match=match, times=times)


def refused(match: str, times: int = 1) -> Fault:
    """The statement is answered with an error, and not applied."""
    return Fault("error", match=match, times=times, status=403, code=4037, message="disk nearly full")


@pytest.fixture
async def crate() -> AsyncIterator[CrateEmulator]:
    async with CrateEmulator() as crate:
        yield crate
        assert crate.unknown == []


@pytest.fixture
async def documents(crate: CrateEmulator) -> AsyncIterator[Documents]:
    documents = open_documents(f"crate://{crate.host}/?schema=idalloc")
    await documents.open()
    for name in ("shop", "other"):
        await documents.create_schema(name)
    for name in ("orders", "customers"):
        await documents.create_collection("shop", name)
    yield documents
    await documents.close()


Statement = Callable[[Documents], Awaitable[object]]


@pytest.mark.parametrize(
    ("before", "statement", "faults", "error"),
    [
        ([], lambda store: store.insert("shop", "orders", MANY), [refused("UNNEST")], StoreAnsweredError),
        (
            [],
            lambda store: store.insert("shop", "orders", MANY),
            [passes("UNNEST"), refused("UNNEST")],
            StoreAnsweredError,
        ),
        (
            [],
            lambda store: store.insert("shop", "orders", MANY),
            [passes("UNNEST"), refused("UNNEST"), refused("DELETE")],
            StoreOutcomeUnknown,
        ),
        (FEW[2:], lambda store: store.insert("shop", "orders", FEW), [], DuplicateKey),
        ([], lambda store: store.insert("shop", "orders", FEW, upsert=True), [refused("UNNEST")], StoreAnsweredError),
        (
            [],
            lambda store: store.insert("shop", "orders", FEW, upsert=True),
            [passes("UNNEST"), refused("UNNEST")],
            StoreOutcomeUnknown,
        ),
        (
            FEW,
            lambda store: store.rewrite("shop", "orders", Selection(), lambda _: None),
            [refused("DELETE")],
            StoreAnsweredError,
        ),
        (
            FEW,
            lambda store: store.rewrite("shop", "orders", Selection(), lambda _: None),
            [passes("DELETE"), refused("DELETE")],
            StoreOutcomeUnknown,
        ),
        (
            MANY[:201],
            lambda store: store.rewrite("shop", "orders", Selection(), lambda _: None),
            [passes("SELECT doc_id, doc", 3), refused("SELECT doc_id, doc", -1)],
            StoreOutcomeUnknown,
        ),
        ([], lambda store: store.drop_schema("shop"), [refused("DROP")], StoreAnsweredError),
        ([], lambda store: store.drop_schema("shop"), [passes("DROP"), refused("DROP")], StoreOutcomeUnknown),
        ([], lambda store: store.drop_collection("shop", "orders"), [refused("DELETE")], StoreOutcomeUnknown),
        ([], lambda store: store.create_collection("other", "c"), [refused("CREATE")], StoreOutcomeUnknown),
    ],
)
async def test_the_error_says_whether_something_was_applied(
    crate: CrateEmulator,
    documents: Documents,
    before: list[Document],
    statement: Statement,
    faults: list[Fault],
    error: type[Exception],
) -> None:
    """The outcome is unknown if a part was applied and could not be undone, and only then."""
    if before:
        await documents.insert("shop", "orders", before)
    crate.inject(*faults)
    with pytest.raises(error) as raised:
        await statement(documents)
    assert type(raised.value) is error
    if error is not StoreOutcomeUnknown:
        assert await documents.count("shop", "orders") == len(before)
        assert await documents.list_collections("shop") == ["customers", "orders"]
