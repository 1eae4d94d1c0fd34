"""Proves that a retired store may serve again: no id was issued since the imported export."""

from collections.abc import Sequence

from idalloc_server.backup.export_file import ExportFile
from idalloc_server.backup.exporter import export_lines
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.retirement import RETIREMENT

_PAGE_ROWS = 500


async def check_new_store(retired: Store, new: Store, lines: Sequence[bytes], file: ExportFile) -> None:
    """Check that the store used since a retirement is retired, too, and that a file is its export.

    Args:
        retired: The store to reactivate.
        new: The store used since.
        lines: The lines of the file.
        file: Its content.

    Raises:
        StartRefused: It may have issued ids that are not in the file, or it is another store.
        StoreFailure: A store failed.
    """
    here, there = await retired.get(RETIREMENT), await new.get(RETIREMENT)
    if there is None or there.deleted:
        raise _refused(
            f"{new.address} is not retired, so its servers may issue ids; run `idalloc store export --retire` on it, "
            "and import that file"
        )
    if here is not None and here.revised_by == there.revised_by:
        raise _refused(f"{new.address} is the store to reactivate; name the store that was used since")
    # Not the first line: older exports lack the name of the store.
    if [line.strip() for line in lines if line.strip()][1:] != [line.encode() async for line in export_lines(new)][1:]:
        raise _refused(
            f"{new.address} has other sequences or counters than FILE, so it served after that export; import the "
            "output of `idalloc store export --retire` on it"
        )
    await _check_complete(retired, file)


async def _check_complete(retired: Store, file: ExportFile) -> None:
    """Check that a file has each sequence of the retired store, as its new store has."""
    names, after = {item.row.name for item in file.items} | file.reserved.keys(), ""
    while rows := await retired.list("", after, _PAGE_ROWS, with_deleted=True, with_periods=False):
        after = rows[-1].name
        if missing := [row.name for row in rows if row.name not in names]:
            raise _refused(f"FILE lacks sequence {missing[0]!r} of the retired store, so it is not its new store's")


def _refused(message: str) -> StartRefused:
    return StartRefused("--unretire", message)
