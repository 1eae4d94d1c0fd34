"""Grouping and sorting of columns of integers, by several columns at a time."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.intp]

# Up to this many distinct values, comparing is faster than sorting.
_FEW = 8


def factorize(values: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], Ints]:
    """Encode values as indices of distinct values.

    Returns:
        The distinct values, and for each value its index among them.
    """
    codes = np.zeros(len(values), np.int64)
    distinct = values[:1]
    while 0 < len(distinct) < _FEW:
        others = values != distinct[0]
        for value in distinct[1:]:
            others &= values != value
        first = int(others.argmax())
        if not others[first]:
            return distinct, codes
        codes += others
        distinct = np.append(distinct, values[first])
    if len(values) and (values.dtype == np.int64 or values.dtype.kind == "u"):
        minimum = int(values.min())
        maximum = int(values.max())
        if maximum - minimum < len(values):  # counting is faster than sorting
            begin = values.dtype.type(minimum)
            offsets: Ints = np.subtract(values, begin).astype(np.int64, copy=False)
            present = np.zeros(maximum - minimum + 1, np.bool_)
            present[offsets] = True
            return np.flatnonzero(present).astype(values.dtype) + begin, (np.cumsum(present) - 1)[offsets]
    distinct, indices = np.unique(values, return_inverse=True)
    return distinct, indices.astype(np.int64, copy=False)


def factorize_rows(*columns: npt.NDArray[np.generic]) -> tuple[Positions, Ints]:
    """Encode the rows that columns form as indices of distinct rows.

    Returns:
        For each distinct row the position of an equal row, and for each row its index among the
        distinct ones.
    """
    _, codes = factorize(columns[0])
    for column in columns[1:]:
        distinct, column_codes = factorize(column)
        if len(distinct) > 1:
            _, codes = factorize(codes * len(distinct) + column_codes)
    count = int(codes.max(initial=-1)) + 1
    if count <= _FEW:
        return np.array([int((codes == code).argmax()) for code in range(count)], np.intp), codes
    examples = np.zeros(count, np.intp)
    examples[codes] = np.arange(len(codes))
    return examples, codes


def pack(codes: Ints, values: Ints, *others: Ints) -> list[Ints]:
    """Pack pairs of integers into keys that sort by code, then by value.

    Args:
        codes: The codes, at least 0.
        values: A value for each code.
        others: Further pairs of codes and values, whose keys must be comparable with these.
    """
    all_codes = [codes, *others[::2]]
    all_values = [values, *others[1::2]]
    minimum = min(int(each.min(initial=2**63 - 1)) for each in all_values)
    maximum = max(int(each.max(initial=-(2**63))) for each in all_values)
    bits = max(maximum - minimum, 0).bit_length()
    code_bits = max(int(each.max(initial=0)) for each in all_codes).bit_length()
    if bits + code_bits > 62:
        _, ranks = np.unique(np.concatenate(all_values), return_inverse=True)
        ends = np.cumsum([len(each) for each in all_values])[:-1]
        all_values = [each.astype(np.int64, copy=False) for each in np.split(ranks, ends)]
        minimum = 0
        bits = len(ranks).bit_length()
    return [code << bits | (value - minimum) for code, value in zip(all_codes, all_values, strict=True)]


def argsort(keys: Ints) -> Positions | None:
    """Return the indices that sort keys, or None if they are sorted."""
    if len(keys) < 2 or bool((keys[1:] >= keys[:-1]).all()):
        return None
    return np.argsort(keys, kind="stable")


def running_max(codes: Ints, values: Ints) -> Ints:
    """Return the running maximum among equal codes. The codes must be sorted."""
    minimum = int(values.min(initial=0))
    bits = (int(values.max(initial=0)) - minimum).bit_length()
    if bits + int(codes.max(initial=0)).bit_length() > 62:
        distinct, ranks = np.unique(values, return_inverse=True)
        return distinct[running_max(codes, ranks.astype(np.int64, copy=False))]
    packed = np.maximum.accumulate(codes << bits | (values - minimum))
    return (packed & ((1 << bits) - 1)) + minimum


def total(values: npt.NDArray[np.integer]) -> int:
    """Return the sum, also beyond 64 bits."""
    return (int((values >> 32).sum(dtype=np.int64)) << 32) + int((values & 0xFFFFFFFF).sum(dtype=np.int64))


def distance(high: Ints, low: Ints) -> npt.NDArray[np.uint64]:
    """Return high - low, at least 0, which may exceed int64."""
    return high.view(np.uint64) - low.view(np.uint64)
