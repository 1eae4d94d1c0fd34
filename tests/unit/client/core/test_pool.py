"""How a pool of ids prefetches, grows, shrinks and discards expired ids."""

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import pytest

from idalloc import DeadlineExceeded, InvalidRequest, ProtocolError, Range, SequenceExhausted, StoreUnavailable
from idalloc._core.pool import MAX_LATE_RANGES, MAX_RANGE_SIZE, Pool, PoolRequest, boot_clock
from idalloc.v1 import id_allocator_pb2 as pb


def count_of(request: PoolRequest) -> int:
    message = request.call.request
    assert isinstance(message, pb.AllocateRangeRequest)
    return message.id_count


def next_size(pool: Pool) -> int:
    return count_of(pool.next_request())


class Clock(Iterator[float]):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __next__(self) -> float:
        return self.now


class Source:
    """Answers the requests of a pool at once."""

    def __init__(self, ttl: float = 100.0, step: int = 1) -> None:
        self.clock = Clock()
        self.pool = Pool("orders", self.clock)
        self.ttl = ttl
        self.step = step
        self.sizes: list[int] = []
        self._number = 1

    def answer(self, request: PoolRequest) -> None:
        count = count_of(request)
        self.sizes.append(count)
        first, last = self._number * self.step, (self._number + count - 1) * self.step
        self._number += count
        ttl = timedelta(seconds=self.ttl)
        self.pool.add(request, Range(first_id=first, last_id=last, step=self.step, id_count=count, ttl=ttl))

    def take(self, n: int) -> list[int]:
        """Take n ids, and request ranges as a client does."""
        taken: list[int] = []
        while True:
            taken += islice(self.pool.current.ids, n - len(taken))
            if len(taken) == n:
                return taken
            while not self.pool.advance():
                self.answer(self.pool.next_request())
            if self.pool.should_prefetch():
                self.answer(self.pool.next_request())


def test_ids_come_in_order_and_without_a_gap() -> None:
    """P1: a pool returns each id once and in order."""
    source = Source()
    assert source.take(1000) == list(range(1, 1001))


def test_a_negative_step_counts_down() -> None:
    """A pool returns the ids of a sequence with a negative step in descending order."""
    source = Source(step=-3)
    assert source.take(100) == list(range(-3, -303, -3))


@pytest.mark.parametrize("step", [1, 3, -1, -3])
def test_a_pool_refuses_an_id_of_a_recent_range(step: int) -> None:
    """P1: ranges come in any order, but none overlaps one of the last eight that were accepted."""
    pool = Pool("orders", Clock())

    def add(first: int, count: int, period: str = "") -> None:
        ids = pb.IdRange(first_id=first * step, last_id=(first + count - 1) * step, step=step, id_count=count)
        pool.next_request().call.convert(pb.AllocateRangeResponse(range=ids, period=period))

    for first, count in ((1, 10), (101, 10), (11, 10), (31, 1), (21, 10), (32, 1), (111, 5)):
        add(first, count)
    for first, count in ((1, 10), (105, 1), (10, 1), (29, 2), (90, 12), (30, 5)):
        with pytest.raises(ProtocolError, match="twice; expected each id once"):
            add(first, count)
    for first in range(200, 208):
        add(first, 1)
    add(1, 10)
    add(500, 1, "2026-11")  # of a sequence with a reset, which `Pool.add` rejects
    add(500, 1)


def test_ranges_double_while_they_last_less_than_a_second() -> None:
    """The range size doubles, up to its limit, while ranges are used up within a second."""
    source = Source()
    source.take(5_000_000)
    assert source.sizes[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert max(source.sizes) == MAX_RANGE_SIZE


def test_the_range_size_is_stable_at_a_steady_rate() -> None:
    """The range size stays the same while ranges last more than a second."""
    source = Source()
    source.take(100)
    size = source.sizes[-1]
    for _ in range(10 * size):
        source.take(1)
        source.clock.now += 2.0 / size
    assert set(source.sizes[-5:]) == {source.sizes[-1]}
    assert source.sizes[-1] <= 2 * size


def test_the_second_half_of_a_range_prefetches_the_next() -> None:
    """The next range is requested when the second half of the current one begins."""
    source = Source()
    source.take(31)  # ranges of 1, 2, 4, 8, 16
    before = len(source.sizes)
    source.take(16)  # the first half of the 32
    assert len(source.sizes) == before
    source.take(1)
    assert len(source.sizes) == before + 1


def test_ids_expire_at_their_deadline() -> None:
    """P4: no id is returned at or after its deadline."""
    source = Source(ttl=10.0)
    source.take(20)
    source.clock.now += 9.999
    [last] = source.take(1)
    assert last == 21
    source.clock.now += 0.001
    [first] = source.take(1)
    # All prefetched ids were discarded.
    assert first == sum(source.sizes[:-1]) + 1


def test_ttl_counts_from_before_the_request() -> None:
    """P4: the ttl of a range counts from before its request was sent."""
    source = Source(ttl=10.0)
    assert not source.pool.advance()
    request = source.pool.next_request()
    source.clock.now += 9.0
    source.answer(request)
    assert source.pool.advance()
    source.clock.now += 1.0
    assert list(source.pool.current.ids) == []


def test_iterators_in_use_end_when_their_ids_expire() -> None:
    """P4: an iterator that a caller holds ends when its ids expire."""
    source = Source(ttl=10.0)
    source.take(1000)
    in_use = source.pool.current.ids
    next(in_use)
    source.clock.now += 10.0
    assert list(in_use) == []


def test_unused_ranges_shrink_and_stop_prefetching() -> None:
    """After ranges expire unused, the range size shrinks to 1 and prefetching stops."""
    source = Source(ttl=10.0)
    source.take(1000)
    size = source.sizes[-1]
    for _ in range(12):
        source.clock.now += 10.0
        source.take(1)
    assert source.sizes[-1] == 1 < size
    requests = len(source.sizes)
    source.clock.now += 10.0
    source.take(1)
    assert len(source.sizes) == requests + 1


def test_demand_after_a_pause_resumes_prefetching() -> None:
    """Prefetching resumes when demand returns."""
    source = Source(ttl=10.0)
    for _ in range(5):
        source.take(1)
        source.clock.now += 10.0
    del source.sizes[:]
    source.take(1000)
    assert len(source.sizes) < 20


def test_ranges_expired_on_arrival_are_an_error() -> None:
    """P4: ranges that always expire before they arrive raise DeadlineExceeded."""
    source = Source(ttl=0.0)
    with pytest.raises(DeadlineExceeded, match=r"'orders' in a row .* raise its lease_ttl"):
        source.take(1)
    assert len(source.sizes) == MAX_LATE_RANGES
    source.ttl = 1.0
    assert len(source.take(3)) == 3


def test_near_exhaustion_the_remaining_ids_are_requested() -> None:
    """After SequenceExhausted the pool requests the largest range that is left."""
    pool = Pool("orders", Clock())
    pool._size = 64
    assert next_size(pool) == 64
    assert pool.adapt_size(SequenceExhausted(metadata={"remaining": "9", "largest_range": "5"}))
    assert next_size(pool) == 5
    assert not pool.adapt_size(SequenceExhausted(metadata={"remaining": "5", "largest_range": "5"}))
    assert not pool.adapt_size(SequenceExhausted(metadata={"remaining": "0", "largest_range": "0"}))


def test_a_lower_server_limit_halves_the_range_size() -> None:
    """A server limit below the range size halves the range size permanently."""
    source = Source()
    source.pool._size = 64
    assert source.pool.adapt_size(InvalidRequest(metadata={"field": "id_count"}))
    source.take(1000)
    assert max(source.sizes) == 32


def test_other_errors_keep_the_range_size() -> None:
    """Errors that do not concern the count leave the range size unchanged."""
    pool = Pool("orders", Clock())
    assert not pool.adapt_size(InvalidRequest(metadata={"field": "id_count"}))  # of one id
    pool._size = 64
    assert not pool.adapt_size(InvalidRequest(metadata={"field": "sequence"}))
    assert not pool.adapt_size(StoreUnavailable())
    assert next_size(pool) == 64


def test_clear_ends_iterators_in_use() -> None:
    """After clear(), the iterators that callers hold return no id."""
    source = Source()
    source.take(100)
    in_use = source.pool.current.ids
    source.pool.clear()
    assert list(in_use) == []
    taken = source.take(200)
    assert taken[0] == sum(source.sizes[: source.sizes.index(1, 1)]) + 1


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux's clock")
def test_the_clock_counts_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: the pool's clock is CLOCK_BOOTTIME."""
    assert 0 < next(boot_clock()) < float("inf")
    monkeypatch.setattr(time, "clock_gettime", float)
    assert next(boot_clock()) == time.CLOCK_BOOTTIME
