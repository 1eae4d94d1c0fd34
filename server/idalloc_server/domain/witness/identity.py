"""A witness belongs to one store: both have the same random name of the store."""

from collections.abc import Callable

import structlog

from idalloc_server.domain.errors import StartRefused, StoreOutcomeUnknown
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.witness.marks import IDENTITY, Replacement, Witness, WitnessMark

_NAME_BYTES = 16

_log = structlog.get_logger("idalloc.witness")


async def check_identity(store: Store, witness: Witness, random: Callable[[int], bytes]) -> None:
    """Bind an unused witness to the store, and refuse the witness of another store.

    Warns of a witness without marks beside a store that has sequences, and of a store without a
    name beside a used witness: an older copy may have lost it.

    Raises:
        StartRefused: The witness belongs to another store.
        StoreFailure: The store or the witness failed.
    """
    mark = (await witness.read({IDENTITY})).get(IDENTITY)
    row = await store.get(IDENTITY)
    if row is None:
        if mark is not None:
            _log.warning(
                "witness_of_an_unnamed_store",
                store=store.address,
                witness=witness.address,
                next_step="expected after a move, or after a restore of a copy from before the witness was set",
            )
        name = mark.token if mark else random(_NAME_BYTES).hex()
        row = await store.create(Row(IDENTITY, 0, Sequence(description=name), revised_by=name))
    name = row.sequence.description
    if mark is None:
        if await store.list("", "", 1, with_deleted=False, with_periods=False):
            _log.warning(
                "witness_is_empty",
                witness=witness.address,
                next_step="expected at the first start with this witness; ids issued before are not covered",
            )
        await witness.replace([Replacement(IDENTITY, WitnessMark(0, 0, 1, name), "")])
        mark = (await witness.read({IDENTITY})).get(IDENTITY)
        if mark is None:
            raise StoreOutcomeUnknown("the witness did not keep the name of the store; try again")
    _check_name(store, witness, mark, name)


async def check_same_store(store: Store, witness: Witness) -> None:
    """Refuse the witness of another store, but accept it if one of the two has no name.

    The one without a name may have lost it. Neither is changed.

    Raises:
        StartRefused: The witness belongs to another store.
        StoreFailure: The store or the witness failed.
    """
    mark = (await witness.read({IDENTITY})).get(IDENTITY)
    row = await store.get(IDENTITY)
    if mark is not None and row is not None:
        _check_name(store, witness, mark, row.sequence.description)


def _check_name(store: Store, witness: Witness, mark: WitnessMark, name: str) -> None:
    if mark.token != name:
        raise StartRefused(
            "witness",
            f"{witness.address} belongs to another store than {store.address}; give each store a witness of its own, "
            "or remove the marks of the other store: idalloc witness forget --all",
        )
