"""Counters and start timestamps in CrateDB: the statements.

What they keep to was measured on a live cluster: a write may be applied twice inside the cluster, so an increment is
relative and an absolute one would go back; ``WHERE`` names the primary key and nothing else (but for both version
columns), since any other predicate is checked against an old snapshot; the right sides of ``SET`` all see the old row;
``GREATEST`` and ``LEAST`` leave NULL out; ``ABS`` is not exact; no overflow error is relied on.
"""

# ruff: noqa: S608 - the schema's name was checked, and nothing else that is not our own gets into a statement

from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.sequence import MAX_ID, Sequence
from idalloc_server.domain.store import Claim, Grant
from idalloc_server.store import crate_schema
from idalloc_server.store.bounds import DEFAULT_GENERATION, DEFAULT_MIN_VALUE, DEFAULT_STEP, ids_left
from idalloc_server.store.crate_http import CrateHttp

# The longest way that a counter can go in one grant. With it no difference below overflows, whatever the signs.
_FARTHEST = 2**63 - 1

_STEP = f"COALESCE(step, {DEFAULT_STEP})"
_WAY_UP = f"GREATEST(LEAST(COALESCE(max_value, {MAX_ID}), {_FARTHEST} + LEAST(last_value, 0)), last_value) - last_value"
_WAY_DOWN = (
    f"LEAST(GREATEST(COALESCE(min_value, {DEFAULT_MIN_VALUE}), GREATEST(last_value, 0) - {_FARTHEST}), last_value)"
    " - last_value"
)
# $1 ids, or what is left; 0 where last_value is NULL or step is 0.
_GRANTED = (
    f"LEAST($1, COALESCE(CASE WHEN {_STEP} > 0 THEN ({_WAY_UP}) / {_STEP}"
    f" WHEN {_STEP} < 0 THEN ({_WAY_DOWN}) / {_STEP} ELSE 0 END, 0))"
)


def _may_hold(holder: str, stale_ms: str, now: str) -> str:
    """Returns the condition under which a prefix becomes ``holder``'s."""
    return (
        f"holder IS NULL OR holder = {holder} OR seen_at IS NULL"
        f" OR CAST(seen_at AS BIGINT) + {stale_ms} <= CAST({now} AS BIGINT)"
    )


class CrateStore:
    """A store in a CrateDB cluster; see ``Store``.

    Args:
        http: The way to the cluster.
        schema: The schema that the tables are in; letters, digits, ``_`` and ``-``.
        address: The cluster for people, without secrets.
    """

    def __init__(self, http: CrateHttp, schema: str, address: str) -> None:
        self._http = http
        self._schema = schema
        self._address = address
        sequences = crate_schema.SEQUENCES.reference(schema)
        starts = crate_schema.STARTS.reference(schema)
        self._grant = (
            f"UPDATE {sequences} SET granted = {_GRANTED}, last_value = last_value + {_STEP} * {_GRANTED},"
            " lease_ms = GREATEST(COALESCE(lease_ms, 0), $2) WHERE name = $3"
            " RETURNING last_value, granted, step, min_value, max_value, generation, _seq_no, _primary_term"
        )
        self._create = (
            f"INSERT INTO {sequences} (name, last_value, step, min_value, max_value, generation)"
            f" VALUES ($1, $2, $3, $4, $5, {DEFAULT_GENERATION}) ON CONFLICT (name) DO NOTHING"
        )
        self._give_back = (
            f"UPDATE {sequences} SET granted = 0, last_value = last_value - {_STEP} * $1"
            " WHERE name = $2 AND _seq_no = $3 AND _primary_term = $4 RETURNING last_value"
        )
        may_hold = _may_hold("excluded.holder", "$4", "excluded.seen_at")
        self._claim = (
            f"INSERT INTO {starts} (prefix, last_start, holder, seen_at) VALUES ($1, $2, $3, CURRENT_TIMESTAMP)"
            " ON CONFLICT (prefix) DO UPDATE SET last_start = GREATEST(last_start + 1, excluded.last_start),"
            f" holder = CASE WHEN {may_hold} THEN excluded.holder ELSE holder END,"
            f" seen_at = CASE WHEN {may_hold} THEN excluded.seen_at ELSE seen_at END"
            " RETURNING last_start, holder, seen_at"
        )
        may_hold = _may_hold("$2", "$3", "CURRENT_TIMESTAMP")
        self._keep = (
            f"UPDATE {starts} SET holder = CASE WHEN {may_hold} THEN $2 ELSE holder END,"
            f" seen_at = CASE WHEN {may_hold} THEN CURRENT_TIMESTAMP ELSE seen_at END WHERE prefix = $1"
        )
        self._release = f"UPDATE {starts} SET holder = NULLIF(holder, $2) WHERE prefix = $1"

    @property
    def address(self) -> str:
        """See ``Store.address``."""
        return self._address

    async def open(self) -> None:
        """See ``Store.open``."""
        await crate_schema.set_up(self._http, self._schema)

    async def grant(self, name: str, wanted: int, lease_ms: int) -> Grant | None:
        """See ``Store.grant``."""
        rows = await self._http.write(self._grant, min(wanted, MAX_ID), lease_ms, name)
        if not rows:
            return None
        last_value, granted, step, min_value, max_value, generation, seq_no, primary_term = rows[0]
        step = DEFAULT_STEP if step is None else step
        if last_value is None:
            raise SequenceInvalid(name, "its last_value is NULL")
        if step == 0:
            raise SequenceInvalid(name, "its step is 0")
        return Grant(
            last_value=last_value,
            granted=granted,
            step=step,
            remaining=ids_left(last_value, step, min_value, max_value),
            generation=DEFAULT_GENERATION if generation is None else generation,
            version=(seq_no, primary_term),
        )

    async def create(self, name: str, sequence: Sequence) -> None:
        """See ``Store.create``."""
        before = sequence.start - sequence.step
        await self._http.write(self._create, name, before, sequence.step, sequence.min_value, sequence.max_value)

    async def give_back(self, name: str, count: int, version: tuple[int, int]) -> bool:
        """See ``Store.give_back``."""
        return bool(await self._http.write(self._give_back, count, name, *version))

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        """See ``Store.claim_start``."""
        rows = await self._http.write(self._claim, prefix, at_least, holder, _ms(stale_after))
        last_start, held_by, seen_at = rows[0]
        return Claim(last_start, held_by, seen_at / 1000)

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        """See ``Store.keep_prefix``."""
        await self._http.write(self._keep, prefix, holder, _ms(stale_after))

    async def release_prefix(self, prefix: int, holder: str) -> None:
        """See ``Store.release_prefix``."""
        await self._http.write(self._release, prefix, holder)

    async def now(self) -> float | None:
        """See ``Store.now``."""
        rows = await self._http.read("SELECT CURRENT_TIMESTAMP")
        return float(rows[0][0]) / 1000

    async def close(self) -> None:
        """See ``Store.close``."""
        await self._http.close()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
