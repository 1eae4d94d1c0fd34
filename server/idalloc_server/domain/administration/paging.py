"""Pages of sequences, limited to those that a caller may read."""

from collections.abc import Awaitable, Callable

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.domain.store.records import Row

# Rows read at a time if the caller may read only some of them.
SCAN_BATCH_ROWS = 1_000
# Rows scanned for one page; beyond this the page is short.
MAX_SCANNED_ROWS = 10_000

# Reads rows by the prefix of their names, the name before the first, and the limit.
Read = Callable[[str, str, int], Awaitable[list[Row]]]


async def read_page(read: Read, prefix: str, after: str, limit: int, visible: Patterns | None) -> tuple[list[Row], str]:
    """Return a page of rows, and the name after which the next page starts; empty at the end.

    Scans only names that the caller's patterns can match, and at most ``MAX_SCANNED_ROWS`` rows, so
    a page may be short before the end of the list. Only the last page may be empty: the token of an
    empty page would reveal a name that the caller may not read.

    Args:
        read: Reads rows.
        prefix: Prefix of the names.
        after: Only names after this one; empty for all.
        limit: The most rows to return.
        visible: The names that the caller may read; None for all.

    Raises:
        InvalidRequest: None of ``MAX_SCANNED_ROWS`` names is visible, and more may follow.
    """
    found: list[Row] = []
    if visible is None or visible.any_name:
        found = await read(prefix, after, limit + 1)
    else:
        scanned = 0
        for names in visible.ranges(prefix):
            at_end = names.is_before(after)
            while not at_end and len(found) <= limit:
                if scanned >= MAX_SCANNED_ROWS:
                    if not found:
                        rule = f"must be longer: the server scanned {scanned} names and found none that you may read"
                        raise InvalidRequest("name_prefix", rule)
                    return found, found[-1].name
                rows = await read(names.prefix, after, 1 if names.is_single else SCAN_BATCH_ROWS)
                scanned += len(rows)
                found += [row for row in rows if names.has(row.name) and visible.match(row.name)]
                at_end = names.is_single or len(rows) < SCAN_BATCH_ROWS
                after = after if at_end else rows[-1].name
    return found[:limit], found[limit - 1].name if len(found) > limit else ""
