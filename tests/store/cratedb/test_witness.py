"""The table of a witness: lost or repeated answers, edited rows, and an exchanged table."""

from collections.abc import AsyncIterator

import pytest

from idalloc_server.domain.errors import StartRefused, StoreExchanged, StoreOutcomeUnknown, StoreRefused
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement, Witness
from idalloc_server.store.urls import open_witness
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.store_backends import CrateBackend

ONE, TWO = (Mark(1, value, 1, token) for value, token in ((10, "one"), (20, "two")))


@pytest.fixture
async def witness(emulator: CrateEmulator) -> AsyncIterator[Witness]:
    witness = open_witness(f"crate://{emulator.host}/?schema=w", "sqlite:///elsewhere/ids.db")
    await witness.open()
    await witness.replace([Replacement("a", ONE, "")])
    yield witness
    await witness.close()


@pytest.fixture
def backend(emulator: CrateEmulator) -> CrateBackend:
    return CrateBackend(f"crate://{emulator.host}/?schema=w", lambda _: None)


async def test_a_replacement_applied_twice_succeeds(emulator: CrateEmulator, witness: Witness) -> None:
    """P3: a replacement that the cluster applies twice has the answer of the first one."""
    emulator.inject(Fault("duplicate", match="excluded.seen"))
    assert await witness.replace([Replacement("a", TWO, "one"), Replacement("b", TWO, "")]) == {"a", "b"}
    assert await witness.read(["a", "b"]) == {"a": TWO, "b": TWO}


@pytest.mark.parametrize("applied", [False, True])
async def test_a_lost_answer_is_repeated(emulator: CrateEmulator, witness: Witness, applied: bool) -> None:
    """P3: a replacement without an answer is unknown, and sent once; the same one may follow."""
    emulator.inject(Fault("drop", match="excluded.seen", applied=applied))
    sent = len(emulator.writes())
    with pytest.raises(StoreOutcomeUnknown):
        await witness.replace([Replacement("a", TWO, "one")])
    assert len(emulator.writes()) == sent + 1
    assert await witness.read(["a"]) == {"a": TWO if applied else ONE}
    assert await witness.replace([Replacement("a", TWO, "one")]) == {"a"}


async def test_an_edited_mark_is_refused(witness: Witness, backend: CrateBackend) -> None:
    """P3: a mark without a token is an error, and no replacement changes it."""
    await backend.sql("INSERT INTO {}witness_marks (name, value) VALUES (?, ?)", "b", 5)
    with pytest.raises(StoreRefused, match=r"the mark 'b' of the witness was edited: \[None, 5, None, None, None\]"):
        await witness.read(["a", "b"])
    assert await witness.replace([Replacement("b", TWO, "")]) == set()


async def test_another_table_under_the_name_is_refused(witness: Witness, backend: CrateBackend) -> None:
    """P3: a table that was exchanged under the name of the opened one gives no marks."""
    definition = (
        "(name TEXT PRIMARY KEY, generation BIGINT, value BIGINT, step BIGINT, token TEXT, gaps TEXT, seen TEXT)"
    )
    await backend.sql(f"CREATE TABLE {{}}other {definition}")
    await backend.sql("ALTER CLUSTER SWAP TABLE {}other TO {}witness_marks")
    with pytest.raises(StoreExchanged):
        await witness.read(["a"])


async def test_a_table_of_another_program_is_refused(emulator: CrateEmulator, backend: CrateBackend) -> None:
    """P3: a table with other columns, or that loses writes, is refused as the setting witness."""
    for definition, why in (
        ("(name TEXT PRIMARY KEY, generation TEXT)", "column generation must be BIGINT"),
        (
            "(name TEXT PRIMARY KEY, generation BIGINT) WITH (\"translog.durability\" = 'ASYNC')",
            "a crash loses acknowledged writes",
        ),
    ):
        await backend.sql(f"CREATE TABLE {{}}witness_marks {definition}")
        witness = open_witness(backend.url, "sqlite:///elsewhere/ids.db")
        with pytest.raises(StartRefused, match=f"^witness: the table w.witness_marks.*{why}"):
            await witness.open()
        await witness.close()
        await backend.sql("DROP TABLE {}witness_marks")


async def test_only_the_table_of_the_witness_is_made(witness: Witness, backend: CrateBackend) -> None:
    """A witness makes no tables of a store beside its own."""
    await witness.read(["a"])
    names = "SELECT table_name FROM information_schema.tables WHERE table_schema = ?"
    found = await backend.sql(f"{names} AND table_type = 'BASE TABLE' ORDER BY table_name ASC, table_schema ASC", "w")
    assert found == [["witness_marks"]]
