"""How a pool of ids grows, shrinks, and drops what is too old."""

import time
from collections.abc import Iterator
from itertools import islice

import pytest
from google.protobuf.duration_pb2 import Duration

from idalloc import DeadlineExceeded, InvalidRequest, SequenceExhausted, StoreUnavailable
from idalloc._core.pool import MAX_LATE_RANGES, MAX_RANGE_SIZE, Pool, PoolRequest, boot_clock
from idalloc.v1 import id_allocator_pb2 as pb


class Clock(Iterator[float]):
    """Stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __next__(self) -> float:
        return self.now


class Source:
    """Answers a pool's requests, at once."""

    def __init__(self, ttl: float = 100.0, step: int = 1) -> None:
        self.clock = Clock()
        self.pool = Pool("orders", self.clock)
        self.ttl = ttl
        self.step = step
        self.asked: list[int] = []
        self._number = 1

    def answer(self, request: PoolRequest) -> None:
        count = request.message.id_count
        self.asked.append(count)
        first, last = self._number * self.step, (self._number + count - 1) * self.step
        self._number += count
        ttl = Duration(seconds=int(self.ttl), nanos=int(self.ttl % 1 * 1e9))
        ids = pb.IdRange(first_id=first, last_id=last, step=self.step, id_count=count)
        self.pool.add(request, pb.AllocateRangeResponse(range=ids, ttl=ttl))

    def take(self, n: int) -> list[int]:
        """Takes n ids; asks for ranges as a client would that has its answers at once."""
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
    source = Source()
    assert source.take(1000) == list(range(1, 1001))


def test_a_step_below_zero_counts_down() -> None:
    source = Source(step=-3)
    assert source.take(100) == list(range(-3, -303, -3))


def test_ranges_double_while_they_last_less_than_a_second() -> None:
    source = Source()
    source.take(5_000_000)
    assert source.asked[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert max(source.asked) == MAX_RANGE_SIZE


def test_ranges_stay_as_they_are_where_they_last() -> None:
    source = Source()
    source.take(100)
    size = source.asked[-1]
    for _ in range(10 * size):
        source.take(1)
        source.clock.now += 2.0 / size
    assert set(source.asked[-5:]) == {source.asked[-1]}
    assert source.asked[-1] <= 2 * size


def test_the_next_range_is_asked_for_in_the_second_half() -> None:
    source = Source()
    source.take(31)  # ranges of 1, 2, 4, 8, 16
    before = len(source.asked)
    source.take(16)  # the first half of the 32
    assert len(source.asked) == before
    source.take(1)
    assert len(source.asked) == before + 1


def test_no_id_is_used_at_its_deadline() -> None:
    source = Source(ttl=10.0)
    source.take(20)
    source.clock.now += 9.999
    [still_good] = source.take(1)
    assert still_good == 21
    source.clock.now += 0.001
    [fresh] = source.take(1)
    # All that had been asked for until then was dropped.
    assert fresh == sum(source.asked[:-1]) + 1


def test_time_counts_from_before_the_request_was_sent() -> None:
    source = Source(ttl=10.0)
    assert not source.pool.advance()
    request = source.pool.next_request()
    source.clock.now += 9.0
    source.answer(request)
    assert source.pool.advance()
    source.clock.now += 1.0
    assert list(source.pool.current.ids) == []


def test_an_iterator_that_is_in_use_ends_when_its_ids_are_too_old() -> None:
    source = Source(ttl=10.0)
    source.take(1000)
    in_use = source.pool.current.ids
    next(in_use)
    source.clock.now += 10.0
    assert list(in_use) == []


def test_ranges_shrink_when_they_grow_too_old_unused_and_none_is_asked_for_ahead() -> None:
    source = Source(ttl=10.0)
    source.take(1000)
    size = source.asked[-1]
    for _ in range(12):
        source.clock.now += 10.0
        source.take(1)
    assert source.asked[-1] == 1 < size
    asked = len(source.asked)
    source.clock.now += 10.0
    source.take(1)
    assert len(source.asked) == asked + 1


def test_demand_after_a_pause_has_ranges_asked_for_ahead_again() -> None:
    source = Source(ttl=10.0)
    for _ in range(5):
        source.take(1)
        source.clock.now += 10.0
    del source.asked[:]
    source.take(1000)
    assert len(source.asked) < 20


def test_ranges_that_always_come_too_late_are_an_error_and_not_a_loop() -> None:
    source = Source(ttl=0.0)
    with pytest.raises(DeadlineExceeded, match="orders"):
        source.take(1)
    assert len(source.asked) == MAX_LATE_RANGES
    source.ttl = 1.0
    assert len(source.take(3)) == 3


def test_near_the_end_what_is_left_is_asked_for() -> None:
    pool = Pool("orders", Clock())
    pool._size = 64
    assert pool.next_request().message.id_count == 64
    assert pool.adapt_size(SequenceExhausted(metadata={"remaining": "9", "largest_range": "5"}))
    assert pool.next_request().message.id_count == 5
    assert not pool.adapt_size(SequenceExhausted(metadata={"remaining": "5", "largest_range": "5"}))
    assert not pool.adapt_size(SequenceExhausted(metadata={"remaining": "0", "largest_range": "0"}))


def test_above_the_servers_limit_half_is_asked_for_from_then_on() -> None:
    source = Source()
    source.pool._size = 64
    assert source.pool.adapt_size(InvalidRequest(metadata={"field": "id_count"}))
    source.take(1000)
    assert max(source.asked) == 32


def test_other_errors_do_not_change_what_is_asked_for() -> None:
    pool = Pool("orders", Clock())
    assert not pool.adapt_size(InvalidRequest(metadata={"field": "id_count"}))  # of one id
    pool._size = 64
    assert not pool.adapt_size(InvalidRequest(metadata={"field": "sequence"}))
    assert not pool.adapt_size(StoreUnavailable())
    assert pool.next_request().message.id_count == 64


def test_what_was_dropped_is_not_given_by_iterators_in_use_either() -> None:
    source = Source()
    source.take(100)
    in_use = source.pool.current.ids
    source.pool.clear()
    assert list(in_use) == []
    taken = source.take(200)
    assert taken[0] == sum(source.asked[: source.asked.index(1, 1)]) + 1


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux's clock")
def test_the_clock_is_the_one_that_counts_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < next(boot_clock()) < float("inf")
    monkeypatch.setattr(time, "clock_gettime", float)
    assert next(boot_clock()) == time.CLOCK_BOOTTIME
