"""From the compact form of document ids to their texts."""

# The last three hexadecimal digits of a serial. Texts are made by joining the 25 characters before them, which 4096
# ids in a row share, with these: several times the speed of formatting each serial.
_SUFFIXES = tuple(f"{n:03x}" for n in range(4096))


def expand(first: str, step: int, count: int) -> list[str]:
    """Writes out a run of document ids.

    Args:
        first: The first id: 12 characters that all share, then the serial in 16 hexadecimal digits.
        step: The distance from one serial to the next, at least 1.
        count: How many ids.
    """
    head, serial = first[:12], int(first[12:], 16)
    doc_ids: list[str] = []
    while len(doc_ids) < count:
        block, offset = divmod(serial, 4096)
        shared = f"{head}{block:013x}"
        suffixes = _SUFFIXES[offset : offset + step * (count - len(doc_ids)) : step]
        doc_ids += [shared + suffix for suffix in suffixes]
        serial += step * len(suffixes)
    return doc_ids
