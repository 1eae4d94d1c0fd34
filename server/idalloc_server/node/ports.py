"""A port: one protocol that a process serves, as the application and the supervisor run it.

gRPC's port and HTTP's are the server's own. Another package adds the port NAME by two entry points
of this name: its settings (see ``installed``) and, in the group ``idalloc.ports``, its
``PortFactory``, which is loaded only if the setting ``NAME_listen`` is not empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.node.change import NodeChanges
from idalloc_server.node.issuers import Issuers
from idalloc_server.node.report import NodeReport
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry.metrics import Counts

GROUP = "idalloc.ports"


@dataclass(frozen=True)
class ServedNode:
    """What ports serve: a node on an open store, with its own start timestamp."""

    issuers: Issuers
    changes: NodeChanges
    report: NodeReport


class Port(Protocol):
    """A port of one process; who may call, it asks the access control."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """What it serves on, by the names that the start announces."""

    async def open(self) -> None:
        """Open what the port needs before there is a node; again after a ``StoreUnavailable``.

        Raises:
            StartRefused: Something cannot be used.
            StoreFailure: The store was not reached, or rejected a statement.
        """

    async def start(self, node: ServedNode) -> None:
        """Bind the address, unless ``open`` did, and serve a node.

        Raises:
            StartRefused: The address cannot be used.
        """

    async def drain(self, timeout: float) -> None:
        """Reject what is new, and wait for what runs, for ``timeout`` seconds at most."""

    async def close(self) -> None:
        """Close the address, all connections, and what ``open`` opened; it may be closed twice."""

    def count(self, counts: Counts) -> None:
        """Add the metrics of the port."""


class PortFactory(Protocol):
    """Makes the port of a process; usually its class."""

    def check_settings(self, settings: Settings, *, requires_authentication: bool) -> None:
        """Raise ``StartRefused`` with the next step if a setting cannot be used."""

    def __call__(self, settings: Settings, access_control: AccessControl, *, shares_port: bool) -> Port:
        """Return the port, whose address other workers bind too if it ``shares_port``.

        Raises:
            StartRefused: A setting or a file prevents the start.
        """


def other_ports(settings: Settings) -> dict[str, PortFactory]:
    """Return the ports of other packages that are served, by name."""
    return {
        each.name: each.load() for each in entry_points(group=GROUP) if getattr(settings, f"{each.name}_listen", "")
    }
