"""Primary keys of SQLAlchemy models from an idalloc sequence, for any database.

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(
            BigInteger, primary_key=True, default=idalloc_default("orders")
        )

In a ``MappedAsDataclass`` class use ``insert_default=``, because there ``default=`` is the
dataclass's default.
"""

import os
from collections.abc import Callable

from idalloc._core.defaults import DEFAULT_TARGET
from idalloc._sync.client import Client
from idalloc._sync.ids import Ids

_clients: dict[str, Client] = {}


def idalloc_default(sequence: str, client: Client | None = None) -> Callable[[], int]:
    """Return a column default: a row that is inserted without a value gets the sequence's next id.

    The ids come from ``Client.ids``, which prefetches: most rows cost no call, including those of
    bulk inserts. Threads may share the default. In the child of a fork it continues with ids of the
    child's own, on the conditions in ``Client``. A rollback leaves a gap. In an asynchronous
    engine, a fetch of ids blocks the event loop.

    Args:
        sequence: The sequence's name. The sequence must not have a reset, because its numbers
            repeat.
        client: The client; None for one that all columns share, created by
            ``Client.from_environment`` when the first id is needed. ``IDALLOC_SERVER`` is the
            server (default 127.0.0.1:50051), ``IDALLOC_TOKEN`` or ``IDALLOC_TOKEN_FILE`` the token;
            ``IDALLOC_TLS`` and ``IDALLOC_CA`` enable TLS.

    Returns:
        A function for ``default=`` of ``Column`` and ``mapped_column``.
    """
    # No lock, because a fork could copy it locked: setdefault returns the same object to threads
    # that race.
    shared: dict[str, Ids] = {}

    def next_id() -> int:
        ids = shared.get(sequence)
        if ids is None:
            target = os.environ.get("IDALLOC_SERVER") or DEFAULT_TARGET
            own = client or _clients.get(target) or _clients.setdefault(target, Client.from_environment())
            ids = shared.setdefault(sequence, own.ids(sequence))
        return next(ids)

    return next_id
