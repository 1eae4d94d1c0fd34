"""Token buckets, on a fake clock."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.auth.access import AccessPolicy, Identity, SequenceQuota
from idalloc_server.auth.quotas import Bucket, Quotas
from idalloc_server.auth.rejected_callers import BURST, CallerRates, host_of
from idalloc_server.domain.errors import QuotaExceeded
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.domain.sequences.sequence import MAX_NAME_BYTES
from tests.support.fake_store import FakeClock


def identity(name: str = "billing", **quotas: int) -> Identity:
    return Identity(name, **quotas)  # type: ignore[arg-type]


def quota(pattern: str, ids: int | None = None, calls: int | None = None) -> SequenceQuota:
    return SequenceQuota(Patterns([pattern]), ids, calls)


def charge(quotas: Quotas, who: Identity, sequence: str | None, ids: int = 1) -> None:
    quotas.charge(quotas.budgets_of(who, sequence), ids)


def error_of_charge(quotas: Quotas, who: Identity, sequence: str | None, ids: int = 1) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as found:
        charge(quotas, who, sequence, ids)
    return found.value


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3000)), min_size=1, max_size=40),
)
def test_bucket_gives_at_most_rate_burst_and_one_request(rate: int, calls: list[tuple[float, int]]) -> None:
    """In any time a bucket gives at most the rate times that time, the burst and one request."""
    bucket = Bucket(rate, 0.0)
    taken: list[tuple[float, int]] = []
    for at, (_, amount) in zip(accumulate(wait for wait, _ in calls), calls, strict=True):
        if not bucket.seconds_to_wait(at):
            bucket.take(amount, at)
            taken.append((at, amount))
    for first, (begin, _) in enumerate(taken):
        total = 0
        for end, amount in taken[first:]:
            # Without the last request, which may put the bucket into debt.
            assert total <= rate * (end - begin) + rate + 1e-6
            total += amount


@given(st.integers(1, 10**6), st.integers(1, 10**9))
def test_request_after_the_returned_wait_is_admitted(rate: int, amount: int) -> None:
    """A request after the returned wait is admitted."""
    bucket = Bucket(rate, 0.0)
    assert bucket.seconds_to_wait(0.0) == 0
    bucket.take(rate + amount, 0.0)
    seconds = bucket.seconds_to_wait(0.0)
    assert seconds == pytest.approx(max(amount / rate, 0.001))
    assert not bucket.seconds_to_wait(seconds + 0.001)


def test_identity_has_one_bucket_for_all_its_calls() -> None:
    """An identity has one bucket of ids for all its calls."""
    clock = FakeClock()
    billing, other = identity(ids_per_second=100), identity("other")
    quotas = Quotas(clock, AccessPolicy([billing, other]))
    charge(quotas, billing, "a", 250)
    found = error_of_charge(quotas, billing, "b")
    assert (found.subject, found.quota, found.limit) == ("identity:billing", "ids_per_second", 100)
    assert found.retry_after == pytest.approx(1.5)
    charge(quotas, other, "a", 10**9)
    clock.advance(1.4)
    error_of_charge(quotas, billing, None)
    clock.advance(0.2)
    charge(quotas, billing, None)


def test_rejected_call_is_charged_nothing() -> None:
    """A rejected call is charged neither ids nor calls, in no budget."""
    clock = FakeClock()
    billing = identity(calls_per_second=2, ids_per_second=10)
    quotas = Quotas(clock, AccessPolicy([billing], [quota("*", ids=5)]))
    charge(quotas, billing, "a", 5)
    for _ in range(9):
        assert error_of_charge(quotas, billing, "a").subject == "sequence:a"
    charge(quotas, billing, "b")
    assert error_of_charge(quotas, billing, "c").quota == "calls_per_second"


def test_first_matching_quota_applies_to_each_sequence() -> None:
    """All callers of a sequence share one bucket, by the first quota that matches its name."""
    one, two = identity("one"), identity("two")
    quotas = Quotas(FakeClock(), AccessPolicy([one, two], [quota("orders.eu", ids=1000), quota("orders*", ids=10)]))
    charge(quotas, one, "orders.us", 10)
    assert error_of_charge(quotas, two, "orders.us").subject == "sequence:orders.us"
    charge(quotas, two, "orders.at", 10)
    charge(quotas, two, "orders.eu", 10)
    charge(quotas, two, "orders.eu", 10)  # the first quota that matches is the one that counts
    for _ in range(3):
        charge(quotas, two, "customers", 10**9)
        charge(quotas, two, None, 10**9)


def test_debt_of_ids_does_not_block_calls_without_ids() -> None:
    """A call without ids ignores a debt of ids."""
    billing = identity(ids_per_second=10, calls_per_second=3)
    quotas = Quotas(FakeClock(), AccessPolicy([billing], [quota("a", ids=10)]))
    charge(quotas, billing, "a", 1000)
    charge(quotas, billing, "a", 0)
    charge(quotas, billing, None, 0)
    assert error_of_charge(quotas, billing, "a", 0).quota == "calls_per_second"


def test_too_long_sequence_name_is_not_kept() -> None:
    """A name that is too long for a sequence has no budget in memory."""
    who = identity()
    quotas = Quotas(FakeClock(), AccessPolicy([who], [quota("*", ids=10)]))
    charge(quotas, who, "x" * MAX_NAME_BYTES, 1)
    charge(quotas, who, "x" * (MAX_NAME_BYTES + 1), 1)
    assert list(quotas._sequences) == ["x" * MAX_NAME_BYTES]


def test_ids_that_a_call_did_not_get_are_refunded() -> None:
    """Ids that a call did not get are refunded."""
    billing = identity(ids_per_second=10)
    quotas = Quotas(FakeClock(), AccessPolicy([billing]))
    for _ in range(5):
        budgets = quotas.budgets_of(billing, "a")
        quotas.charge(budgets, 1000)
        quotas.refund(budgets, 1000)
    charge(quotas, billing, "a", 10)
    error_of_charge(quotas, billing, "a")


def test_open_streams_are_limited() -> None:
    """Open streams are limited, also after a change of the policy."""
    billing = identity(streams=2)
    quotas = Quotas(FakeClock(), AccessPolicy([billing]))
    first = quotas.open_stream(billing)
    quotas.open_stream(billing)
    with pytest.raises(QuotaExceeded, match="streams = 2"):
        quotas.open_stream(billing)
    quotas.apply_policy(AccessPolicy([identity(streams=2)]))
    assert first is not None
    first.open_streams -= 1
    quotas.open_stream(billing)
    with pytest.raises(QuotaExceeded):
        quotas.open_stream(billing)
    quotas.apply_policy(AccessPolicy([identity()]))
    quotas.open_stream(identity())


def test_open_stream_waits_instead_of_failing() -> None:
    """A stream's next message gets a wait time instead of an error."""
    clock = FakeClock()
    billing = identity(ids_per_second=100)
    quotas = Quotas(clock, AccessPolicy([billing], [quota("a", ids=50)]))
    budgets = quotas.budgets_of(billing, "a")
    quotas.charge(budgets, 100)
    assert quotas.seconds_to_wait(budgets, 10, has_call=False) == pytest.approx(1.0)
    clock.advance(1.01)
    assert quotas.seconds_to_wait(budgets, 10, has_call=False) == 0
    assert quotas.seconds_to_wait((), 10, has_call=False) == 0


def test_new_limits_keep_the_present_use() -> None:
    """New limits keep the debt of the previous ones."""
    clock = FakeClock()
    billing = identity(ids_per_second=100)
    quotas = Quotas(clock, AccessPolicy([billing], [quota("a", ids=100)]))
    charge(quotas, billing, "a", 300)
    quotas.apply_policy(AccessPolicy([identity(ids_per_second=50)], [quota("a", ids=100)]))
    assert error_of_charge(quotas, billing, "b").retry_after == pytest.approx(4.0)
    quotas.apply_policy(AccessPolicy([identity()], [quota("a", ids=10)]))
    charge(quotas, billing, "b", 300)
    assert error_of_charge(quotas, billing, "a").retry_after == pytest.approx(20.0)
    quotas.apply_policy(AccessPolicy([identity()]))
    charge(quotas, billing, "a", 300)


def test_memory_is_bounded_and_keeps_debts() -> None:
    """The number of budgets is bounded, and a budget in debt is kept."""
    clock = FakeClock()
    who = identity()
    quotas = Quotas(clock, AccessPolicy([who], [quota("*", ids=10)]), max_sequences=100)
    charge(quotas, who, "busy", 10_000)
    for number in range(1000):
        charge(quotas, who, f"s{number}", 1)
        clock.advance(0.5)
        assert len(quotas._sequences) <= 100
    error_of_charge(quotas, who, "busy")


def test_longest_debt_is_kept_among_many_small_ones() -> None:
    """Among many budgets in debt, those with the longest debt are kept."""
    clock = FakeClock()
    who = identity()
    quotas = Quotas(clock, AccessPolicy([who], [quota("*", ids=1)]), max_sequences=100)
    charge(quotas, who, "busy", 1_000_000)
    for number in range(300):
        charge(quotas, who, f"s{number}", 1_000)
    error_of_charge(quotas, who, "busy")
    error_of_charge(quotas, who, "s299")


def test_rejected_callers_are_limited_in_bounded_memory() -> None:
    """Rejections are limited per caller, in bounded memory."""
    clock = FakeClock()
    rejected = CallerRates(clock, max_callers=100)
    assert [rejected.count("a") for _ in range(BURST)] == [0] * BURST
    assert rejected.count("a") > 0
    assert rejected.count("b") == 0
    clock.advance(1.0)
    assert rejected.count("a") == 0
    assert rejected.count("a") > 0
    for number in range(1000):
        rejected.count(f"h{number}")
        assert len(rejected._callers) <= 100


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:51234", "2001:db8:1:2::/64"),
        ("ipv6:[fe80::1%25eth0]:1", "fe80::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:51234", "10.0.0.7"),
        ("unix:/tmp/socket", "unix"),
        ("ipv4:10.0.0.7", "10.0.0.7"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_host_of_a_peer(peer: str, host: str) -> None:
    """A host is an IPv4 address, or the /64 network of an IPv6 address."""
    assert host_of(peer) == host
