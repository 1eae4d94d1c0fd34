"""Checks of the retirement row for stores without transactions.

The row is read before and after a row is created or revived, and after the first grant of each
generation of a sequence. If there is none after a write, the write came before it, and is in the
export.
"""

from dataclasses import dataclass, field
from typing import Protocol

from idalloc_server.domain.errors import (
    Refusal,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreRetired,
    StoreUnavailable,
)
from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR
from idalloc_server.domain.store.records import Grant, Revision, Row, RowVersion
from idalloc_server.domain.store.retirement import RETIREMENT, raise_if_retired, retirement_blocks, retiring_revision

# The most sequences whose checked generation a process remembers.
_MAX_CHECKED = 100_000


class _Rows(Protocol):
    """What the checks use of a store; see ``Store``."""

    async def get(self, name: str) -> Row | None: ...

    async def revise(self, name: str, revision: int, change: Revision) -> Row | None: ...

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool: ...


@dataclass(eq=False)
class RetirementChecks:
    """The checks of one store in this process."""

    store: _Rows
    _checked_generations: dict[str, int] = field(default_factory=dict, init=False)

    async def before_write(self, name: str = "") -> None:
        """Raise ``StoreRetired`` if the store is retired; ``name`` is the sequence of the call."""
        raise_if_retired(await self.store.get(RETIREMENT), name)

    async def after_write(self) -> Row | None:
        """Return the retirement row, after a write.

        Raises:
            StoreOutcomeUnknown: The row could not be read; it may precede the write.
        """
        try:
            return await self.store.get(RETIREMENT)
        except StoreFailure as error:
            raise _retirement_unknown(error) from error

    async def end_if_retired(self, row: Row) -> Row:
        """Return a row that was written.

        If the store was retired meanwhile, delete the row again and refuse.
        """
        if row.deleted or not retirement_blocks(row.name):
            return row
        found = await self.after_write()
        if found is not None and not found.deleted:
            await self.store.revise(row.name, row.revision, retiring_revision(row, found))
        raise_if_retired(found, row.name)
        return row

    async def end_created_if_retired(self, row: Row, stored: Row) -> Row:
        """Return the stored row of a create, as ``end_if_retired``.

        Raises:
            StoreOutcomeUnknown: The store is retired, and the row was created with ids.
        """
        try:
            return await self.end_if_retired(stored)
        except StoreRetired as refusal:
            if row.last_value == row.sequence.before_start:
                raise
            raise _not_given_back(refusal) from refusal

    async def accept_grant(self, name: str, grant: Grant | None) -> Grant | None:
        """Return the grant of an answer; give it back if the store is retired, or may be."""
        # The counter of a period is used only under a proof of its sequence, which is checked.
        if grant is None or PERIOD_SEPARATOR in name or self._checked_generations.get(name) == grant.generation:
            return grant
        try:
            await self.before_write(name)
        except StoreUnavailable as error:
            raise _retirement_unknown(error) from error
        except (StoreRetired, StoreRefused) as refusal:
            try:
                is_back = not grant.granted or await self.store.give_back(name, grant.granted, grant.version)
            except StoreFailure:
                is_back = False
            if is_back:
                raise
            raise _not_given_back(refusal) from refusal
        if len(self._checked_generations) >= _MAX_CHECKED:
            self._checked_generations.clear()
        self._checked_generations[name] = grant.generation
        return grant


def _not_given_back(refusal: Refusal) -> StoreOutcomeUnknown:
    """Return the error by which the caller counts the ids as burned.

    Its next call gets the refusal itself.
    """
    return StoreOutcomeUnknown(f"ids were granted and cannot be given back: {refusal}")


def _retirement_unknown(error: StoreFailure) -> StoreOutcomeUnknown:
    return StoreOutcomeUnknown(f"the store did not answer whether it is retired: {error}")
