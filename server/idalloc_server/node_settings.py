"""Settings that a node keeps over restarts, as MySQL's SET PERSIST does: one file for each listen address."""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from idalloc_server.domain.errors import InvalidRequest, StartRefused
from idalloc_server.listen_address import unix_path
from idalloc_server.store.permissions import FILE_MODE, make_folder

# The settings that may be kept.
NAMES = ("node_prefix", "auto_increment_offset", "auto_increment_increment")


class NodeSettingsFile:
    """The settings that the node of one listen address keeps.

    Attributes:
        path: The file; None where there is none: no home, or a port that is another one at each start.

    Args:
        folder: The user's state folder of idalloc; None for a user without a home.
        listen: The address, HOST:PORT or unix:/PATH.
    """

    def __init__(self, folder: Path | None, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        number = None if unix_path(listen) else int(port)
        self._no_path = "the user has no home: set XDG_STATE_HOME" if folder is None else ""
        if number == 0:
            self._no_path = "listen has port 0, so that the next start is another node"
        self.path: Path | None = None
        if folder is not None and not self._no_path:
            name = listen if number is None else f"{host.strip('[]')}-{number}"
            self.path = folder / f"persisted-{quote(name, safe='')}.json"
        self._fixed: dict[str, str] = {}

    def read(self) -> dict[str, int]:
        """Returns what is kept.

        Raises:
            StartRefused: The file cannot be read, or has something else in it.
        """
        if self.path is None:
            return {}
        try:
            kept = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StartRefused("persisted", f"cannot read {self.path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # of JSON, and of UTF-8
            raise StartRefused("persisted", f"{self.path} is not JSON: {error}; mend or remove it") from None
        if not isinstance(kept, dict) or not all(name in NAMES and type(kept[name]) is int for name in kept):
            raise StartRefused("persisted", f"{self.path} may have numbers of {', '.join(NAMES)} only: mend it")
        return kept

    def fix(self, settings: Mapping[str, str]) -> None:
        """Notes the settings that a flag or the environment sets, and which: what is kept would not hold for them."""
        self._fixed = dict(settings)

    def check(self, settings: Iterable[str]) -> None:
        """See ``NodeSettings``."""
        if self.path is None:
            raise InvalidRequest("persist", self._no_path)
        for name in settings:
            if name in self._fixed:
                raise InvalidRequest("persist", f"{self._fixed[name]} is set, and would win at the next start")

    async def save(self, settings: Mapping[str, int]) -> None:
        """See ``NodeSettings``."""
        try:
            # Off the event loop: a disk may take its time.
            await asyncio.to_thread(self._write, settings)
        except (OSError, StartRefused) as error:
            why = f"cannot write {self.path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise InvalidRequest("persist", why) from None

    def _write(self, settings: Mapping[str, int]) -> None:
        """Writes the file as a whole or not at all, also where the power goes."""
        assert self.path is not None  # noqa: S101 - `check` came first
        content = json.dumps(self.read() | dict(settings), indent=2) + "\n"
        folder = self.path.parent
        make_folder(folder)
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=folder)
        temporary = Path(name)
        try:
            temporary.chmod(FILE_MODE)
            with os.fdopen(handle, "w") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync(folder)


def _sync(folder: Path) -> None:
    if os.name == "nt":  # where a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
