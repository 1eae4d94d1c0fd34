"""Files and folders that only the server's own user can use."""

from contextlib import suppress
from itertools import takewhile
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, for their owner alone, whatever the umask. Existing ones stay as they are.

    Any number of processes may do this at once.

    Raises:
        OSError: One cannot be made.
    """
    missing = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            each.mkdir(FOLDER_MODE)
            each.chmod(FOLDER_MODE)
