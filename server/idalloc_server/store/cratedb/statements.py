"""The statements that CrateDB is sent, and the arithmetic in them.

What they keep to was measured on a live cluster: a write may be applied twice inside the cluster, so an increment is
relative, and what is absolute is guarded by a revision or a generation in the row; ``WHERE`` of a write names the
primary key and nothing else (but for both version columns), since any other predicate is checked against an old
snapshot; the right sides of ``SET`` all see the old row; ``GREATEST`` and ``LEAST`` leave NULL out; ``/`` and ``MOD``
of integers are exact and truncate towards 0; ``ABS`` is not exact; no overflow error is relied on.
"""

# ruff: noqa: S608 - the schema's name was checked, and nothing else that is not our own gets into a statement

from idalloc_server.domain.sequences.model import MAX_ID, PERIOD_MARK, Kind, Sequence
from idalloc_server.store.bounds import LOWEST
from idalloc_server.store.cratedb.tables import ALLOCATIONS, SEQUENCES, STARTS
from idalloc_server.store.packed_settings import (
    DEFAULT_GENERATION,
    DEFAULT_MIN_VALUE,
    DEFAULT_STEP,
    DELETED,
    PERIOD,
    TIMESTAMP,
)

# What is read of a row, and written by ``create``, in this order.
ROW = (
    "name, last_value, step, min_value, max_value, settings, mode, generation, lease_ms, rev, rev_by,"
    " created_at, changed_at"
)
ALLOCATION = "request_id, sequence, first_id, id_count, step, generation, period, prefix, node, window_ms"

_GRANT = "last_value, granted, step, min_value, max_value, settings, mode, generation, writes, _seq_no, _primary_term"
# How many writes of the row idalloc has made. `_seq_no` does not tell that: it counts the writes of all rows.
_WRITES = "COALESCE(writes, 0) + 1"

# The longest way that a counter can go in one grant. With it no difference below overflows, whatever the signs.
_FARTHEST = 2**63 - 1
_STEP = f"COALESCE(step, {DEFAULT_STEP})"
_GENERATION = f"COALESCE(generation, {DEFAULT_GENERATION})"
_MAX = f"COALESCE(max_value, {MAX_ID})"
_WAY_UP = f"GREATEST(LEAST({_MAX}, {_FARTHEST} + LEAST(last_value, 0)), last_value) - last_value"
_WAY_DOWN = (
    f"LEAST(GREATEST(COALESCE(min_value, {DEFAULT_MIN_VALUE}), GREATEST(last_value, 0) - {_FARTHEST}), last_value)"
    " - last_value"
)
# $1 ids, or none where fewer are left, last_value is NULL, step is 0, the row is no counter, or it is behind $4 to $6.
_GRANTED = (
    f"CASE WHEN {_GENERATION} >= $4 AND last_value >= $5 AND last_value <= $6"
    f" AND $1 <= CASE WHEN COALESCE(mode, '{PERIOD}') = '{PERIOD}' THEN COALESCE("
    f"CASE WHEN {_STEP} > 0 THEN ({_WAY_UP}) / {_STEP} WHEN {_STEP} < 0 THEN ({_WAY_DOWN}) / {_STEP} ELSE 0 END, 0)"
    " ELSE 0 END THEN $1 ELSE 0 END"
)

# $4 is the node's clock, $5 how far ahead of a clock may be; one that is further ahead of the store's does not count.
# What a unit is, the settings say: no text in them can look like this, since its quotation marks would be escaped.
_UNIT = f"CASE WHEN settings LIKE '%\"kind\": {Kind.TIMESTAMP_US:d}%' THEN 1000 ELSE 1 END"
_STORE_CLOCK = f"CAST(CURRENT_TIMESTAMP AS BIGINT) * {_UNIT}"
_CLOCK = f"CASE WHEN $4 <= {_STORE_CLOCK} + $5 THEN $4 ELSE {_STORE_CLOCK} END"
_BASE = f"GREATEST(last_value, {_CLOCK} - 1)"
_TIMESTAMPS = (
    f"CASE WHEN mode = '{TIMESTAMP}' AND {_GENERATION} >= $6 AND last_value >= $7 AND last_value <= $8"
    f" THEN LEAST($1, GREATEST(LEAST({_MAX}, {_CLOCK} + $5) - {_BASE}, 0)) ELSE 0 END"
)


def lattice(sequence: Sequence) -> tuple[int, int]:
    """Returns the two arguments by which ``_reaching`` knows the lattice: the size of the step, and an offset."""
    size = abs(sequence.step)
    remainder = sequence.before_start % size
    return size, (size + remainder if sequence.step > 0 else 2 * size - remainder)


def _reaching(value: str, rising: bool, size: str, offset: str) -> str:
    """Returns the first point of the lattice that is not before ``value``, or the last BIGINT before that.

    ``size`` is at most 2^61 and ``offset`` 1 to 2 of it, so that what is taken the remainder of is positive and at
    most 3 of it.
    """
    if rising:
        way = f"MOD({offset} - MOD({value}, {size}), {size})"
        return f"LEAST({value}, {MAX_ID} - {way}) + {way}"
    way = f"MOD({offset} + MOD({value}, {size}), {size})"
    return f"GREATEST({value}, {LOWEST} + {way}) - {way}"


def _may_hold(holder: str, stale_ms: str, now: str) -> str:
    """Returns the condition under which a prefix becomes ``holder``'s."""
    return (
        f"holder IS NULL OR holder = {holder} OR seen_at IS NULL"
        f" OR CAST(seen_at AS BIGINT) + {stale_ms} <= CAST({now} AS BIGINT)"
    )


def _sets(condition: str, **columns: str) -> str:
    """Returns a SET clause that changes all of the columns, or none."""
    return ", ".join(f"{name} = CASE WHEN {condition} THEN {value} ELSE {name} END" for name, value in columns.items())


class Statements:
    """All statements of one schema, each with its arguments in the order of the numbers.

    Args:
        schema: Letters, digits, ``_`` and ``-``.
    """

    def __init__(self, schema: str) -> None:
        sequences = self._sequences = SEQUENCES.reference(schema)
        starts = STARTS.reference(schema)
        allocations = self._allocations = ALLOCATIONS.reference(schema)

        # ids, lease_ms, name, what was seen
        self.grant = (
            f"UPDATE {sequences} SET granted = {_GRANTED}, last_value = last_value + {_STEP} * {_GRANTED},"
            f" lease_ms = GREATEST(COALESCE(lease_ms, 0), $2), writes = {_WRITES} WHERE name = $3 RETURNING {_GRANT}"
        )
        # timestamps, lease_ms, name, now, ahead, what was seen
        self.grant_timestamps = (
            f"UPDATE {sequences} SET granted = {_TIMESTAMPS},"
            f" last_value = CASE WHEN {_TIMESTAMPS} > 0 THEN {_BASE} + {_TIMESTAMPS} ELSE last_value END,"
            f" lease_ms = GREATEST(COALESCE(lease_ms, 0), $2), writes = {_WRITES} WHERE name = $3 RETURNING {_GRANT}"
        )
        # ids, name, both version columns, generation
        taken_back = _sets(f"{_GENERATION} = $5", last_value=f"last_value - {_STEP} * $1")
        self.give_back = (
            f"UPDATE {sequences} SET granted = 0, writes = {_WRITES}, {taken_back}"
            " WHERE name = $2 AND _seq_no = $3 AND _primary_term = $4 RETURNING generation"
        )
        # the columns of ROW; DO NOTHING would not return the row that stands
        self.create = (
            f"INSERT INTO {sequences} ({ROW}) VALUES ({_numbers(1, 13)})"
            f" ON CONFLICT (name) DO UPDATE SET last_value = last_value RETURNING {ROW}"
        )
        self.get = f"SELECT {ROW} FROM {sequences} WHERE name = $1"
        self.refresh_sequences = f"REFRESH TABLE {sequences}"
        self._revise = {rising: self._revise_of(rising) for rising in (True, False)}
        self._open_period = {rising: self._open_period_of(rising) for rising in (True, False)}

        self.recorded = f"SELECT {ALLOCATION} FROM {allocations} WHERE request_id = $1"
        self.refresh_allocations = f"REFRESH TABLE {allocations}"
        # The table has one shard, whose _seq_no grows with every write, or starts anew in a higher _primary_term.
        self.newest_allocation = f"SELECT MAX(_seq_no), MAX(_primary_term), MAX(written_at) FROM {allocations}"
        self.count_allocations = f"SELECT COUNT(*) FROM {allocations}"
        # written_at at most, how many; what decides on a row is its _seq_no, which no condition may compare
        self.oldest_allocations = (
            f"SELECT request_id, _seq_no, _primary_term, window_ms FROM {allocations}"
            " WHERE written_at <= $1 ORDER BY _seq_no LIMIT $2"
        )
        # request id, both version columns: not one that was written down anew under that id
        self.forget_allocation = (
            f"DELETE FROM {allocations} WHERE request_id = $1 AND _seq_no = $2 AND _primary_term = $3"
        )

        may_hold = _may_hold("excluded.holder", "$4", "excluded.seen_at")
        # prefix, at least, holder, ms
        self.claim = (
            f"INSERT INTO {starts} (prefix, last_start, holder, seen_at) VALUES ($1, $2, $3, CURRENT_TIMESTAMP)"
            " ON CONFLICT (prefix) DO UPDATE SET last_start = GREATEST(last_start + 1, excluded.last_start),"
            f" {_sets(may_hold, holder='excluded.holder', seen_at='excluded.seen_at')}"
            " RETURNING last_start, holder, seen_at"
        )
        may_hold = _may_hold("$2", "$3", "CURRENT_TIMESTAMP")
        # prefix, holder, ms
        self.keep = f"UPDATE {starts} SET {_sets(may_hold, holder='$2', seen_at='CURRENT_TIMESTAMP')} WHERE prefix = $1"
        # prefix, holder
        self.release = f"UPDATE {starts} SET holder = NULLIF(holder, $2) WHERE prefix = $1"
        self.refresh_starts = f"REFRESH TABLE {starts}"
        self.claimed = f"SELECT prefix, last_start FROM {starts}"
        # prefix, last start
        self.raise_start = (
            f"INSERT INTO {starts} (prefix, last_start) VALUES ($1, $2)"
            " ON CONFLICT (prefix) DO UPDATE SET last_start = GREATEST(last_start, excluded.last_start)"
        )

    def list(self, *, deleted: bool, periods: bool) -> str:
        """Returns the statement that lists rows: behind a name, like a pattern, how many; a scan of the last refresh.

        Without periods ``$4`` is the pattern of their names.
        """
        where = "name > $1 AND name LIKE $2"
        if not deleted:
            where += f" AND COALESCE(mode, '') <> '{DELETED}'"
        if not periods:
            where += " AND name NOT LIKE $4"
        return f"SELECT {ROW} FROM {self._sequences} WHERE {where} ORDER BY name LIMIT $3"

    def revise(self, sequence: Sequence) -> str:
        """Returns the statement that changes a row to these settings; see ``_revise_of``."""
        return self._revise[sequence.step > 0]

    def open_period(self, sequence: Sequence) -> str:
        """Returns the statement that makes, or renews, the counter of a period; see ``_open_period_of``."""
        return self._open_period[sequence.step > 0]

    def record(self, count: int) -> str:
        """Returns the statement that writes down this many allocations: the columns of ALLOCATION of each."""
        width = ALLOCATION.count(",") + 1
        rows = ", ".join(f"({_numbers(1 + width * row, width)}, CURRENT_TIMESTAMP)" for row in range(count))
        return (
            f"INSERT INTO {self._allocations} ({ALLOCATION}, written_at) VALUES {rows}"
            f" ON CONFLICT (request_id) DO UPDATE SET first_id = first_id RETURNING {ALLOCATION}"
        )

    def _revise_of(self, rising: bool) -> str:
        """$1 name, $2 revision, $3 limit, $4 at least, $5 and $6 the lattice, $7 to $15 what becomes of the row.

        $7 is the step, $8 and $9 are the bounds, $10 the settings, $11 the mode, empty for none, $12 is what the
        generation grows by, $13 the least generation, $14 is by, $15 at.
        """
        choose, within = ("GREATEST", "<=") if rising else ("LEAST", ">=")
        sets = _sets(
            f"COALESCE(rev, 0) = $2 AND last_value {within} $3",
            last_value=_reaching(f"{choose}(last_value, $4)", rising, "$5", "$6"),
            step="$7",
            min_value="$8",
            max_value="$9",
            settings="$10",
            mode="NULLIF($11, '')",
            generation=f"GREATEST({_GENERATION} + $12, $13)",
            rev="$2 + 1",
            rev_by="$14",
            changed_at="$15",
            writes=_WRITES,
        )
        return f"UPDATE {self._sequences} SET {sets} WHERE name = $1 RETURNING {ROW}"

    def _open_period_of(self, rising: bool) -> str:
        """$1 name, $2 counter, $3 to $7 step, bounds, settings, mode, $8 generation, $9 and $10 the lattice."""
        choose = "GREATEST" if rising else "LEAST"
        sets = _sets(
            f"{_GENERATION} < excluded.generation",
            last_value=_reaching(f"{choose}(last_value, excluded.last_value)", rising, "$9", "$10"),
            **{name: f"excluded.{name}" for name in ("step", "min_value", "max_value", "settings", "generation")},
            writes=_WRITES,
        )
        return (
            f"INSERT INTO {self._sequences} (name, last_value, step, min_value, max_value, settings, mode, generation)"
            f" VALUES ({_numbers(1, 8)}) ON CONFLICT (name) DO UPDATE SET {sets}"
        )


def like(beginning: str) -> str:
    """Returns the pattern of all texts that begin like this."""
    escaped = beginning.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{escaped}%"


PERIODS = f"%{PERIOD_MARK}%"


def _numbers(first: int, count: int) -> str:
    return ", ".join(f"${number}" for number in range(first, first + count))
