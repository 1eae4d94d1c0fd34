"""How `idalloc verify` numbers values."""

from typing import Any

import numpy as np
import pytest

from idalloc.verify._columns import factorize


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("end", ["lowest", "highest"])
@pytest.mark.parametrize("width", [1, 5, 9, 200, 100_000])
def test_equal_values_get_equal_numbers(kind: Any, end: str, width: int) -> None:
    """P1: values of every kind are numbered, close together or far apart, also at the ends of all numbers."""
    limits = np.iinfo(kind)
    width = min(width, limits.max)
    most = width if end == "lowest" and limits.min == 0 else limits.min + width if end == "lowest" else limits.max
    values = np.random.default_rng(5).integers(most - width, most, 1000, dtype=kind, endpoint=True)
    different, places = factorize(values)
    assert (different[places] == values).all()
    assert len(different) == len(set(different.tolist())) == len(set(values.tolist()))


def test_no_values_have_no_numbers() -> None:
    """P1: an empty column is numbered, too."""
    different, places = factorize(np.empty(0, np.uint32))
    assert (len(different), len(places)) == (0, 0)
