"""The contract of every witness."""

import asyncio

import pytest

from idalloc_server.domain.errors import StoreFailure
from idalloc_server.domain.sequences.sequence import MAX_ID, PERIOD_SEPARATOR
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import START, Replacement, Witness
from tests.store.conftest import ALL
from tests.support.store_backends import WitnessOpener

pytestmark = pytest.mark.parametrize("opener", ALL, indirect=True)

ROUNDS = 5
# As long as names get, with a separator and a period, and such as a path, a URL or a query could
# change.
NAMES = (
    "orders",
    f"{'x' * 255}{PERIOD_SEPARATOR}2026-11-26T10",
    f"{'é' * 127}{PERIOD_SEPARATOR}2026",
    "日本",
    "𝄞",
    "..",
    "a/b?c#d%e+f",
    'it\'s "$1" ? \\',
    IDENTITY,
    f"{START}65535",
)


def mark(value: int, token: str, step: int = 1, generation: int = 1) -> Mark:
    return Mark(generation, value, step, token)


class TestRead:
    async def test_a_missing_mark_is_left_out(self, witness: Witness) -> None:
        """P3: a name without a mark is not in the answer."""
        await witness.replace([Replacement("a", mark(1, "one"), "")])
        assert await witness.read(["b"]) == {}
        assert await witness.read(["b", "a", "c"]) == {"a": mark(1, "one")}

    async def test_another_process_reads_the_last_mark(self, witness: Witness, witnesses: WitnessOpener) -> None:
        """P3: after an acknowledged replacement every process reads it."""
        other = await witnesses.open()
        for number in range(ROUNDS):
            seen = f"{number - 1}" if number else ""
            assert await witness.replace([Replacement("a", mark(number, f"{number}"), seen)]) == {"a"}
            assert await other.read(["a"]) == {"a": mark(number, f"{number}")}

    async def test_many_marks_are_read_at_once(self, witness: Witness) -> None:
        """P3: one call reads more marks than one statement does."""
        marks = {f"{number}": mark(number, "one") for number in range(203)}
        assert await witness.replace([Replacement(name, each, "") for name, each in marks.items()]) == set(marks)
        assert await witness.read(list(marks)) == marks

    async def test_marks_survive_a_restart(self, witness: Witness, witnesses: WitnessOpener) -> None:
        """P3: the next process reads the marks of the one before."""
        await witness.replace([Replacement("a", mark(1, "one"), "")])
        if witness.address != "memory:":
            await witness.close()
        assert await (await witnesses.open()).read(["a"]) == {"a": mark(1, "one")}


class TestReplace:
    async def test_a_mark_is_replaced_by_its_token(self, witness: Witness) -> None:
        """P3: only the writer that saw the present mark replaces it, also by a lower one."""
        assert await witness.replace([Replacement("a", mark(10, "one"), "")]) == {"a"}
        assert await witness.replace([Replacement("a", mark(5, "two", generation=3), "one")]) == {"a"}
        assert await witness.read(["a"]) == {"a": mark(5, "two", generation=3)}

    async def test_another_token_changes_nothing(self, witness: Witness) -> None:
        """P3: a replacement of a mark that is not the present one changes nothing; case counts."""
        await witness.replace([Replacement("a", mark(10, "one"), "")])
        for seen in ("", "another", "ONE", "one "):
            assert await witness.replace([Replacement("a", mark(20, "two"), seen)]) == set()
            assert await witness.read(["a"]) == {"a": mark(10, "one")}

    async def test_a_forgotten_mark_is_set_again(self, witness: Witness) -> None:
        """P3: where no mark exists, any replacement sets one."""
        assert await witness.replace([Replacement("a", mark(10, "two"), "one")]) == {"a"}
        assert await witness.read(["a"]) == {"a": mark(10, "two")}

    async def test_each_replacement_is_on_its_own(self, witness: Witness) -> None:
        """P3: of many replacements in one call, those with a wrong token change nothing."""
        await witness.replace([Replacement(name, mark(1, f"{name}1"), "") for name in "abcd"])
        tokens = {"a": "a1", "b": "", "c": "c1", "d": "d2", "e": "", "f": "f1"}
        replacements = [Replacement(name, mark(2, f"{name}2"), seen) for name, seen in tokens.items()]
        # The mark of b stays, and so does that of d, whose token none had.
        assert await witness.replace(replacements) == {"a", "c", "e", "f"}
        found = await witness.read(list(tokens))
        assert found == {name: mark(1 if name in "bd" else 2, f"{name}{1 if name in 'bd' else 2}") for name in tokens}

    async def test_one_of_two_racing_replacements_wins(self, witness: Witness, witnesses: WitnessOpener) -> None:
        """P3: of two processes that replace one mark at once, exactly one does, and both know."""
        processes = (witness, await witnesses.open())
        token = ""
        for number in range(ROUNDS):
            marks = [mark(number, f"{number} of {each}") for each in range(2)]
            outcomes = await asyncio.gather(
                *(each.replace([Replacement("a", new, token)]) for each, new in zip(processes, marks, strict=True))
            )
            assert sorted(map(len, outcomes)) == [0, 1]
            won = marks[outcomes.index({"a"})]
            assert await witness.read(["a"]) == {"a": won}
            token = won.token

    async def test_a_repeated_replacement_changes_nothing(self, witness: Witness) -> None:
        """P3: a replacement repeated after a lost answer succeeds, but not after a later one."""
        first = Replacement("a", mark(10, "one"), "")
        second = Replacement("a", mark(20, "two"), "one")
        for _ in range(2):
            assert await witness.replace([first]) == {"a"}
            assert await witness.read(["a"]) == {"a": first.mark}
        for _ in range(2):
            assert await witness.replace([second]) == {"a"}
            assert await witness.replace([first]) == set()
            assert await witness.read(["a"]) == {"a": second.mark}

    async def test_values_reach_the_ends_of_64_bits(self, witness: Witness) -> None:
        """P3: the largest and smallest numbers of a counter are kept exactly."""
        marks = {
            "up": Mark(2**62, MAX_ID, 2**61, "one"),
            "down": Mark(0, -MAX_ID, -(2**61), "one"),
            "double": Mark(1, 2**53 + 1, -1, "one"),
        }
        assert await witness.replace([Replacement(name, each, "") for name, each in marks.items()]) == set(marks)
        assert await witness.read(list(marks)) == marks

    async def test_any_name_and_token_is_kept(self, witness: Witness) -> None:
        """P3: names of 255 bytes with a period, separators and Unicode are distinct marks."""
        marks = {name: mark(number, f"{number}'\"\\ é") for number, name in enumerate(NAMES)}
        assert await witness.replace([Replacement(name, each, "") for name, each in marks.items()]) == set(marks)
        assert await witness.read(NAMES) == marks


class TestList:
    async def test_marks_are_listed_in_byte_order(self, witness: Witness) -> None:
        """P3: pages follow the bytes of the names, and miss no mark that was written before."""
        assert await witness.list("", 10) == []
        marks = {name: mark(number, "one") for number, name in enumerate(NAMES)}
        await witness.replace([Replacement(name, each, "") for name, each in marks.items()])
        await witness.read(["missing"])
        ordered = sorted(marks.items(), key=lambda item: item[0].encode())
        assert await witness.list("", 100) == ordered
        pages: list[tuple[str, Mark]] = []
        after = ""
        while page := await witness.list(after, 3):
            assert len(page) <= 3
            pages += page
            after = page[-1][0]
        assert pages == ordered
        assert await witness.list("a", 1) == [next(item for item in ordered if item[0].encode() > b"a")]


class TestForget:
    async def test_forgotten_marks_are_gone(self, witness: Witness) -> None:
        """P3: forget deletes the marks that exist, and counts them."""
        await witness.replace([Replacement(name, mark(1, "one"), "") for name in "abc"])
        assert await witness.forget(["a", "missing", "c"]) == 2
        assert await witness.forget(["a"]) == 0
        assert await witness.read(["a", "b", "c"]) == {"b": mark(1, "one")}
        assert [name for name, _ in await witness.list("", 10)] == ["b"]


class TestOpen:
    async def test_concurrent_opens_succeed(self, witnesses: WitnessOpener) -> None:
        """P3: processes that open an empty witness at once share its marks."""
        opened = await asyncio.gather(*(witnesses.open() for _ in range(4)))
        for number, witness in enumerate(opened):
            seen = f"{number - 1}" if number else ""
            assert await witness.replace([Replacement("a", mark(number, f"{number}"), seen)]) == {"a"}

    async def test_a_closed_witness_refuses_calls(self, witness: Witness) -> None:
        """Closing twice is allowed; every later call raises StoreFailure."""
        await witness.close()
        await witness.close()
        for call in (
            witness.read(["a"]),
            witness.replace([Replacement("a", mark(1, "one"), "")]),
            witness.list("", 1),
            witness.forget(["a"]),
        ):
            with pytest.raises(StoreFailure):
                await call
