"""Adds of one document that wait for CrateDB share a request; each has an outcome of its own."""

import asyncio
from collections.abc import Sequence

import pytest

from idalloc_server.domain.errors import StoreAnsweredError, StoreOutcomeUnknown, StoreUnreachable
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DuplicateKey, UnknownCollection
from idalloc_xproto.documents.protocol import Documents, Inserted
from idalloc_xproto.stores.cratedb import MAX_JOINED_ADDS, MAX_JOINED_TEXT
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.waiting import until
from tests.xproto.store.test_contract_documents import all_of, with_key
from tests.xproto.store.test_document_failover import OpenWith, crate, open_with

__all__ = ["crate", "open_with"]

LOOK_UP, INSERT = "document_collections", "UNNEST"  # the statements of an add
ADDED = Inserted(1, 0)
MANY = [Document(f"{number:04}", f'{{"_id": "{number:04}"}}') for number in range(3 * MAX_JOINED_ADDS)]
A, B, C, D = MANY[:4]


@pytest.fixture
async def documents(crate: CrateEmulator, open_with: OpenWith) -> Documents:
    documents = await open_with(crate.host, 20)
    crate.requests.clear()
    return documents


def adding(documents: Documents, *added: Document) -> list[asyncio.Task[Inserted]]:
    return [asyncio.create_task(documents.insert("s", "c", [document])) for document in added]


async def outcomes(adds: Sequence[asyncio.Task[Inserted]]) -> list[Inserted | BaseException]:
    return await asyncio.gather(*adds, return_exceptions=True)


def sent(crate: CrateEmulator, what: str) -> int:
    return sum(what in statement for statement in crate.texts())


async def arrival(crate: CrateEmulator, what: str, number: int = 1) -> None:
    await until(lambda: sent(crate, what) == number, f"statement {number} with {what}")


class TestRequests:
    async def test_adds_together_are_one_request(self, crate: CrateEmulator, documents: Documents) -> None:
        """Adds that begin together have one look-up and one statement, and are all stored."""
        together = MANY[:MAX_JOINED_ADDS]
        assert await outcomes(adding(documents, *together)) == [ADDED] * MAX_JOINED_ADDS
        assert [sent(crate, LOOK_UP), sent(crate, INSERT)] == [1, 1]
        assert await all_of(documents) == together

    async def test_a_request_has_at_most_so_many_adds(self, crate: CrateEmulator, documents: Documents) -> None:
        """More adds than the limit take several requests."""
        assert await outcomes(adding(documents, *MANY)) == [ADDED] * len(MANY)
        assert [sent(crate, LOOK_UP), sent(crate, INSERT)] == [3, 3]
        assert await all_of(documents) == MANY

    async def test_adds_share_the_request_after_the_one_under_way(
        self, crate: CrateEmulator, documents: Documents
    ) -> None:
        """Adds that come while a request is under way wait for its end, and share the next one."""
        waiting: list[asyncio.Task[Inserted]] = []

        async def add_others() -> None:
            waiting.extend(adding(documents, B, C, D))
            await asyncio.sleep(0)

        crate.meanwhile.append((INSERT, add_others))
        assert await documents.insert("s", "c", [A]) == ADDED
        assert await outcomes(waiting) == [ADDED] * 3
        assert [sent(crate, LOOK_UP), sent(crate, INSERT)] == [2, 2]

    async def test_a_lone_add_does_not_wait(self, crate: CrateEmulator, documents: Documents) -> None:
        """An add alone has a look-up and a statement, as a batch has; another may follow."""
        for document in (A, B):
            assert await documents.insert("s", "c", [document]) == ADDED
        assert [sent(crate, LOOK_UP), sent(crate, INSERT)] == [2, 2]

    @pytest.mark.parametrize("several", [True, False])
    async def test_batches_and_large_documents_do_not_wait(
        self, crate: CrateEmulator, documents: Documents, several: bool
    ) -> None:
        """An add of several documents, or of a large one, begins while a request is under way."""
        crate.inject(Fault("hang", match=INSERT, applied=False))
        [held] = adding(documents, A)
        await arrival(crate, INSERT)
        batch = [B, C] if several else [Document("large", "x" * (MAX_JOINED_TEXT + 1))]
        assert await documents.insert("s", "c", batch) == Inserted(len(batch), 0)
        held.cancel()

    async def test_collections_do_not_wait_for_each_other(self, crate: CrateEmulator, documents: Documents) -> None:
        """An add waits for a request of its collection alone."""
        await documents.create_collection("s", "other")
        crate.inject(Fault("hang", match=INSERT, applied=False))
        [held] = adding(documents, A)
        await arrival(crate, INSERT)
        assert await documents.insert("s", "other", [A]) == ADDED
        held.cancel()


class TestFailures:
    async def test_a_duplicate_fails_alone(self, documents: Documents) -> None:
        """Of adds together, one with a key that exists fails, and the others are stored."""
        await documents.insert("s", "c", [B])
        found = await outcomes(adding(documents, A, Document(B.key, "{}"), C))
        assert [found[0], found[2]] == [ADDED, ADDED]
        assert isinstance(found[1], DuplicateKey)
        assert await all_of(documents) == [A, B, C]

    async def test_of_equal_keys_the_first_wins(self, crate: CrateEmulator, documents: Documents) -> None:
        """Of adds together with one key the first is stored, and the others are duplicates."""
        found = await outcomes(adding(documents, A, Document(A.key, "{}"), B, Document(A.key, "[]")))
        assert [found[0], found[2]] == [ADDED, ADDED]
        assert [type(found[1]), type(found[3])] == [DuplicateKey, DuplicateKey]
        assert await all_of(documents) == [A, B]
        assert sent(crate, INSERT) == 1

    async def test_a_row_without_an_answer_is_unknown_alone(self, crate: CrateEmulator, documents: Documents) -> None:
        """If CrateDB returns no row for a document, its add alone has an unknown outcome."""
        crate.inject(Fault("partial", match=INSERT))
        found = await outcomes(adding(documents, A, B, C))
        assert [found[0], found[2]] == [ADDED, ADDED]
        assert isinstance(found[1], StoreOutcomeUnknown)
        assert await all_of(documents) == [A, C]

    @pytest.mark.parametrize("match", [LOOK_UP, INSERT])
    async def test_a_refused_request_answers_all(self, crate: CrateEmulator, documents: Documents, match: str) -> None:
        """If CrateDB refuses the request, nothing is stored, and each add says so."""
        crate.inject(Fault("error", match=match, status=403, code=4037, message="disk nearly full"))
        found = await outcomes(adding(documents, A, B, C))
        assert [type(each) for each in found] == [StoreAnsweredError] * 3
        assert await all_of(documents) == []

    async def test_an_unknown_collection_answers_all(self, documents: Documents) -> None:
        """Each of the adds to a collection that does not exist is refused."""
        await documents.drop_collection("s", "c")
        assert [type(each) for each in await outcomes(adding(documents, A, B))] == [UnknownCollection] * 2

    @pytest.mark.parametrize("applied", [True, False])
    async def test_a_lost_request_is_repeated(self, crate: CrateEmulator, documents: Documents, applied: bool) -> None:
        """If the connection is lost, the request is sent again; each document is stored once."""
        await documents.insert("s", "c", [B])
        crate.inject(Fault("drop", match=INSERT, applied=applied))
        found = await outcomes(adding(documents, A, B, C))
        assert [found[0], found[2]] == [ADDED, ADDED]
        assert isinstance(found[1], DuplicateKey)
        assert await all_of(documents) == [A, B, C]

    async def test_a_request_applied_twice_stores_once(self, crate: CrateEmulator, documents: Documents) -> None:
        """If the cluster applies the request twice, each add keeps its answer."""
        await documents.insert("s", "c", [B])
        crate.inject(Fault("duplicate", match=INSERT))
        found = await outcomes(adding(documents, A, B, C))
        assert [found[0], found[2]] == [ADDED, ADDED]
        assert isinstance(found[1], DuplicateKey)
        assert await all_of(documents) == [A, B, C]

    async def test_a_document_that_others_removed_is_unknown_alone(
        self, crate: CrateEmulator, documents: Documents
    ) -> None:
        """After a lost connection only the add whose document others removed is unknown."""

        async def lose_and_remove() -> None:
            crate.inject(Fault("drop", match=INSERT))
            crate.meanwhile.append((INSERT, lambda: documents.rewrite("s", "c", with_key(B.key), lambda _: None)))

        crate.meanwhile.append((INSERT, lose_and_remove))
        found = await outcomes(adding(documents, A, B, C))
        assert [found[0], found[2]] == [ADDED, ADDED]
        assert isinstance(found[1], StoreOutcomeUnknown)
        assert "others changed a document" in str(found[1])
        assert crate.meanwhile == []


class TestCallersThatLeave:
    async def test_an_add_that_was_not_sent_is_dropped(self, crate: CrateEmulator, documents: Documents) -> None:
        """An add whose caller leaves while it waits, or during the look-up, is not stored."""
        adds: list[asyncio.Task[Inserted]] = []

        async def cancel(number: int) -> None:
            adds[number].cancel()
            await asyncio.sleep(0)

        async def add_others() -> None:
            adds.extend(adding(documents, B, C, D))
            await asyncio.sleep(0)
            await cancel(0)

        crate.meanwhile += [(INSERT, add_others), (LOOK_UP, lambda: cancel(2))]
        assert await documents.insert("s", "c", [A]) == ADDED
        found = await outcomes(adds)
        assert [type(each) for each in found] == [asyncio.CancelledError, Inserted, asyncio.CancelledError]
        assert await all_of(documents) == [A, C]

    async def test_an_add_that_was_sent_is_completed(self, crate: CrateEmulator, documents: Documents) -> None:
        """An add whose caller leaves after it was sent is stored, as are those beside it."""
        adds = adding(documents, A, B)

        async def cancel() -> None:
            adds[0].cancel()

        crate.meanwhile.append((INSERT, cancel))
        found = await outcomes(adds)
        assert [type(each) for each in found] == [asyncio.CancelledError, Inserted]
        assert await all_of(documents) == [A, B]

    async def test_if_all_left_nothing_is_sent(self, crate: CrateEmulator, documents: Documents) -> None:
        """A request whose callers all left during the look-up ends without a statement."""
        adds = adding(documents, A, B)

        async def cancel() -> None:
            for add in adds:
                add.cancel()
            await asyncio.sleep(0)

        crate.meanwhile.append((LOOK_UP, cancel))
        await outcomes(adds)
        assert await documents.insert("s", "c", [C]) == ADDED
        assert await all_of(documents) == [C]
        assert sent(crate, INSERT) == 1

    async def test_each_add_has_its_own_timeout(self, crate: CrateEmulator, open_with: OpenWith) -> None:
        """An add that was sent in time is unknown; one that still waited is never stored."""
        documents = await open_with(crate.host, 0.5)
        crate.requests.clear()
        crate.inject(Fault("hang", match=INSERT, applied=False))
        adds = adding(documents, A)
        await arrival(crate, INSERT)
        adds += adding(documents, B)
        crate.meanwhile.append((LOOK_UP, lambda: until(adds[1].done, "the timeout of the second add")))
        assert [type(each) for each in await outcomes(adds)] == [StoreOutcomeUnknown, StoreUnreachable]
        assert await documents.insert("s", "c", [C]) == ADDED
        assert await all_of(documents) == [C]
        assert sent(crate, INSERT) == 2
