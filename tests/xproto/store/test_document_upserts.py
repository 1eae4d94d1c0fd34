"""An upsert without _id whose made id a client has used acts as in MySQL 8.0.31, on every store."""

from collections.abc import Iterator

import pytest

from idalloc.xprotocol.v1 import crud_pb2
from idalloc_xproto.documents.protocol import Documents
from tests.support.store_backends import WITH_DOCUMENTS
from tests.xproto.store.test_contract_documents import all_of, documents
from tests.xproto.support.caller import FakeCaller, reply_to
from tests.xproto.support.client import Reply, insert

__all__ = ["documents"]

pytestmark = pytest.mark.parametrize("opener", WITH_DOCUMENTS, indirect=True)


def serials(*numbers: int) -> Iterator[str]:
    return iter([f"00006b08842d{number:016x}" for number in numbers])


async def run(documents: Documents, message: crud_pb2.Insert, *ids: int) -> Reply:
    reply = Reply()
    for frame in await reply_to(documents, message, FakeCaller(doc_ids=serials(*ids))):
        reply.add(frame[4], frame[5:])
    return reply


def upsert(*texts: str) -> crud_pb2.Insert:
    message = insert(*texts)
    message.upsert = True
    return message


@pytest.mark.parametrize(("stored", "affected"), [({"client": 1}, 2), ({"n": 1}, 0)])
async def test_an_upsert_replaces_the_document_of_its_made_id(
    documents: Documents, stored: dict[str, int], affected: int
) -> None:
    """The client's document is replaced: two rows affected, none if equal; the reply has the id."""
    [made] = serials(2)
    (name, value), *_ = stored.items()
    assert (await run(documents, insert(f'{{"_id": "{made}", "{name}": {value}}}'))).affected == 1
    reply = await run(documents, upsert('{"n": 1}'), 2)
    assert (reply.code, reply.affected, reply.ids) == (0, affected, [made])
    assert [found.text for found in await all_of(documents)] == [f'{{"n": 1, "_id": "{made}"}}']


async def test_an_upsert_of_several_replaces_and_adds(documents: Documents) -> None:
    """Of three documents the second meets a client's: four rows affected, three ids returned."""
    [met] = serials(3)
    await run(documents, insert(f'{{"_id": "{met}", "client": 2}}'))
    reply = await run(documents, upsert('{"a": 1}', '{"a": 2}', '{"a": 3}'), 2, 3, 4)
    assert (reply.code, reply.affected, reply.ids) == (0, 4, [*serials(2, 3, 4)])
    assert [found.key for found in await all_of(documents)] == [*serials(2, 3, 4)]


async def test_an_insert_does_not_replace(documents: Documents) -> None:
    """Without upsert the made id of a client's document is 5116, and the document stays."""
    [made] = serials(2)
    await run(documents, insert(f'{{"_id": "{made}", "client": 3}}'))
    assert (await run(documents, insert('{"p": 1}'), 2)).code == 5116
    assert [found.key for found in await all_of(documents)] == [made]
