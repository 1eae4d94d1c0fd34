"""The verifier, with little and with much memory, compared with a model of every id."""

import tempfile
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from idalloc.verify._spans import MemoryLimits
from idalloc.verify._verdict import verify
from tests.support.planted_logs import Planted, PlantedLog

REQUESTS = [f"0000000{number}-0000-4000-8000-000000000000" for number in (1, 2)]
LAST_VALUES = {"up": 40, "down": -40, "bills\x1f2026": 30}
SEQUENCES = [("up", ""), ("down", ""), ("bills", "2026"), ("bills", "2027")]


class Findings(NamedTuple):
    """The model's findings."""

    duplicates: int
    out_of_order: int
    beyond_export: int
    ids: int


class Call(NamedTuple):
    log: int
    record: Planted


@st.composite
def records(draw: st.DrawFn) -> Planted:
    """Generate records of few ids, so that many conflict."""
    sequence, period = draw(st.sampled_from(SEQUENCES))
    asked = draw(st.integers(0, 40))
    step = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
    plain = draw(st.booleans())
    return Planted(
        draw(st.integers(-30, 30)),
        draw(st.integers(1, 6)),
        asked,
        asked + draw(st.integers(0, 6)),
        sequence,
        period,
        1 if plain else draw(st.integers(1, 3)),
        -step if sequence == "down" else step,
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        "" if plain else draw(st.sampled_from(["", *REQUESTS])),
    )


@st.composite
def orderly(draw: st.DrawFn) -> list[Planted]:
    """Generate records of one node in order, with occasional faults."""
    log, value, now = list[Planted](), 1, 0
    for _ in range(draw(st.integers(0, 30))):
        count = draw(st.integers(1, 4))
        log.append(Planted(value, count, now, now + draw(st.integers(1, 8)), "up", node=1))
        value += count + draw(st.sampled_from([0, 0, 0, 1, -1]))
        now += draw(st.integers(0, 3))
    return sorted(log, key=lambda record: record.end)


LOGS = st.lists(st.lists(records(), max_size=12) | orderly(), min_size=1, max_size=4)
SMALL_LIMITS = st.builds(
    MemoryLimits, st.sampled_from([1, 2, 7, 1000]), st.sampled_from([1, 3, 1000]), st.sampled_from([1, 4, 1000])
)


def model(logs: list[list[Planted]]) -> Findings:
    calls = [Call(number, record) for number, log in enumerate(logs) for record in log]
    # Ids by name, step and remainder, without replies to retries.
    replies = {
        (record.name, record.first, record.step, record.count, record.generation, record.request_id or number): record
        for number, (_, record) in enumerate(calls)
    }
    lattices: defaultdict[str, defaultdict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for record in replies.values():
        step = abs(record.step)
        lattices[record.name][step, record.first % step] += record.ids
    duplicates = sum(len(ids) - len(set(ids)) for name in lattices.values() for ids in name.values())
    duplicates += sum(
        len(set(one) & set(other)) for name in lattices.values() for one, other in combinations(name.values(), 2)
    )
    beyond_export = sum(is_beyond(record) for _, record in calls)
    ids = sum(len(set().union(*name.values())) for name in lattices.values())
    out_of_order = len([call for call in calls if is_late(call, calls)]) + overlaps(calls)
    return Findings(duplicates, out_of_order, beyond_export, ids)


def is_beyond(record: Planted) -> bool:
    last = LAST_VALUES.get(record.name)
    return last is None or (record.ids[-1] < last if record.step < 0 else record.ids[-1] > last)


def is_late(call: Call, calls: list[Call]) -> bool:
    late = call.record
    for _, early in calls:
        one_node = early.node == late.node != 0
        related = early.name == late.name and (one_node or (early.rising and late.rising))
        if related and not early.request_id and not late.request_id and early.end < late.asked:
            sign = 1 if late.step > 0 else -1
            if late.first * sign <= early.ids[-1] * sign:
                return True
    return False


def overlaps(calls: list[Call]) -> int:
    """Count generations with an id that does not follow all ids of older ones."""
    count = 0
    for name in {record.name for _, record in calls}:
        ids: defaultdict[int, list[int]] = defaultdict(list)
        for _, record in calls:
            if record.name == name:
                sign = 1 if record.step > 0 else -1
                ids[record.generation] += [sign * value for value in record.ids]
        for generation, own in ids.items():
            count += any(max(ids[older]) >= min(own) for older in ids if older < generation)
    return count


def write(folder: Path, logs: list[list[Planted]]) -> list[Path]:
    """Write logs in alternating formats, each with another boot time by its clock."""
    paths = []
    for number, log in enumerate(logs):
        path = folder / f"{number}{'.jsonl' if number % 2 else '.log'}"
        paths.append(PlantedLog(log, boot_time=10**18 + number * 12_345).write(path))
    export = ['{"idalloc_export": 1}']
    for name, last in LAST_VALUES.items():
        sequence, _, period = name.partition("\x1f")
        more = f'"period": "{period}", ' if period else ""
        export.append(f'{{"sequence": "{sequence}", {more}"last_value": "{last}", "generation": "1"}}')
    paths.append(folder / "export")
    paths[-1].write_text("\n".join(export))
    return paths


@pytest.mark.timeout(300)  # it writes and reads many files
@given(LOGS, SMALL_LIMITS)
@example([[Planted(1, 3, 0, 1, "up", node=1), Planted(1, 1, 5, 6, "up", node=1)]], MemoryLimits(1, 1, 1))
def test_verifier_equals_a_model_of_every_id(logs: list[list[Planted]], limits: MemoryLimits) -> None:
    """P1: the verifier finds what a model finds; with little memory it may miss only order."""
    expected = model(logs)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), logs)
        small, large = verify(paths, limits), verify(paths)
    for verdict in (small, large):
        found = verdict.findings
        assert (found.duplicates > 0, found.duplicates) == (expected.duplicates > 0, expected.duplicates)
        assert found.beyond_export == expected.beyond_export
        assert found.malformed == 0
        assert verdict.records == sum(map(len, logs))
        if not found.duplicates:
            assert verdict.ids == expected.ids
    # With little memory a violation of order may be missed, but there is no false alarm.
    assert large.findings.out_of_order == expected.out_of_order
    assert small.findings.out_of_order <= expected.out_of_order
    event(f"duplicates: {expected.duplicates > 0}, out of order: {expected.out_of_order > 0}")


def test_order_is_checked_across_batches(tmp_path: Path) -> None:
    """A violation is found even if far more records than fit in memory lie between the two."""
    calls = [Planted(10 * number, 10, 5 * number, 5 * number + 7, "up", node=1) for number in range(200)]
    early = Planted(10**6, 1, 3, 4, "down", step=-1, node=1)
    late = Planted(10**6 + 1, 1, 900, 903, "down", step=-1, node=1)
    ahead, behind = Planted(3, 1, 990, 995, "up", node=1, rising=True), Planted(1, 1, 997, 999, "up", rising=True)
    logs = [sorted([*calls, late, ahead], key=lambda record: record.end), [early, behind]]
    (tmp_path / "x").mkdir()
    paths = write(tmp_path / "x", logs)
    assert model(logs).out_of_order == 3  # `ahead` is behind its node's last range, and `behind` is behind `ahead`
    for records in (1, 16, 64, 1000):
        assert verify(paths, MemoryLimits(records, 1000, 1000)).findings.out_of_order == 3
