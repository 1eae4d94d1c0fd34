"""Identities, roles and patterns."""

import re
from hashlib import sha256
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.auth.access import ADMIN, ALLOCATE, ANONYMOUS, READ, ROLES, AccessPolicy, Identity
from idalloc_server.domain.sequences.patterns import Patterns


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "Orders", False),
        ("orders*", "orders", True),
        ("orders*", "orders.eu", True),
        ("orders*", "my orders", False),
        ("*", "", True),
        ("*", "größe 注文", True),
        ("*.eu", "orders.eu", True),
        ("*.eu", "orders.eu.old", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "acb", False),
        ("ab*ba", "aba", False),
        ("or?ers", "orders", False),
        ("[o]rders", "orders", False),
        ("[o]rders", "[o]rders", True),
    ],
)
def test_only_star_is_a_wildcard(pattern: str, name: str, matches: bool) -> None:
    """Only * is a wildcard in a pattern, and a pattern matches the whole name."""
    assert Patterns([pattern]).match(name) is matches


@given(st.lists(st.text("ab*", max_size=6), max_size=3), st.text("ab", max_size=8))
def test_patterns_match_like_regular_expressions(patterns: list[str], name: str) -> None:
    """Patterns match the same names as the equivalent regular expressions."""
    expressions = [".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns]
    found = Patterns(patterns)
    assert found.match(name) == any(re.fullmatch(each, name) for each in expressions)
    assert bool(found) == bool(patterns)


@given(st.lists(st.text("ab*", max_size=4), max_size=5), st.text("ab", max_size=2), st.text("abc", max_size=4))
def test_ranges_have_every_matching_name_once(patterns: list[str], prefix: str, after: str) -> None:
    """A list that reads the ranges in order returns every matching name once, in order."""
    found = Patterns(patterns)
    names = sorted("".join(letters) for size in range(5) for letters in product("abc", repeat=size))
    ranges = list(found.ranges(prefix))
    read = [name for each in ranges for name in names if each.has(name)]
    assert read == sorted(set(read))
    assert all(name.startswith(prefix) for name in read)
    assert {name for name in names if found.match(name) and name.startswith(prefix)} <= set(read)
    for each in ranges:
        longer = each.prefix + "c" * 9  # than any name above
        assert each.is_before(after) == (not any(each.has(name) and name > after for name in [*names, longer]))


def test_pattern_with_many_stars_matches_fast() -> None:
    """A pattern with many stars does not backtrack exponentially."""
    assert not Patterns(["*a" * 120 + "*b"]).match("a" * 255)


def test_role_applies_to_matching_sequences_only() -> None:
    """Roles are independent, and each applies to matching sequences only."""
    some = Patterns(["orders*", "invoices"])
    identity = Identity("billing", roles={ALLOCATE: some, READ: Patterns(["*"]), ADMIN: Patterns()})
    assert identity.has_role(ALLOCATE, "orders.eu")
    assert not identity.has_role(ALLOCATE, "customers")
    assert identity.has_role(READ, "customers")
    assert not identity.has_role(ADMIN, "orders")
    assert [identity.has_role(role, None) for role in ROLES] == [True, True, False]
    assert all(ANONYMOUS.has_role(role, name) for role in ROLES for name in ("orders", None))


def test_identity_is_found_by_token_or_certificate() -> None:
    """An identity is found by each of its tokens and certificates, and by no other text."""
    digests = tuple(sha256(token).digest() for token in (b"old", b"new"))
    billing = Identity("billing", digests, ("dns:billing.example.org", "ip:10.0.0.7"))
    other = Identity("other", (sha256(b"third").digest(),), ("dns:other.example.org",))
    access = AccessPolicy([billing, other])
    assert access.find_by_token("old") is access.find_by_token("new") is billing
    assert access.find_by_token("third") is other
    for wrong in ("", "ol", "old ", "OLD", digests[0].hex(), "\ud800"):
        assert access.find_by_token(wrong) is None
    assert access.find_by_certificate(["x", "ip:10.0.0.7"]) is billing
    assert access.find_by_certificate(["dns:billing.example.org", "ip:10.0.0.7"]) is billing
    assert access.find_by_certificate(["dns:billing.example.org", "dns:other.example.org"]) is None
    assert access.find_by_certificate(["dns:*.example.org"]) is None
