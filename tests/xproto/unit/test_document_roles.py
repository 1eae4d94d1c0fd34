"""Roles on schemas and collections: what a pattern covers, also where names have dots."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idalloc_server.auth.access import ADMIN, ALLOCATE, ANONYMOUS, READ, ROLES, Identity
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_xproto.document_roles import has_role, may_see

# Names: schemas alone, and collections. Each pattern covers what its row says, and sees the schemas
# behind it.
NAMES = [
    ("shop", ""), ("shop", "orders"), ("shop", "items"), ("shopping", ""), ("shopping", "orders"), ("orders", ""),
    ("shop.orders", ""), ("shop.orders", "eu"), ("shop", "orders.eu"), ("shop.", "orders"), ("shop", ".orders"),
    ("", "shop"), (".", ""),
]  # fmt: skip
TABLE = [
    ("*", NAMES, {schema for schema, _ in NAMES}),
    ("shop", [("shop", "")], {"shop"}),
    ("shop.*", [("shop", "orders"), ("shop", "items")], {"shop"}),
    ("shop.orders", [("shop", "orders")], {"shop"}),
    ("shop.orders*", [("shop", "orders")], {"shop"}),
    ("shop.orders.*", [], set()),
    ("shop.orders.eu", [], set()),
    ("shop..orders", [], set()),
    ("shop.", [], set()),
    (".shop", [("", "shop")], {""}),
    ("shop*", NAMES[:5], {"shop", "shopping"}),
    ("shop*.orders", [("shop", "orders"), ("shopping", "orders")], {"shop", "shopping"}),
    ("*.orders", [("shop", "orders"), ("shopping", "orders")], {"shop", "shopping", "orders", ""}),
    ("*.*", [("shop", "orders"), ("shop", "items"), ("shopping", "orders"), ("", "shop")],
     {"shop", "shopping", "orders", ""}),
    ("*orders", [("shop", "orders"), ("shopping", "orders"), ("orders", "")], {"shop", "shopping", "orders", ""}),
    ("sh*rs", [("shop", "orders"), ("shopping", "orders")], {"shop", "shopping"}),
    ("**", [("shop", ""), ("shop", "orders"), ("shop", "items"), ("shopping", ""), ("shopping", "orders"),
            ("orders", ""), ("", "shop")], {"shop", "shopping", "orders", ""}),
]  # fmt: skip


def only(pattern: str) -> Identity:
    """Return an identity with one pattern of the role allocate, and no other role."""
    return Identity("x", roles={ALLOCATE: Patterns([pattern]), READ: Patterns(), ADMIN: Patterns()})


@pytest.mark.parametrize(("pattern", "covered", "seen"), TABLE)
def test_a_pattern_covers_only_what_it_names(pattern: str, covered: list[tuple[str, str]], seen: set[str]) -> None:
    """P: only the pattern * covers a name with a dot: no role on a schema reaches another one."""
    identity = only(pattern)
    assert [each for each in NAMES if has_role(identity, ALLOCATE, *each)] == covered
    assert {schema for schema, _ in NAMES if may_see(identity, schema)} == seen
    assert [each for each in NAMES if each[1] and may_see(identity, *each)] == [each for each in covered if each[1]]
    assert not any(has_role(identity, role, *each) for role in (READ, ADMIN) for each in NAMES)
    assert all(has_role(ANONYMOUS, role, *each) for role in ROLES for each in NAMES)


@settings(max_examples=30)
@given(st.text("ab.*", max_size=5), st.text("ab", min_size=1, max_size=2))
def test_a_schema_is_seen_with_what_is_in_it(pattern: str, schema: str) -> None:
    """An identity sees a schema only with a role on it, or on a possible collection of it."""
    identity = only(pattern)
    # A pattern of five characters matches a word of five letters, if it matches any.
    collections = ["".join(letters) for size in range(6) for letters in product("ab", repeat=size)]
    covered = any(has_role(identity, ALLOCATE, schema, name) for name in collections)
    assert may_see(identity, schema) == covered


@settings(max_examples=30)
@given(st.text("ab.*", max_size=6), st.text("ab.", max_size=4), st.text("ab.", min_size=1, max_size=4))
def test_equal_texts_are_not_two_collections(pattern: str, schema: str, name: str) -> None:
    """Of names that form one text, a pattern but * covers at most the one without further dots."""
    text = f"{schema}.{name}"
    same = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == "." and text[at + 1 :]]
    covered = [each for each in same if has_role(only(pattern), ALLOCATE, *each)]
    assert covered == (same if pattern == "*" else covered[:1])
