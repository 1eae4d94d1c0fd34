"""Columns of numbers: grouping and sorting them by more than one at a time."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.intp]

# So many different values are told apart by comparing, which beats sorting.
_FEW = 8


def factorize(values: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], Ints]:
    """Numbers the different values.

    Returns:
        The different values, and for each value the place of its like among them.
    """
    codes = np.zeros(len(values), np.int64)
    found = values[:1]
    while 0 < len(found) < _FEW:
        others = values != found[0]
        for value in found[1:]:
            others &= values != value
        first = int(others.argmax())
        if not others[first]:
            return found, codes
        codes += others
        found = np.append(found, values[first])
    if len(values) and (values.dtype == np.int64 or values.dtype.kind == "u"):
        least, most = int(values.min()), int(values.max())
        if most - least < len(values):  # counting beats sorting
            begin = values.dtype.type(least)
            offsets: Ints = np.subtract(values, begin).astype(np.int64, copy=False)
            present = np.zeros(most - least + 1, np.bool_)
            present[offsets] = True
            return np.flatnonzero(present).astype(values.dtype) + begin, (np.cumsum(present) - 1)[offsets]
    different, places = np.unique(values, return_inverse=True)
    return different, places.astype(np.int64, copy=False)


def combine(*columns: npt.NDArray[np.generic]) -> tuple[Positions, Ints]:
    """Numbers the different rows that columns form.

    Returns:
        For each different row the position of one like it, and for each row the number of its like.
    """
    _, codes = factorize(columns[0])
    for column in columns[1:]:
        different, more = factorize(column)
        if len(different) > 1:
            _, codes = factorize(codes * len(different) + more)
    count = int(codes.max(initial=-1)) + 1
    if count <= _FEW:
        return np.array([int((codes == code).argmax()) for code in range(count)], np.intp), codes
    examples = np.zeros(count, np.intp)
    examples[codes] = np.arange(len(codes))
    return examples, codes


def pack(codes: Ints, values: Ints, *others: Ints) -> list[Ints]:
    """Makes numbers that sort by code, and among equal codes by value.

    Args:
        codes: The codes, at least 0.
        values: A value for each code.
        others: Codes and values, in turn, to be packed alike.
    """
    all_codes, all_values = [codes, *others[::2]], [values, *others[1::2]]
    least = min(int(each.min(initial=2**63 - 1)) for each in all_values)
    most = max(int(each.max(initial=-(2**63))) for each in all_values)
    bits = max(most - least, 0).bit_length()
    code_bits = max(int(each.max(initial=0)) for each in all_codes).bit_length()
    if bits + code_bits > 62:
        _, ranks = np.unique(np.concatenate(all_values), return_inverse=True)
        ends = np.cumsum([len(each) for each in all_values])[:-1]
        all_values = [each.astype(np.int64, copy=False) for each in np.split(ranks, ends)]
        least, bits = 0, len(ranks).bit_length()
    return [code << bits | (value - least) for code, value in zip(all_codes, all_values, strict=True)]


def sorting(keys: Ints) -> Positions | None:
    """What sorts keys; None if they are sorted."""
    if len(keys) < 2 or bool((keys[1:] >= keys[:-1]).all()):
        return None
    return np.argsort(keys, kind="stable")


def running_most(codes: Ints, values: Ints) -> Ints:
    """The largest value so far, among equal codes, which stand side by side and rise."""
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    bits = (most - least).bit_length()
    if bits + int(codes.max(initial=0)).bit_length() > 62:
        different, ranks = np.unique(values, return_inverse=True)
        return different[running_most(codes, ranks.astype(np.int64, copy=False))]
    packed = np.maximum.accumulate(codes << bits | (values - least))
    return (packed & ((1 << bits) - 1)) + least


def total(values: npt.NDArray[np.integer]) -> int:
    """The sum, however large."""
    return (int((values >> 32).sum(dtype=np.int64)) << 32) + int((values & 0xFFFFFFFF).sum(dtype=np.int64))


def distance(high: Ints, low: Ints) -> npt.NDArray[np.uint64]:
    """How far ``high`` lies above ``low``, which may be more than an int64 holds."""
    return high.view(np.uint64) - low.view(np.uint64)
