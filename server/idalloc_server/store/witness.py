"""What all kinds of witnesses share: the place apart from the store, and the stored marks."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager, suppress
from pathlib import Path

from idalloc_server.domain.errors import StartRefused, StoreRefused
from idalloc_server.domain.store.records import Mark

_GAPS = re.compile(r"(-?\d+:-?\d+( -?\d+:-?\d+)*)?")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_WHY_APART = "a witness in the store would be restored with it"


@contextmanager
def refused_as_witness() -> Iterator[None]:
    """Raise a ``StartRefused`` as one of the setting ``witness``."""
    try:
        yield
    except StartRefused as error:
        raise StartRefused("witness", str(error).removeprefix(f"{error.setting}: ")) from error


def check_files(witness: Path, files: Mapping[Path, str]) -> None:
    """Refuse a witness in a file of the store, also by another name.

    Args:
        witness: The file of the witness.
        files: The files of the store, and what each of them is.

    Raises:
        StartRefused: They have a file in common.
    """
    for path, what in files.items():
        is_same = os.path.realpath(witness) == os.path.realpath(path)
        with suppress(OSError):  # one of them is missing
            is_same = is_same or witness.samefile(path)
        if is_same:
            raise StartRefused(
                "witness", f"{witness} is {what}, and {_WHY_APART}; name another file, best on another disk"
            )


def check_hosts(witness: Collection[str], store: Collection[str]) -> None:
    """Refuse a witness in the cluster of the store.

    Args:
        witness: ``host:port`` of each host of the witness.
        store: The same of the store.

    Raises:
        StartRefused: They have a host in common.
    """
    known = {_normalized(host) for host in store}
    for host in witness:
        if _normalized(host) in known:
            raise StartRefused(
                "witness", f"{host} is a host of the store, and {_WHY_APART}; name another cluster, or a SQLite file"
            )


def is_on_same_disk(first: Path, second: Path) -> bool:
    """Whether two files, which may be missing, are on one device; False if that is unknown."""
    try:
        return _device(first) == _device(second)
    except OSError:
        return False


def parse_mark(name: str, fields: Many[object]) -> Mark:
    """Return a mark from its fields as stored, in their order.

    Raises:
        StoreRefused: The mark was edited.
    """
    match fields:
        case [int(generation), int(value), int(step), str(token), str(gaps)] if (
            step and token and _GAPS.fullmatch(gaps)
        ):
            return Mark(generation, value, step, token=token, gaps=gaps)
    raise StoreRefused(f"the mark {name!r} of the witness was edited: {list(fields)}; delete that row of the witness")


def _device(path: Path) -> int:
    """Return the device of the nearest folder that exists; raise OSError if that is unknown."""
    for folder in Path(os.path.realpath(path)).parents:
        with suppress(FileNotFoundError):  # not `is_dir`: since Python 3.14 it hides other errors
            return folder.stat().st_dev
    raise FileNotFoundError(path)


def _normalized(host: str) -> str:
    """Return ``host:port`` so that the usual names of one host are equal."""
    name, _, port = host.lower().rpartition(":")
    return f"{'localhost' if name in _LOOPBACK else name}:{port}"
