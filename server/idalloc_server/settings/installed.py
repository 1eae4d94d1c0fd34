"""The settings of this installation: the server's own, and those of ports in other packages."""

from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

from pydantic import create_model

from idalloc_server.settings.model import Settings

GROUP = "idalloc.settings"


class Installed(NamedTuple):
    """What is installed beside the server."""

    settings: type[Settings]  # the model of all settings
    missing: frozenset[str]  # the names of ports whose package is not there


@cache
def installed() -> Installed:
    """Return the settings of the server and of each port of another package.

    Such a package names its subclass of ``Settings`` as an entry point of the group
    ``idalloc.settings``. The settings of the port NAME begin with ``NAME_``; ``NAME_listen`` is its
    address, empty for none.
    """
    models: list[type[Settings]] = []
    missing = set()
    for each in entry_points(group=GROUP):
        try:
            models.append(each.load())
        except ModuleNotFoundError as error:
            if error.name != each.module.partition(".")[0]:
                raise
            missing.add(each.name)
    model = create_model("Settings", __base__=tuple(models)) if models else Settings
    return Installed(model, frozenset(missing))
