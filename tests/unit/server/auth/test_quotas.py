"""Token buckets, on a clock that only the test moves."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.auth.access import AccessPolicy, Identity, SequenceQuota
from idalloc_server.auth.quotas import Bucket, Quotas
from idalloc_server.auth.rejected_callers import BURST, RejectedCallers, host_of
from idalloc_server.domain.errors import QuotaExceeded
from idalloc_server.domain.sequences.model import MAX_NAME_BYTES
from idalloc_server.domain.sequences.patterns import Patterns
from tests.support.fake_store import FakeClock


def identity(name: str = "billing", **quotas: int) -> Identity:
    return Identity(name, **quotas)  # type: ignore[arg-type]


def quota(pattern: str, ids: int | None = None, calls: int | None = None) -> SequenceQuota:
    return SequenceQuota(Patterns([pattern]), ids, calls)


def take(quotas: Quotas, who: Identity, sequence: str | None, ids: int = 1) -> None:
    quotas.charge(quotas.budgets_of(who, sequence), ids)


def refused(quotas: Quotas, who: Identity, sequence: str | None, ids: int = 1) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as found:
        take(quotas, who, sequence, ids)
    return found.value


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3000)), min_size=1, max_size=40),
)
def test_in_any_time_no_more_is_taken_than_rate_burst_and_one_call(rate: int, calls: list[tuple[float, int]]) -> None:
    bucket = Bucket(rate, 0.0)
    taken: list[tuple[float, int]] = []
    for at, (_, amount) in zip(accumulate(wait for wait, _ in calls), calls, strict=True):
        if not bucket.seconds_to_wait(at):
            bucket.take(amount, at)
            taken.append((at, amount))
    for first, (begin, _) in enumerate(taken):
        total = 0
        for end, amount in taken[first:]:
            # Up to the last one, which is the one call that may go into debt.
            assert total <= rate * (end - begin) + rate + 1e-6
            total += amount


@given(st.integers(1, 10**6), st.integers(1, 10**9))
def test_who_waits_as_long_as_is_said_is_let_in(rate: int, amount: int) -> None:
    bucket = Bucket(rate, 0.0)
    assert bucket.seconds_to_wait(0.0) == 0
    bucket.take(rate + amount, 0.0)
    seconds = bucket.seconds_to_wait(0.0)
    assert seconds == pytest.approx(max(amount / rate, 0.001))
    assert not bucket.seconds_to_wait(seconds + 0.001)


def test_an_identity_has_one_bucket_for_all_its_calls() -> None:
    clock = FakeClock()
    billing, other = identity(ids_per_second=100), identity("other")
    quotas = Quotas(clock, AccessPolicy([billing, other]))
    take(quotas, billing, "a", 250)
    found = refused(quotas, billing, "b")
    assert (found.subject, found.quota, found.limit) == ("identity:billing", "ids_per_second", 100)
    assert found.retry_after == pytest.approx(1.5)
    take(quotas, other, "a", 10**9)
    clock.advance(1.4)
    refused(quotas, billing, None)
    clock.advance(0.2)
    take(quotas, billing, None)


def test_calls_are_counted_too_and_what_is_refused_takes_nothing() -> None:
    clock = FakeClock()
    billing = identity(calls_per_second=2, ids_per_second=10)
    quotas = Quotas(clock, AccessPolicy([billing], [quota("*", ids=5)]))
    take(quotas, billing, "a", 5)
    for _ in range(9):
        assert refused(quotas, billing, "a").subject == "sequence:a"
    take(quotas, billing, "b")
    assert refused(quotas, billing, "c").quota == "calls_per_second"


def test_all_callers_of_a_sequence_share_its_bucket_and_each_sequence_has_its_own() -> None:
    one, two = identity("one"), identity("two")
    quotas = Quotas(FakeClock(), AccessPolicy([one, two], [quota("orders.eu", ids=1000), quota("orders*", ids=10)]))
    take(quotas, one, "orders.us", 10)
    assert refused(quotas, two, "orders.us").subject == "sequence:orders.us"
    take(quotas, two, "orders.at", 10)
    take(quotas, two, "orders.eu", 10)
    take(quotas, two, "orders.eu", 10)  # the first quota that matches is the one that counts
    for _ in range(3):
        take(quotas, two, "customers", 10**9)
        take(quotas, two, None, 10**9)


def test_who_owes_ids_may_call_for_what_takes_none() -> None:
    billing = identity(ids_per_second=10, calls_per_second=3)
    quotas = Quotas(FakeClock(), AccessPolicy([billing], [quota("a", ids=10)]))
    take(quotas, billing, "a", 1000)
    take(quotas, billing, "a", 0)
    take(quotas, billing, None, 0)
    assert refused(quotas, billing, "a", 0).quota == "calls_per_second"


def test_a_name_that_no_sequence_can_have_is_not_kept() -> None:
    who = identity()
    quotas = Quotas(FakeClock(), AccessPolicy([who], [quota("*", ids=10)]))
    take(quotas, who, "x" * MAX_NAME_BYTES, 1)
    take(quotas, who, "x" * (MAX_NAME_BYTES + 1), 1)
    assert list(quotas._sequences) == ["x" * MAX_NAME_BYTES]


def test_ids_that_a_call_did_not_get_are_given_back() -> None:
    billing = identity(ids_per_second=10)
    quotas = Quotas(FakeClock(), AccessPolicy([billing]))
    for _ in range(5):
        budgets = quotas.budgets_of(billing, "a")
        quotas.charge(budgets, 1000)
        quotas.refund(budgets, 1000)
    take(quotas, billing, "a", 10)
    refused(quotas, billing, "a")


def test_streams_are_counted_while_they_run() -> None:
    billing = identity(streams=2)
    quotas = Quotas(FakeClock(), AccessPolicy([billing]))
    first = quotas.open_stream(billing)
    quotas.open_stream(billing)
    with pytest.raises(QuotaExceeded, match="streams = 2"):
        quotas.open_stream(billing)
    quotas.use(AccessPolicy([identity(streams=2)]))
    first()
    quotas.open_stream(billing)
    with pytest.raises(QuotaExceeded):
        quotas.open_stream(billing)
    quotas.use(AccessPolicy([identity()]))
    quotas.open_stream(identity())


def test_a_stream_waits_for_its_next_message_and_is_never_refused() -> None:
    clock = FakeClock()
    billing = identity(ids_per_second=100)
    quotas = Quotas(clock, AccessPolicy([billing], [quota("a", ids=50)]))
    budgets = quotas.budgets_of(billing, "a")
    quotas.charge(budgets, 100)
    assert quotas.try_charge(budgets, 10) == pytest.approx(1.0)
    clock.advance(1.01)
    assert quotas.try_charge(budgets, 10) == 0
    assert quotas.try_charge((), 10) == 0


def test_other_limits_do_not_forget_what_was_taken() -> None:
    clock = FakeClock()
    billing = identity(ids_per_second=100)
    quotas = Quotas(clock, AccessPolicy([billing], [quota("a", ids=100)]))
    take(quotas, billing, "a", 300)
    quotas.use(AccessPolicy([identity(ids_per_second=50)], [quota("a", ids=100)]))
    assert refused(quotas, billing, "b").retry_after == pytest.approx(4.0)
    quotas.use(AccessPolicy([identity()], [quota("a", ids=10)]))
    take(quotas, billing, "b", 300)
    assert refused(quotas, billing, "a").retry_after == pytest.approx(20.0)
    quotas.use(AccessPolicy([identity()]))
    take(quotas, billing, "a", 300)


def test_memory_is_bounded_and_who_is_in_debt_is_remembered_longest() -> None:
    clock = FakeClock()
    who = identity()
    quotas = Quotas(clock, AccessPolicy([who], [quota("*", ids=10)]), max_sequences=100)
    take(quotas, who, "busy", 10_000)
    for number in range(1000):
        take(quotas, who, f"s{number}", 1)
        clock.advance(0.5)
        assert len(quotas._sequences) <= 100
    refused(quotas, who, "busy")


def test_the_longest_debt_is_not_forgotten_for_many_small_ones() -> None:
    clock = FakeClock()
    who = identity()
    quotas = Quotas(clock, AccessPolicy([who], [quota("*", ids=1)]), max_sequences=100)
    take(quotas, who, "busy", 1_000_000)
    for number in range(300):
        take(quotas, who, f"s{number}", 1_000)
    refused(quotas, who, "busy")
    refused(quotas, who, "s299")


def test_rejected_are_counted_by_caller_in_bounded_memory() -> None:
    clock = FakeClock()
    rejected = RejectedCallers(clock, max_callers=100)
    assert [rejected.count_rejection("a") for _ in range(BURST)] == [0] * BURST
    assert rejected.count_rejection("a") > 0
    assert rejected.count_rejection("b") == 0
    clock.advance(1.0)
    assert rejected.count_rejection("a") == 0
    assert rejected.count_rejection("a") > 0
    for number in range(1000):
        rejected.count_rejection(f"h{number}")
        assert len(rejected._callers) <= 100


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:51234", "2001:db8:1:2::/64"),
        ("ipv6:[fe80::1%25eth0]:1", "fe80::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:51234", "10.0.0.7"),
        ("unix:/tmp/socket", "unix"),
        ("", ""),
    ],
)
def test_a_host_is_known_by_its_address(peer: str, host: str) -> None:
    assert host_of(peer) == host
