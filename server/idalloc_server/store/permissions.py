"""Files and folders with permissions for the server's own user only."""

import os
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 700, independent of the umask.

    Existing folders keep their mode. Safe for concurrent calls of several processes.

    Raises:
        OSError: A folder cannot be made.
    """
    missing = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process made it first
            each.mkdir(FOLDER_MODE)
            each.chmod(FOLDER_MODE)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, if the system allows it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
