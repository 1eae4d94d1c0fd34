"""Primary keys of SQLAlchemy's models from an idalloc sequence, in any database.

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=idalloc_default("orders"))

In a class of ``MappedAsDataclass`` it is ``insert_default=``, since ``default=`` there is the dataclass's.
"""

import os
from collections.abc import Callable

from idalloc._core.defaults import DEFAULT_TARGET
from idalloc._sync.client import Client
from idalloc._sync.ids import Ids

_clients: dict[str, Client] = {}


def idalloc_default(sequence: str, client: Client | None = None) -> Callable[[], int]:
    """Makes a column's default: each row that comes without a value gets the sequence's next id.

    The ids are those of ``Client.ids``: asked for ahead, so that most rows cost no call, also in bulk inserts, where
    each row gets one. Any number of threads may insert. In the child of a fork it goes on with ids of the child's own,
    under the conditions that ``Client`` tells. A rollback leaves a gap. In an asynchronous engine the event loop stands
    still while ids are fetched.

    Args:
        sequence: The sequence's name. It must not be one with a reset, whose numbers come again.
        client: Where to get ids. Without it, from the server that the environment names when the first id is needed,
            by one client for all columns: see ``Client.from_environment``. ``IDALLOC_SERVER`` is 127.0.0.1:50051
            unless it is set; ``IDALLOC_TOKEN`` or ``IDALLOC_TOKEN_FILE`` say who this is, ``IDALLOC_TLS`` and
            ``IDALLOC_CA`` ask for TLS.

    Returns:
        What ``default=`` of ``Column`` and ``mapped_column`` takes.
    """
    # No lock, which a fork might find taken: of two threads that are here first, both get what was put in first.
    made: dict[str, Ids] = {}

    def next_id() -> int:
        ids = made.get(sequence)
        if ids is None:
            ids = made.setdefault(sequence, (client or _shared_client()).ids(sequence))
        return next(ids)

    return next_id


def _shared_client() -> Client:
    target = os.environ.get("IDALLOC_SERVER") or DEFAULT_TARGET
    found = _clients.get(target)
    return found if found is not None else _clients.setdefault(target, Client.from_environment())
