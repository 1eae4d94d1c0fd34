"""A witness belongs to one store: both have the same random name of the store."""

import structlog

from idalloc_server.domain.errors import StoreOutcomeUnknown
from idalloc_server.domain.store.identity import IDENTITY, Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement, Witness

_log = structlog.get_logger("idalloc.witness")


async def open_with_witness(store: Store, witness: Witness, opening: Opening) -> None:
    """Open a store and its witness, and bind an unused witness to the store.

    Warns of a witness without marks beside a store that has sequences.

    Raises:
        StartRefused: The witness belongs to another store, or one of the two cannot be used.
        StoreFailure: The store or the witness failed.
    """
    await witness.open()
    mark = (await witness.read({IDENTITY})).get(IDENTITY)
    await store.open(opening._replace(witness=mark.token if mark else ""))
    if mark is None and opening.creates:
        if await store.list("", "", 1, with_deleted=False, with_periods=False):
            _log.warning(
                "witness_is_empty",
                witness=witness.address,
                next_step="expected at the first start with this witness; ids issued before are not covered",
            )
        await witness.replace([Replacement(IDENTITY, Mark(0, 0, 1, store.opened["name"]), "")])
        mark = (await witness.read({IDENTITY})).get(IDENTITY)
        if mark is None or mark.token != store.opened["name"]:
            raise StoreOutcomeUnknown("the witness did not keep the name of the store; try again")
