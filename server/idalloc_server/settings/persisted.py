"""Node settings persisted over restarts, as by MySQL's SET PERSIST: one file per listen address."""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from idalloc_server.domain.errors import InvalidRequest, StartRefused
from idalloc_server.settings.address import unix_path
from idalloc_server.store.permissions import FILE_MODE, make_folder, sync_folder
from idalloc_server.store.sqlite.database import JobThread

# The setting of each field that UpdateNode changes.
SETTINGS = {
    "prefix": "node_prefix",
    "auto_increment_offset": "auto_increment_offset",
    "auto_increment_increment": "auto_increment_increment",
}
NAMES = tuple(SETTINGS.values())


class NodeSettingsFile:
    """The persisted settings of the node with one listen address.

    Args:
        folder: The user's state folder of idalloc; None for a user without a home folder.
        listen: The listen address, HOST:PORT or unix:/PATH.
        overrides: Which flag or variable overrides each setting: ``check`` rejects these settings.
    """

    def __init__(self, folder: Path | str | None, listen: str, overrides: Mapping[str, str] | None = None) -> None:
        self._overrides = dict(overrides or {})
        # As JSON values: another process of this server uses the same file.
        self.arguments = {"folder": str(folder) if folder else None, "listen": listen, "overrides": self._overrides}
        host, _, port = listen.rpartition(":")
        self.path: Path | None = None
        if not unix_path(listen) and int(port) == 0:
            self._no_path = "listen has port 0, which changes at each start: choose a port"
        elif folder is None:
            self._no_path = "the user has no home folder: set XDG_STATE_HOME"
        else:
            name = listen if unix_path(listen) else f"{host.strip('[]')}-{int(port)}"
            self.path = Path(folder) / f"persisted-{quote(name, safe='')}.json"

    def read(self) -> dict[str, int]:
        """Return the persisted settings.

        Raises:
            StartRefused: The file cannot be read, or is invalid.
        """
        if self.path is None:
            return {}
        try:
            saved = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StartRefused("persisted", f"cannot read {self.path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8
            raise StartRefused("persisted", f"{self.path} is not JSON: {error}; correct or remove it") from None
        if not isinstance(saved, dict) or not all(name in NAMES and type(saved[name]) is int for name in saved):
            raise StartRefused(
                "persisted", f"{self.path} must contain only integers of {', '.join(NAMES)}: correct or remove it"
            )
        return saved

    def check(self, settings: Iterable[str]) -> None:
        """Check that settings can be persisted.

        Raises:
            InvalidRequest: There is no file, or another source would override them at the next
                start.
        """
        if self.path is None:
            raise InvalidRequest("persist", self._no_path)
        for field in settings:
            if override := self._overrides.get(SETTINGS[field]):
                raise InvalidRequest(
                    "persist",
                    f"{override} is set and would override the persisted value at the next start; "
                    "remove it, or change without persist",
                )

    async def update(self, settings: Mapping[str, int]) -> None:
        """Persist settings in addition to those saved before.

        Raises:
            InvalidRequest: They cannot be written; nothing is saved.
        """
        thread = JobThread("settings")  # a disk may hang, and the process must be able to exit
        try:
            await thread.run(self._write, settings)
        except (OSError, StartRefused) as error:
            reason = f"cannot write {self.path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise InvalidRequest("persist", reason) from None
        finally:
            thread.close()

    def _write(self, settings: Mapping[str, int]) -> None:
        """Write the file atomically and durably."""
        assert self.path is not None  # noqa: S101 - `check` was called before
        given = {SETTINGS[field]: value for field, value in settings.items()}
        content = json.dumps(self.read() | given, indent=2) + "\n"
        folder = self.path.parent
        make_folder(folder)
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=folder)
        temporary = Path(name)
        try:
            temporary.chmod(FILE_MODE)  # independent of the umask
            with os.fdopen(handle, "w") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(folder)
