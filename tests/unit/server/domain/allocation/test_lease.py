"""A lease compared with the plain list of ids that the store granted."""

from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Grant


def ids_of(grant: Grant) -> list[int]:
    return [grant.value_before + grant.step * n for n in range(1, grant.granted + 1)]


def range_sizes(held: list[int], step: int) -> list[int]:
    """Return the sizes of the contiguous ranges of ids."""
    lengths: list[int] = []
    for before, value in zip([None, *held], held, strict=False):
        if before is not None and value == before + step:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


@given(
    step=st.sampled_from([1, 5, -2]),
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("grant"), st.integers(0, 20)),
            st.tuples(st.just("others"), st.integers(0, 20)),
            st.tuples(st.just("recipe"), st.integers(1, 3)),
            st.tuples(st.just("rows"), st.integers(1, 3)),
            st.tuples(st.just("take"), st.integers(1, 25)),
            st.tuples(st.just("skip"), st.integers(1, 25)),
        ),
        max_size=40,
    ),
)
def test_a_lease_holds_the_granted_ids_that_were_not_taken(step: int, moves: list[tuple[str, int]]) -> None:
    """P1: a lease holds exactly the granted ids not yet taken, in order, and the tail to return."""
    lease = Lease()
    held: list[int] = []
    counter = writes = version = 0
    # The number of ids at the counter since another process last read it.
    tail, alone, last_version = 0, False, 0
    for kind, count in moves:
        if kind == "others":  # another node: 0 is a renewal, from 16 on it gives its grant back
            counter += step * count * (count < 16)
            writes += 1 + (count >= 16)
            version += 1 + (count >= 16)
            alone = False
        elif kind == "recipe":  # a client without idalloc advances the counter and counts no write
            counter += count if step > 0 else -count
            version += 1
            alone = False
        elif kind == "rows":  # writes of other sequences
            version += count
        elif kind == "grant":
            counter += step * count
            writes += 1
            version += 1
            tail = tail + count if alone else count
            alone, last_version = True, version
            grant = Grant(counter, count, Sequence(step=step), 1_000, 1, (version, 7, 1), writes)
            lease.add(grant, expires_at=100.0)
            held += ids_of(grant)
            assert lease.expires_at == 100.0
        elif kind == "skip":
            before = len(held)
            skipped = lease.skip_to(count)
            held = held[skipped:]
            assert lease.left == len(held) == before - skipped
            assert not skipped or lease.next_range_size >= count
        else:
            contiguous = held[:count] == [held[0] + step * n for n in range(count)] if held else False
            taken = lease.issue(count, now=99.9)
            assert (taken is not None) == contiguous
            if taken is not None:
                assert list(range(taken.first_id, taken.last_id + step, step)) == held[:count]
                held = held[count:]
        assert lease.left == len(held)
        for largest in (1, 4):
            assert lease.usable(largest) == sum(max(0, size - largest + 1) for size in range_sizes(held, step))
    value, count, tail_version = lease.tail()
    assert [value + step * n for n in range(1, count + 1)] == held[len(held) - count :]
    if alone:  # else the store rejects the tail
        assert tail_version == (last_version, 7, 1)
        assert count == min(tail, len(held))
        assert not count or value + step * count == counter


def test_nothing_is_taken_from_an_expired_lease() -> None:
    """P4: an expired lease issues nothing."""
    lease = Lease()
    lease.add(Grant(10, 10, Sequence(), 0, 3, (1, 1, 3), 1), expires_at=50.0)
    assert lease.issue(1, now=50.0) is None
    taken = lease.issue(1, now=49.9)
    assert taken is not None
    assert (taken.first_id, taken.generation, taken.expires_at) == (1, 3, 50.0)


def test_a_renewal_extends_the_lease_without_new_ids() -> None:
    """P4: a grant of 0 ids renews the whole lease."""
    lease = Lease()
    lease.add(Grant(10, 10, Sequence(), 0, 1, (1, 1, 1), 1), expires_at=50.0)
    lease.add(Grant(10, 0, Sequence(), 0, 1, (8, 1, 1), 2), expires_at=90.0)  # after writes of other rows
    assert (lease.left, lease.expires_at) == (10, 90.0)
    assert lease.tail() == (0, 10, (8, 1, 1))


def test_an_empty_lease_returns_metadata_until_it_expires() -> None:
    """take(0) returns a lease proof until the lease expires, even if no ids are left."""
    lease = Lease("2026")
    assert lease.issue(0, now=0.0) is None
    lease.add(Grant(10, 0, Sequence(max_value=10), 0, 3, (1, 1, 3), 1), expires_at=50.0)
    taken = lease.issue(0, now=49.9)
    assert taken is not None
    assert (taken.id_count, taken.generation, taken.sequence, taken.period) == (0, 3, Sequence(max_value=10), "2026")
    assert lease.issue(0, now=50.0) is None


def test_an_unexpected_value_is_a_foreign_write() -> None:
    """P1: a client that counts no write moved the counter and moved it back."""
    lease = Lease()
    lease.add(Grant(10, 10, Sequence(), 0, 1, (1, 1, 1), 1), expires_at=50.0)
    lease.add(Grant(12, 0, Sequence(), 0, 1, (3, 1, 1), 2), expires_at=50.0)
    lease.add(Grant(20, 10, Sequence(), 0, 1, (5, 1, 1), 3), expires_at=50.0)
    assert lease.tail() == (10, 10, (5, 1, 1))
