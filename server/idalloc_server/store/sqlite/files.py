"""The files of a SQLite database: checks that all processes that write to it use the same ones."""

import ctypes
import fcntl
import os
import sqlite3
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.permissions import FILE_MODE

# struct flock of Linux: type, whence, start, length (0: to the end), process.
_LOCK = struct.Struct("hhqqi0q")
_WRITE_LOCK = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
# Past the bytes that SQLite locks, which begin at 2^30, and past the end of any database.
_FIRST_OFFSET = 2**62
_AT_FDCWD = -100
_STATX_MASK = 0x4 | 0x100  # STATX_NLINK, STATX_INO
# A ``struct statx`` of linux/stat.h: the number of links, the inode, the device's two numbers.
_STATX = struct.Struct("=16xI12xQ96xII112x")
_BESIDE = {"-wal": "write-ahead log", "-shm": "shared memory file (-shm)"}
# How long a closing process may hold its lock after SQLite removed -wal and -shm.
_CLOSE_SECONDS = 2.0


def check_locks(path: Path) -> None:
    """Check that the file system of a database refuses a second lock on a file.

    On Linux locks may belong to a descriptor (F_OFD_SETLK), so one process can test them without
    another, on a temporary file in the folder of ``path``. On other systems, and if the test cannot
    run, SQLite reports the error.

    Raises:
        StartRefused: The file system grants one lock twice, so two processes would issue the same
            ids.
    """
    if sys.platform != "linux":
        return
    with ExitStack() as files:
        try:
            first = files.enter_context(tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-lock-"))
            second = files.enter_context(Path(first.name).open("r+b"))
            fcntl.fcntl(first, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        except OSError:
            return
        try:
            fcntl.fcntl(second, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        except OSError:
            return
    raise StartRefused(
        "store",
        f"the file system of {path} grants one lock twice, and two processes would issue the same ids; "
        "choose a local disk",
    )


def lock_offset(descriptor: int, offset: int) -> bool:
    """Take a shared lock at one of a file's 2^61 offsets.

    Returns True if no other offset is locked. The lock belongs to the inode, not to the path, and
    ends when the descriptor is closed. Of two processes that lock different offsets at the same
    time, at least one detects the other. Returns True if the system has no such locks.
    """
    if sys.platform != "linux":
        return True
    at = _FIRST_OFFSET + 1 + offset
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, at, 1, 0))
        found = [
            fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
            for start, length in ((_FIRST_OFFSET, at - _FIRST_OFFSET), (at + 1, 0))
        ]
    except OSError:
        return True
    return all(_LOCK.unpack(each)[0] == fcntl.F_UNLCK for each in found)


class FileIdentity(NamedTuple):
    """The file that a path names."""

    device: int
    inode: int
    links: int  # how many names the file has


def _find_statx() -> Any:
    """Return Linux's ``statx``; None on other systems, and where it cannot be used."""
    if sys.platform != "linux":
        return None
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (AttributeError, OSError):  # an old C library
        return None
    is_refused = statx(_AT_FDCWD, b"/", 0, _STATX_MASK, ctypes.create_string_buffer(_STATX.size))
    return None if is_refused else statx  # by a sandbox


_statx = _find_statx()


def examiner(path: str) -> Callable[[], FileIdentity]:
    """Return a function for one thread that returns which file a path names at each call.

    It raises OSError if that cannot be examined. Linux does not read the file's times: since Linux
    6.13 the next write to a file whose times were read changes its inode, and the ``fdatasync``
    after it must write the inode, too (``multigrain-ts.rst`` of Linux).
    """
    found = ctypes.create_string_buffer(_STATX.size)
    # Converted once, not at each call.
    numbers = (ctypes.c_int(0), ctypes.c_uint(_STATX_MASK))
    arguments = (ctypes.c_int(_AT_FDCWD), ctypes.c_char_p(os.fsencode(path)), *numbers, found)

    def examine() -> FileIdentity:
        if _statx is None:
            status = os.stat(path)  # noqa: PTH116 - a Path is slower
            return FileIdentity(status.st_dev, status.st_ino, status.st_nlink)
        if _statx(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        links, inode, major, minor = _STATX.unpack(found)
        return FileIdentity(os.makedev(major, minor), inode, links)

    return examine


class FilesChanged(Exception):
    """The files are not the opened ones, or have another name."""

    def __init__(self, message: str, found: str) -> None:
        super().__init__(message)
        self.found = found  # in place of the opened files


class DatabaseFiles:
    """A database with the ``-wal`` and ``-shm`` beside it, as this process opened them.

    SQLite keeps its write lock in ``-shm`` (shared memory) and new commits in ``-wal`` (write-ahead
    log), and finds both by the path of the database. Two processes on one database that have other
    files beside it see neither each other's locks nor each other's commits, and issue the same ids.
    Three measures prevent this:

    * A start is refused if the database has another name (a hard link, a mount of only the file),
      since the other name has other files beside it. Symbolic links are safe: SQLite resolves them,
      too.
    * ``claim`` refuses a start while another process uses the database with other files. Each
      process locks one byte of the database, at an offset that is a hash of the identities of its
      ``-wal`` and ``-shm``, and checks for locks at other offsets. The lock belongs to the inode
      and lives as long as the process, also while it is paused in the middle of a transaction.
    * ``check`` compares identities and link counts before and after each transaction.

    Not covered: a copy of the database; files that are removed between SQLite's opening of them and
    ``claim``. Only ``check`` detects a new database in place of the old one, and programs other
    than idalloc that use another name. Only Linux has locks that belong to a descriptor; elsewhere
    ``claim`` refuses nothing.

    One process must not have two of these for one database: SQLite's own locks on a file end when
    any descriptor of it is closed.

    Args:
        path: The database.
        real_path: The same path without symbolic links.

    Raises:
        StartRefused: The database, or a file beside it, has another name.
        OSError: The database cannot be opened.
    """

    def __init__(self, path: Path, real_path: Path) -> None:
        self.inode = ""  # the device and inode of the database, after ``claim``
        self._path = path
        self._real_path = real_path
        self._beside = [real_path.with_name(real_path.name + suffix) for suffix in _BESIDE]
        # What examines each file, what it is, its device and inode.
        self._opened: list[tuple[Callable[[], FileIdentity], str, int, int]] = []
        # Opened for writing: an overlay file system replaces a file at the first such opening.
        self._descriptor = os.open(self._real_path, os.O_RDWR | os.O_NONBLOCK)
        try:
            self._check_names()
        except BaseException:
            self.close()
            raise

    def claim(self) -> None:
        """Keep out processes that use the database with another ``-wal`` or ``-shm``.

        Both must exist, and an open connection must use them. Waits for up to 2 s for another
        process to close.

        Raises:
            StartRefused: Another process uses the database with other files, or a file has another
                name.
            OSError: A file is missing.
        """
        self._check_names()
        paths = [self._path, *self._beside]
        statuses = [path.stat() for path in paths]
        if not os.path.samestat(statuses[0], os.fstat(self._descriptor)):
            raise StartRefused("store", f"the file {self._path} was replaced while it was opened; start again")
        identities = [(status.st_dev, status.st_ino) for status in statuses]
        offset = int.from_bytes(blake2b(repr(identities[1:]).encode(), digest_size=7).digest())
        deadline = time.monotonic() + _CLOSE_SECONDS
        while not lock_offset(self._descriptor, offset):
            if time.monotonic() > deadline:
                raise StartRefused(
                    "store",
                    f"another process uses {self._path} with another -wal or -shm than those beside it, and both would "
                    "issue the same ids; stop all servers of this file, then start them again",
                )
            time.sleep(0.01)
        whats = ("file", *_BESIDE.values())
        self._opened = [
            (examiner(str(path)), what, *identity)
            for path, what, identity in zip(paths, whats, identities, strict=True)
        ]
        self.inode = "{}:{}".format(*identities[0])

    def check(self) -> None:
        """Check that the files are the opened ones, and have no second link.

        Raises:
            FilesChanged: A file was replaced, removed or linked.
            OSError: A file cannot be examined.
        """
        for examine, what, device, inode in self._opened:
            try:
                found = examine()
            except FileNotFoundError:
                raise FilesChanged(f"was replaced: no {what} there", f"no {what} there") from None
            if found.inode != inode or found.device != device:
                raise FilesChanged(f"was replaced: another {what} there", f"another {what} there")
            if found.links > 1:
                links = f"{found.links} hard links to the {what}: remove all links but one"
                raise FilesChanged(f"has another name: {links}", links)

    def close(self) -> None:
        """Release the lock; the connection must already be closed."""
        os.close(self._descriptor)

    def _check_names(self) -> None:
        for path in (self._real_path, *self._beside):
            try:
                links = path.stat().st_nlink
            except FileNotFoundError:
                continue
            if links > 1 and path.is_file():
                raise StartRefused(
                    "store",
                    f"the file {path} has {links} hard links, and servers that use different ones would issue the same "
                    "ids; remove all links but one",
                )
            if _mount(path) != _mount(path.parent):
                raise StartRefused(
                    "store",
                    f"the file {path} is mounted on its own, without the files that SQLite keeps beside it, and servers"
                    " inside and outside would issue the same ids; mount its folder",
                )


def create_file(path: Path, create_tables: Callable[[sqlite3.Connection], None]) -> None:
    """Create a database if it is missing, complete or not at all, with mode 600 for any umask.

    SQLite creates ``-wal`` and ``-shm`` with the same mode. Safe for concurrent calls of several
    processes, which wait for each other.

    Args:
        path: The database, without symbolic links.
        create_tables: Creates the tables of a new one.

    Raises:
        StartRefused: The database was lost: it is empty, or missing beside its write-ahead log.
        OSError: It cannot be created.
    """
    new = path.with_name(f"{path.name}-new")
    with suppress(FileNotFoundError):
        if path.stat().st_size and not new.exists():
            return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        new.unlink(missing_ok=True)  # of a process that was killed here
        if is_there(path):
            return
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, FILE_MODE)
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
                create_tables(db)
                file.write(db.serialize())
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(new, path)
            new.unlink()
        except FileExistsError:  # made by a program that does not wait
            new.unlink()
        except OSError:  # a file system without links
            new.rename(path)
    finally:
        os.close(folder)


def is_there(path: Path) -> bool:
    """Return whether a database is there; refuse one that is empty, or of which a part is left."""
    try:
        status = path.stat()
    except FileNotFoundError:
        for suffix, what in _BESIDE.items():
            if (left := path.with_name(path.name + suffix)).exists():
                raise StartRefused(
                    "store",
                    f"the file {path} is missing, and its {what} {left} is there: a new file would begin again; put "
                    f"the file back, or delete {left} if the file is new",
                ) from None
        return False
    if stat.S_ISREG(status.st_mode) and not status.st_size:
        raise StartRefused(
            "store",
            f"the file {path} is empty, so its content is lost; put it back, or delete the file if it is new",
        )
    return True


def _mount(path: Path) -> str:
    """Return the id of the mount that a path is on; empty if the system does not expose it.

    A file that is a mount point is on another mount than its folder. ``os.path.ismount`` misses
    that within one file system, and /proc/self/mountinfo also lists hidden mounts.
    """
    if sys.platform != "linux":
        return ""
    with suppress(OSError):
        descriptor = os.open(path, os.O_PATH)  # closing an O_PATH descriptor releases no lock
        try:
            lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        finally:
            os.close(descriptor)
        return next((line for line in lines if line.startswith("mnt_id:")), "")
    return ""
