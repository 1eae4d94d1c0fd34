"""A caller who waits for a lane's refill."""

import asyncio
from typing import NamedTuple

from idalloc_server.domain.allocation.id_range import IdRange


class Waiter(NamedTuple):
    """A caller who waits for ids.

    Attributes:
        id_count: How many ids.
        answer: Where they, or the error, are put.
    """

    id_count: int
    answer: asyncio.Future[IdRange]

    @property
    def is_served(self) -> bool:
        """Whether it was given its ids."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None
