"""The witness in a CrateDB cluster."""

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass

from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.schema import set_up_all
from idalloc_server.store.cratedb.statements import WitnessStatements
from idalloc_server.store.cratedb.tables import WITNESS_MARKS
from idalloc_server.store.witness import parse_mark, refused_as_witness

# CrateDB 6.4.3 read 1,000 keys in one statement, and answered 3,000 with a StackOverflowError.
_NAMES_A_READ = 200


@dataclass(eq=False)
class CrateWitness:
    """A witness in a CrateDB cluster; see ``Witness``.

    A read by key may go to any copy, also to one that was cut off and is behind. Then the tokens
    that it returns are old, and a replacement that gives them is refused.
    """

    address: str  # the cluster's address for people, without secrets
    http: CrateHttp
    schema: str  # of the table; letters, digits, ``_`` and ``-``

    def __post_init__(self) -> None:
        self._sql = WitnessStatements(self.schema)

    async def open(self) -> None:
        with refused_as_witness():
            await set_up_all(self.http, self.schema, (WITNESS_MARKS,))

    async def read(self, names: Collection[str]) -> dict[str, Mark]:
        keys = list(names)
        found: dict[str, Mark] = {}
        for start in range(0, len(keys), _NAMES_A_READ):
            part = keys[start : start + _NAMES_A_READ]
            rows = await self.http.read(self._sql.read(len(part)), *part)
            found |= {name: parse_mark(name, fields) for name, *fields in rows}
        return found

    async def replace(self, replacements: Many[Replacement]) -> set[str]:
        values = [value for name, mark, seen in replacements for value in (name, *mark, seen)]
        rows = await self.http.write(self._sql.replace(len(replacements)), *values)
        # If one of several rows fails, CrateDB reports no error; the row is missing.
        tokens = {row[0]: row[1] for row in rows}
        return {name for name, mark, _ in replacements if tokens.get(name) == mark.token}

    async def list(self, after: str, limit: int) -> list[tuple[str, Mark]]:
        await self.http.read(self._sql.refresh)
        rows = await self.http.read(self._sql.list, after, limit)
        return [(name, parse_mark(name, fields)) for name, *fields in rows]

    async def forget(self, names: Collection[str]) -> int:
        return await self.http.write_each(self._sql.forget, [[name] for name in names])

    async def close(self) -> None:
        await self.http.close()
