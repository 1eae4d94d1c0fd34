"""The index of a witness: lost or repeated answers, edited rows, confirmed reads, another index."""

from collections.abc import AsyncIterator

import pytest

from idalloc_server.domain.errors import StartRefused, StoreExchanged, StoreFailure, StoreOutcomeUnknown, StoreRefused
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement, Witness
from idalloc_server.store.urls import open_witness
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn

ONE, TWO = (Mark(1, value, 1, token) for value, token in ((10, "one"), (20, "two")))
INDEX = "idalloc-witness-data"


@pytest.fixture
async def witness(opensearch: OpenSearchStandIn) -> AsyncIterator[Witness]:
    witness = open_witness(f"opensearch://{opensearch.host}/", "sqlite:///elsewhere/ids.db")
    await witness.open()
    await witness.replace([Replacement("a", ONE, "")])
    yield witness
    await witness.close()


async def test_a_replacement_applied_twice_succeeds(opensearch: OpenSearchStandIn, witness: Witness) -> None:
    """P3: a replacement that the cluster applies twice has the answer of the first one."""
    opensearch.inject(Fault("duplicate", match="_bulk"))
    assert await witness.replace([Replacement("a", TWO, "one"), Replacement("b", TWO, "")]) == {"a", "b"}
    assert await witness.read(["a", "b"]) == {"a": TWO, "b": TWO}


@pytest.mark.parametrize("applied", [False, True])
async def test_a_lost_answer_is_repeated(opensearch: OpenSearchStandIn, witness: Witness, applied: bool) -> None:
    """P3: a replacement without an answer is unknown, and sent once; the same one may follow."""
    opensearch.inject(Fault("drop", match="_bulk", applied=applied))
    sent = len(opensearch.requests)
    with pytest.raises(StoreOutcomeUnknown):
        await witness.replace([Replacement("a", TWO, "one")])
    assert len(opensearch.requests) == sent + 1
    assert await witness.read(["a"]) == {"a": TWO if applied else ONE}
    assert await witness.replace([Replacement("a", TWO, "one")]) == {"a"}


async def test_a_read_is_a_write(opensearch: OpenSearchStandIn, witness: Witness) -> None:
    """P3: a read writes the marks, and another document for a missing one: copies confirm it."""
    index = opensearch.cluster.indices[INDEX]
    for name in ("a", "missing"):
        before = {key: each.version for key, each in index.documents.items()}
        await witness.read([name])
        written = {key for key, each in index.documents.items() if each.version != before.get(key)}
        assert written == {"a", "\x1fconfirm"} & {name, "\x1fconfirm"}
    assert [name for name, _ in await witness.list("", 10)] == ["a"]
    assert await witness.read(["a"]) == {"a": ONE}


@pytest.mark.parametrize("field", ["value", "token"])
async def test_an_edited_mark_is_refused(opensearch: OpenSearchStandIn, witness: Witness, field: str) -> None:
    """P3: a mark without a number or a token is an error."""
    del opensearch.cluster.indices[INDEX].documents["a"].source[field]
    with pytest.raises(StoreRefused, match="the mark 'a' of the witness was edited"):
        await witness.read(["a"])


async def test_a_failed_item_is_no_success(opensearch: OpenSearchStandIn, witness: Witness) -> None:
    """P3: a mark whose item fails alone is not replaced; if all items fail, the call fails."""
    wrong = TWO._replace(value=2**63)  # the mapping refuses it
    assert await witness.replace([Replacement("a", wrong, "one"), Replacement("b", TWO, "")]) == {"b"}
    with pytest.raises(StoreFailure):
        await witness.replace([Replacement("a", wrong, "one")])
    assert await witness.read(["a", "b"]) == {"a": ONE, "b": TWO}


async def test_another_index_under_the_alias_is_refused(opensearch: OpenSearchStandIn, witness: Witness) -> None:
    """P3: an index that was exchanged under the alias gives no marks."""
    indices = opensearch.cluster.indices
    other = open_witness(f"opensearch://{opensearch.host}/?prefix=other", "sqlite:///elsewhere/ids.db")
    await other.open()
    await other.close()
    aliases = indices[INDEX].aliases
    indices[INDEX].aliases, indices["other-witness-data"].aliases = {}, aliases
    with pytest.raises(StoreExchanged):
        await witness.read(["a"])


async def test_an_index_that_loses_writes_is_refused(opensearch: OpenSearchStandIn, witness: Witness) -> None:
    """P3: an index with durability async is refused as the setting witness."""
    await witness.close()
    opensearch.cluster.indices[INDEX].settings["index.translog.durability"] = "async"
    again = open_witness(f"opensearch://{opensearch.host}/", "sqlite:///elsewhere/ids.db")
    with pytest.raises(StartRefused, match=r"^witness: the index idalloc-witness-data: a crash loses"):
        await again.open()
    await again.close()


async def test_only_the_index_of_the_witness_is_made(opensearch: OpenSearchStandIn, witness: Witness) -> None:
    """A witness makes no indices of a store beside its own."""
    await witness.read(["a"])
    assert set(opensearch.cluster.indices) == {INDEX}
