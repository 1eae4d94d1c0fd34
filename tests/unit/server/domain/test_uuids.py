"""UUIDs of version 4 and 7 (RFC 9562): well formed; version 7 rises whatever the clock does."""

import os
import random
import subprocess
import sys
import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.uuids import UuidGenerator
from tests.support.fake_store import FakeClock
from tests.support.paths import ROOT


def generator_of(seed: int, clock: FakeClock | None = None) -> UuidGenerator:
    return UuidGenerator(clock or FakeClock(), random.Random(seed).randbytes)


def ms_of(made: bytes) -> int:
    return int.from_bytes(made[:6], "big")


@given(seed=st.integers(0), count=st.integers(1, 100))
def test_version_4_is_random_except_version_and_variant(seed: int, count: int) -> None:
    """Version 4 has its version and variant; all other bits are random."""
    made = generator_of(seed).v4(count)
    assert len(made) == len(set(made)) == count
    for one in made:
        read = uuid.UUID(bytes=one)
        assert (read.version, read.variant) == (4, uuid.RFC_4122)
    free = (1 << 128) - 1 ^ 0xF << 76 ^ 3 << 62
    expected = random.Random(seed)
    expected.randbytes(8)  # used by the first rand_b
    expected_bytes = expected.randbytes(16 * count)
    for start, one in zip(range(0, 16 * count, 16), made, strict=True):
        assert int.from_bytes(expected_bytes[start : start + 16], "big") & free == int.from_bytes(one, "big") & free


@given(
    seed=st.integers(0),
    calls=st.lists(st.tuples(st.integers(-10_000, 10_000), st.integers(1, 50)), min_size=1, max_size=20),
)
def test_version_7_rises_whatever_the_clock_does(seed: int, calls: list[tuple[int, int]]) -> None:
    """Version 7 rises, and has the latest millisecond of the clock."""
    clock = FakeClock()
    uuids = generator_of(seed, clock)
    made: list[bytes] = []
    latest = 0.0
    for jump_ms, count in calls:
        clock.wall_seconds += jump_ms / 1000
        latest = max(latest, clock.wall())
        batch = uuids.v7(count)
        assert len(batch) == count
        assert ms_of(batch[-1]) == int(latest * 1000)
        made += batch
    assert all(one < other for one, other in pairwise(made))
    for one in made:
        read = uuid.UUID(bytes=one)
        assert (read.version, read.variant) == (7, uuid.RFC_4122)


def test_version_7_starts_with_the_millisecond() -> None:
    """The example of RFC 9562 is reproduced."""
    [made] = generator_of(1, FakeClock(wall=1_645_557_742.0)).v7(1)
    assert str(uuid.UUID(bytes=made)).startswith("017f22e2-79b0-7")  # the RFC's own example


def test_a_new_millisecond_starts_at_new_random_bits() -> None:
    """UUIDs of two milliseconds are not close together."""
    clock = FakeClock()
    uuids = generator_of(1, clock)
    [one] = uuids.v7(1)
    clock.advance(0.001)
    [other] = uuids.v7(1)
    assert abs(int.from_bytes(one[8:], "big") - int.from_bytes(other[8:], "big")) > 2**40


def test_steps_within_a_millisecond_are_random() -> None:
    """UUIDs of one millisecond cannot be guessed from each other."""
    made = [int.from_bytes(one, "big") for one in generator_of(1).v7(1000)]
    steps = {other - one for one, other in pairwise(made)}
    assert len(steps) > 990
    assert max(steps) <= 2**32


def test_an_overflow_uses_the_next_millisecond() -> None:
    """UUIDs rise when the random bits overflow."""
    clock = FakeClock()
    # All random bits are 1: the largest start and steps.
    uuids = UuidGenerator(clock, lambda count: b"\xff" * count)
    made = uuids.v7(1)
    before = ms_of(made[0])
    uuids._rand_b = (1 << 62) - 2**33
    made += uuids.v7(10)
    assert ms_of(made[1]) == before + 1
    assert all(one < other for one, other in pairwise(made))
    clock.advance(0.001)
    made += uuids.v7(10)
    assert all(one < other for one, other in pairwise(made))
    assert all(uuid.UUID(bytes=one).version == 7 for one in made)


def test_a_clock_out_of_range_still_gives_rising_uuids() -> None:
    """UUIDs rise with a clock before 1970, or past the last millisecond."""
    clock = FakeClock(wall=-5.0)
    uuids = generator_of(1, clock)
    made = uuids.v7(3)
    clock.wall_seconds = 1e15
    made += uuids.v7(3)
    clock.wall_seconds = 0.0
    made += uuids.v7(3)
    assert all(one < other for one, other in pairwise(made))
    assert all(uuid.UUID(bytes=one).version == 7 for one in made)


def test_a_large_batch_has_no_duplicates() -> None:
    """10,000 UUIDs of one call differ."""
    uuids = generator_of(1)
    assert len(set(uuids.v7(10_000))) == len(set(uuids.v4(10_000))) == 10_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork")
def test_a_fork_repeats_no_uuid_of_its_parent() -> None:
    """P8: the child of a fork repeats no UUID of its parent, even if it reuses the process id."""
    # Constant random bits: only the handling of the fork can make a difference.
    script = """
import os
from idalloc_server.domain.fork import OsProcess
from idalloc_server.domain.uuids import UuidGenerator
from tests.support.fake_store import FakeClock

process = OsProcess()
for pid_is_reused in (False, True):
    if pid_is_reused:
        process.pid = lambda: 1
    uuids = UuidGenerator(FakeClock(), bytes, process)
    uuids.v7(1)
    child = os.fork()
    if not child:
        print(*(made.hex() for made in uuids.v7(100)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(*(made.hex() for made in uuids.v7(100)))
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    child, of_same_pid, parent = (set(line.split()) for line in answer.stdout.splitlines())
    assert len(child) == len(of_same_pid) == len(parent) == 100, answer.stderr
    assert not parent & (child | of_same_pid)
