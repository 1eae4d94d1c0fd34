"""The encoding of columns as indices of distinct values."""

from typing import Any

import numpy as np
import pytest

from idalloc.verify._columns import factorize


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("end", ["lowest", "highest"])
@pytest.mark.parametrize("width", [1, 5, 9, 200, 100_000])
def test_equal_values_get_equal_codes(kind: Any, end: str, width: int) -> None:
    """Values of every type and range, up to both ends of 64 bits, get the index of their equal."""
    limits = np.iinfo(kind)
    width = min(width, limits.max)
    maximum = width if end == "lowest" and limits.min == 0 else limits.min + width if end == "lowest" else limits.max
    values = np.random.default_rng(5).integers(maximum - width, maximum, 1000, dtype=kind, endpoint=True)
    distinct, places = factorize(values)
    assert (distinct[places] == values).all()
    assert len(distinct) == len(set(distinct.tolist())) == len(set(values.tolist()))


def test_empty_column_has_no_codes() -> None:
    """An empty column has no distinct values."""
    distinct, places = factorize(np.empty(0, np.uint32))
    assert (len(distinct), len(places)) == (0, 0)
