"""The SQL statements for CrateDB, and the arithmetic in them.

They follow from what a live CrateDB 6.4.3 did:

* The cluster may apply a write twice. So an increment is relative, and an absolute value is guarded
  by a revision or a generation in the row.
* ``WHERE`` of a write has only the primary key, and both version columns where needed: CrateDB
  evaluates any other predicate on an old snapshot.
* All right sides of ``SET`` see the old row. ``GREATEST`` and ``LEAST`` ignore NULL. ``/`` and
  ``MOD`` of integers are exact and truncate towards 0; ``ABS`` is not exact. No statement relies on
  an overflow error.
"""

# ruff: noqa: S608 - only constants and the validated schema name are inserted into statements

import re

from idalloc_server.domain.sequences.sequence import MAX_ID, PERIOD_SEPARATOR, Kind
from idalloc_server.domain.store.records import RecordedAllocation
from idalloc_server.store.bounds import MIN_BIGINT
from idalloc_server.store.cratedb.tables import ALLOCATIONS, SEQUENCES, START_TIMESTAMPS, WITNESS_MARKS
from idalloc_server.store.stored_rows import (
    DEFAULT_GENERATION,
    DEFAULT_MIN_VALUE,
    DEFAULT_STEP,
    DELETED,
    PERIOD,
    TIMESTAMP,
)

# The columns of ``get`` and ``create``, in this order.
ROW = (
    "name, last_value, step, min_value, max_value, settings, mode, generation, lease_ms, rev, rev_by,"
    " created_at, changed_at"
)
ROW_COLUMNS = tuple(ROW.split(", "))
# The columns of a period's counter that ``open_period`` writes; the lattice follows them.
PERIOD_COLUMNS = ROW_COLUMNS[: ROW_COLUMNS.index("lease_ms")]
# The parameters of ``revise``; an empty mode is NULL.
REVISE = (
    *("name", "revision", "limit", "at_least", "size", "offset"),
    *("step", "min_value", "max_value", "settings", "mode"),
    *("ends_leases", "generation", "by", "at"),
)
ALLOCATION = ", ".join(RecordedAllocation._fields)
_MARK = "name, generation, value, step, token, gaps"

_RESULT = "last_value, granted, step, min_value, max_value, settings, mode, generation, writes, _seq_no, _primary_term"
# The columns of a grant; the last one only if the table has it.
RESULT = (*_RESULT.split(", "), "demand")
# The number of idalloc's writes of this row. `_seq_no` counts the writes of all rows.
_WRITES = "COALESCE(writes, 0) + 1"

# The largest distance that a counter moves in one grant, so that no difference below overflows.
_MAX_DISTANCE = 2**63 - 1
_STEP = f"COALESCE(step, {DEFAULT_STEP})"
_GENERATION = f"COALESCE(generation, {DEFAULT_GENERATION})"
_MAX = f"COALESCE(max_value, {MAX_ID})"
_UP = f"GREATEST(LEAST({_MAX}, {_MAX_DISTANCE} + LEAST(last_value, 0)), last_value) - last_value"
_DOWN = (
    f"LEAST(GREATEST(COALESCE(min_value, {DEFAULT_MIN_VALUE}), GREATEST(last_value, 0) - {_MAX_DISTANCE}), last_value)"
    " - last_value"
)
# $1 ids; 0 if fewer are left, last_value is NULL, step is 0, the row is no counter, or it is behind
# the floor $4 to $6. CrateDB 5.10 takes a parameter beside the literal 0 for an INTEGER without the
# cast, and refuses one over 2^31.
_GRANTED = (
    f"CASE WHEN {_GENERATION} >= $4 AND last_value >= $5 AND last_value <= $6"
    f" AND $1 <= CASE WHEN COALESCE(mode, '{PERIOD}') = '{PERIOD}' THEN COALESCE("
    f"CASE WHEN {_STEP} > 0 THEN ({_UP}) / {_STEP} WHEN {_STEP} < 0 THEN ({_DOWN}) / {_STEP} ELSE 0 END, 0)"
    " ELSE 0 END THEN CAST($1 AS BIGINT) ELSE 0 END"
)

# $4 is the node's clock; $5 is how far a timestamp may be ahead of the clock. If $4 is further
# ahead of CrateDB's clock than that, CrateDB's clock counts. The settings have the unit; no text in
# their JSON matches, its quotes are escaped.
_UNIT = f"CASE WHEN settings LIKE '%\"kind\": {Kind.TIMESTAMP_US:d}%' THEN 1000 ELSE 1 END"
_STORE_CLOCK = f"CAST(CURRENT_TIMESTAMP AS BIGINT) * {_UNIT}"
_CLOCK = f"CASE WHEN $4 <= {_STORE_CLOCK} + $5 THEN $4 ELSE {_STORE_CLOCK} END"
_BASE = f"GREATEST(last_value, {_CLOCK} - 1)"
_TIMESTAMPS = (
    f"CASE WHEN mode = '{TIMESTAMP}' AND {_GENERATION} >= $6 AND last_value >= $7 AND last_value <= $8"
    f" THEN LEAST($1, GREATEST(LEAST({_MAX}, {_CLOCK} + $5) - {_BASE}, 0)) ELSE 0 END"
)


def _align(value: str, rising: bool, size: str, offset: str) -> str:
    """Return SQL for the first point of the lattice at or past ``value``.

    The result is the end of BIGINT if that comes first. ``size`` is at most 2^61, and ``offset`` is
    1 to 2 times it; so each dividend is positive, and at most 3 times it.
    """
    if rising:
        distance = f"MOD({offset} - MOD({value}, {size}), {size})"
        return f"LEAST({value}, {MAX_ID} - {distance}) + {distance}"
    distance = f"MOD({offset} + MOD({value}, {size}), {size})"
    return f"GREATEST({value}, {MIN_BIGINT} + {distance}) - {distance}"


def _may_hold(holder: str, stale_ms: str, now: str) -> str:
    """Return the SQL condition under which ``holder`` gets the prefix."""
    return (
        f"holder IS NULL OR holder = {holder} OR seen_at IS NULL"
        f" OR CAST(seen_at AS BIGINT) + {stale_ms} <= CAST({now} AS BIGINT)"
    )


def _sets(condition: str, **columns: str) -> str:
    """Return a SET clause that changes all columns if the condition holds, and otherwise none."""
    return ", ".join(f"{name} = CASE WHEN {condition} THEN {value} ELSE {name} END" for name, value in columns.items())


class Statements:
    """The statements on the tables of one schema. A comment above each one lists its arguments.

    Args:
        schema: The schema; letters, digits, ``_`` and ``-``.
    """

    def __init__(self, schema: str) -> None:
        self._sequences = SEQUENCES.reference(schema)
        self._allocations = ALLOCATIONS.reference(schema)
        self._set_sequence_statements(self._sequences)
        self._set_allocation_statements(self._allocations)
        self._set_start_statements(START_TIMESTAMPS.reference(schema))

    def _set_sequence_statements(self, sequences: str) -> None:
        # ids, lease_ms, name, generation of the floor, its least and most
        grant = (
            f"UPDATE {sequences} SET granted = {_GRANTED}, last_value = last_value + {_STEP} * {_GRANTED},"
            f" lease_ms = GREATEST(COALESCE(lease_ms, 0), $2), writes = {_WRITES}"
        )
        self.grant_without_demand = f"{grant} WHERE name = $3 RETURNING {_RESULT}"
        # and the demand: a hint, so a write that is applied twice may bring an older one back
        self.grant = f"{grant}, demand = COALESCE($7, demand) WHERE name = $3 RETURNING {_RESULT}, demand"
        # timestamps, lease_ms, name, now, ahead, generation of the floor, its least and most
        self.grant_timestamps = (
            f"UPDATE {sequences} SET granted = {_TIMESTAMPS},"
            f" last_value = CASE WHEN {_TIMESTAMPS} > 0 THEN {_BASE} + {_TIMESTAMPS} ELSE last_value END,"
            f" lease_ms = GREATEST(COALESCE(lease_ms, 0), $2), writes = {_WRITES} WHERE name = $3 RETURNING {_RESULT}"
        )
        # ids, name, both version columns, generation
        give_back = _sets(f"{_GENERATION} = $5", last_value=f"last_value - {_STEP} * $1")
        self.give_back = (
            f"UPDATE {sequences} SET granted = 0, writes = {_WRITES}, {give_back}"
            " WHERE name = $2 AND _seq_no = $3 AND _primary_term = $4 RETURNING generation"
        )
        # the columns of ROW; DO NOTHING would not return the existing row
        self.create = (
            f"INSERT INTO {sequences} ({ROW}) VALUES ({_numbers(1, 13)})"
            f" ON CONFLICT (name) DO UPDATE SET last_value = last_value RETURNING {ROW}"
        )
        self.get = f"SELECT {ROW} FROM {sequences} WHERE name = $1"
        self.settings = f"SELECT settings FROM {sequences} WHERE name = $1"
        self.refresh_sequences = f"REFRESH TABLE {sequences}"
        self._set_settings_statements(sequences)

    def _set_settings_statements(self, sequences: str) -> None:
        # By whether the new settings rise.
        self.revise: dict[bool, str] = {}
        self.open_period: dict[bool, str] = {}
        new = {name: f"${number}" for number, name in enumerate(REVISE, 1)}
        excluded = {name: f"excluded.{name}" for name in ("step", "min_value", "max_value", "settings", "generation")}
        for rising, choose, within in ((True, "GREATEST", "<="), (False, "LEAST", ">=")):
            # the parameters REVISE
            least = f"{choose}(last_value, {new['at_least']})"
            sets = _sets(
                f"COALESCE(rev, 0) = {new['revision']} AND last_value {within} {new['limit']}",
                last_value=_align(least, rising, size=new["size"], offset=new["offset"]),
                step=new["step"],
                min_value=new["min_value"],
                max_value=new["max_value"],
                settings=new["settings"],
                mode=f"NULLIF({new['mode']}, '')",
                generation=f"GREATEST({_GENERATION} + {new['ends_leases']}, {new['generation']})",
                rev=f"{new['revision']} + 1",
                rev_by=new["by"],
                changed_at=new["at"],
                writes=_WRITES,
            )
            self.revise[rising] = f"UPDATE {sequences} SET {sets} WHERE name = $1 RETURNING {ROW}"
            # PERIOD_COLUMNS, and the lattice
            least = f"{choose}(last_value, excluded.last_value)"
            aligned = _align(least, rising, size="$9", offset="$10")
            sets = _sets(f"{_GENERATION} < excluded.generation", last_value=aligned, **excluded, writes=_WRITES)
            self.open_period[rising] = (
                f"INSERT INTO {sequences} ({', '.join(PERIOD_COLUMNS)}) VALUES ({_numbers(1, 8)})"
                f" ON CONFLICT (name) DO UPDATE SET {sets} RETURNING name"
            )

    def _set_allocation_statements(self, allocations: str) -> None:
        self.recorded = f"SELECT {ALLOCATION} FROM {allocations} WHERE request_id = $1"
        self.refresh_allocations = f"REFRESH TABLE {allocations}"
        # The table has one shard. Its _seq_no grows with every write within a _primary_term; a new
        # primary has a higher term, and may repeat numbers.
        self.newest_allocation = f"SELECT MAX(_seq_no), MAX(_primary_term), MAX(written_at) FROM {allocations}"
        self.count_allocations = f"SELECT COUNT(*) FROM {allocations} WHERE written_at > 0"
        last_id = "first_id + (id_count - 1) * step"
        self.recorded_ends = (
            f"SELECT sequence, period, step, CASE WHEN step > 0 THEN MAX({last_id}) ELSE MIN({last_id}) END"
            f" FROM {allocations} WHERE written_at > 0 GROUP BY sequence, period, step"
        )
        self.store_name = f"SELECT sequence FROM {allocations} WHERE request_id = $1"
        # the columns of ALLOCATION
        self.keep_copy = (
            f"INSERT INTO {allocations} ({ALLOCATION}, written_at) VALUES ({_numbers(1, 10)}, 0)"
            " ON CONFLICT (request_id) DO UPDATE SET sequence = excluded.sequence RETURNING sequence"
        )
        # written_at at most, limit; the caller then compares _seq_no, which no condition may do
        self.oldest_allocations = (
            f"SELECT request_id, _seq_no, _primary_term, window_ms FROM {allocations}"
            " WHERE written_at <= $1 AND written_at > 0 ORDER BY _seq_no LIMIT $2"
        )
        # request id, both version columns: keeps a newer record of the same id
        self.forget_allocation = (
            f"DELETE FROM {allocations} WHERE request_id = $1 AND _seq_no = $2 AND _primary_term = $3"
        )

    def _set_start_statements(self, starts: str) -> None:
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
        keep = _sets(may_hold, holder="$2", seen_at="CURRENT_TIMESTAMP")
        self.keep = f"UPDATE {starts} SET {keep} WHERE prefix = $1 RETURNING prefix"
        # prefix, holder
        self.release = f"UPDATE {starts} SET holder = NULLIF(holder, $2) WHERE prefix = $1 RETURNING prefix"
        self.refresh_starts = f"REFRESH TABLE {starts}"
        self.claimed = f"SELECT prefix, last_start FROM {starts}"
        # prefix, last start
        self.raise_start = (
            f"INSERT INTO {starts} (prefix, last_start) VALUES ($1, $2)"
            " ON CONFLICT (prefix) DO UPDATE SET last_start = GREATEST(last_start, excluded.last_start)"
            " RETURNING prefix"
        )

    def list(self, *, with_deleted: bool, with_periods: bool) -> str:
        """Return the statement that lists rows as of the last refresh.

        Its arguments: a name before the first row, a LIKE pattern, the limit, and without periods
        the pattern of their names.
        """
        where = "name > $1 AND name LIKE $2"
        if not with_deleted:
            where += f" AND COALESCE(mode, '') <> '{DELETED}'"
        if not with_periods:
            where += " AND name NOT LIKE $4"
        return f"SELECT {ROW} FROM {self._sequences} WHERE {where} ORDER BY name LIMIT $3"

    def record(self, count: int) -> str:
        """Return the statement that records this many allocations, with the columns ALLOCATION."""
        width = ALLOCATION.count(",") + 1
        rows = ", ".join(f"({_numbers(1 + width * row, width)}, CURRENT_TIMESTAMP)" for row in range(count))
        return (
            f"INSERT INTO {self._allocations} ({ALLOCATION}, written_at) VALUES {rows}"
            f" ON CONFLICT (request_id) DO UPDATE SET first_id = first_id RETURNING {ALLOCATION}"
        )


class WitnessStatements:
    """The statements on the marks of a witness. A comment above each one lists its arguments.

    Args:
        schema: The schema; letters, digits, ``_`` and ``-``.
    """

    def __init__(self, schema: str) -> None:
        self._marks = WITNESS_MARKS.reference(schema)
        self.refresh = f"REFRESH TABLE {self._marks}"
        # after, limit
        self.list = f"SELECT {_MARK} FROM {self._marks} WHERE name > $1 ORDER BY name LIMIT $2"
        # name
        self.forget = f"DELETE FROM {self._marks} WHERE name = $1"

    def read(self, count: int) -> str:
        """Return the statement that reads this many marks by their names.

        ``IN`` would be a scan, which lags.
        """
        return f"SELECT {_MARK} FROM {self._marks} WHERE {' OR '.join(['name = ?'] * count)}"

    def replace(self, count: int) -> str:
        """Return the statement that replaces this many marks, each by all columns in their order.

        A mark whose token is not ``seen`` stays. So does the new mark if the cluster applies the
        statement twice.
        """
        columns = ", ".join(WITNESS_MARKS.columns)
        width = len(WITNESS_MARKS.columns)
        rows = ", ".join(f"({_numbers(1 + width * row, width)})" for row in range(count))
        changed = {name: f"excluded.{name}" for name in WITNESS_MARKS.columns if name != "name"}
        return (
            f"INSERT INTO {self._marks} ({columns}) VALUES {rows}"
            f" ON CONFLICT (name) DO UPDATE SET {_sets('token = excluded.seen', **changed)} RETURNING name, token"
        )


def joined(grant: str) -> str:
    """Return the statement of many grants, with the bounds of a lone one.

    Each argument is an array with an element for each row, and ``$3`` has the names. Each returned
    row begins with its name; one that CrateDB does not find as of the last refresh, or that fails a
    check, is missing. OR and a literal IN would return each row once for each name.
    """
    sets, returning = grant.split(" WHERE name = $3 RETURNING ")
    element = "[array_position(CAST($3 AS ARRAY(TEXT)), name)]"
    sets = re.sub(r"[$][1-6]", rf"CAST(\g<0> AS ARRAY(BIGINT)){element}", sets)
    sets = sets.replace("$7", f"CAST($7 AS ARRAY(TEXT)){element}")
    return f"{sets} WHERE name = ANY($3) RETURNING name, {returning}"


def like(beginning: str) -> str:
    """Return the LIKE pattern of all texts that begin with this one."""
    escaped = beginning.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{escaped}%"


PERIODS = f"%{PERIOD_SEPARATOR}%"


def _numbers(first: int, count: int) -> str:
    return ", ".join(f"${number}" for number in range(first, first + count))
