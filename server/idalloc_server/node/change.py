"""Changes of the node's settings, in all workers of the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.settings.persisted import NodeSettingsFile


class Workers(Protocol):
    """The workers of a server with several processes; ``count`` is their number."""

    count: int

    @property
    def other_lease_count(self) -> int:
        """How many leases all other workers held about a second ago."""

    async def change(self, given: Mapping[str, int], persist: bool, timeout: float | None) -> None:
        """Change this worker as ``DocIdGenerator.change`` does, and all others.

        If this worker cannot change, nothing changes. Of concurrent changes the last one wins.

        Raises:
            ChangePending: Not all workers changed in time. The change continues, even if the caller
                leaves.
        """

    async def other_rates(self, counters: list[str]) -> Mapping[str, float]:
        """Return how fast all other workers together issue ids, see ``Allocator.rates``.

        Workers that do not answer within ``ANSWER_SECONDS`` are left out.
        """


@dataclass(eq=False)
class NodeChanges:
    """Changes settings of this node."""

    doc_ids: DocIdGenerator  # uses the settings in this process
    node_settings: NodeSettingsFile | None = None  # persists them; None if they cannot be persisted
    workers: Workers | None = None  # all workers of the server; None for a single process

    async def change(self, given: Mapping[str, int], persist: bool, timeout: float | None = None) -> None:
        """Change settings in all workers.

        Args:
            given: The settings to change, by field.
            persist: Whether to persist them; otherwise they last until the next start.
            timeout: How long the caller waits for other workers, in seconds; None for the default.

        Raises:
            Refusal: The settings cannot be changed or persisted.
        """
        save = None
        if persist:
            if self.node_settings is None:
                raise InvalidRequest("persist", "this node cannot keep settings across restarts")
            self.node_settings.check(given)
            save = self.node_settings.update
        if self.workers is not None:
            await self.workers.change(given, persist, timeout)
        else:
            await self.doc_ids.change(**given, save=save)
