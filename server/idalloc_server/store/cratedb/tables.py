"""The definitions of idalloc's tables in CrateDB."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """The definition of a table."""

    name: str  # its name, without the schema
    # The type of each column; the first is the primary key. An adopted table may lack all but the
    # first two.
    columns: Mapping[str, str]
    nullable: Collection[str] = ()  # the columns that may be NULL in a row that idalloc creates
    # The type of each column that a server can do without, if its user may not add it.
    optional: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The primary key."""
        return next(iter(self.columns))

    @property
    def all_columns(self) -> dict[str, str]:
        """The type of each column, also of the optional ones."""
        return {**self.columns, **self.optional}

    def reference(self, schema: str) -> str:
        """Return the quoted, qualified name."""
        return f'"{schema}"."{self.name}"'

    def definition(self, schema: str) -> str:
        """Return the CREATE TABLE statement."""
        columns = ", ".join(
            f"{name} {kind}{' PRIMARY KEY' if name == self.key else ''}" for name, kind in self.all_columns.items()
        )
        return (
            f"CREATE TABLE IF NOT EXISTS {self.reference(schema)} ({columns}) CLUSTERED INTO 1 SHARDS WITH ("
            "number_of_replicas = '0-2', \"translog.durability\" = 'REQUEST', column_policy = 'strict')"
        )


def _columns(definition: str) -> dict[str, str]:
    """Return the type of each column of a definition, as in CREATE TABLE."""
    return {name: kind for name, _, kind in (column.partition(" ") for column in definition.split(", "))}


SEQUENCES = Table(
    "sequences",
    _columns(
        "name TEXT, last_value BIGINT, step BIGINT, min_value BIGINT, max_value BIGINT, generation BIGINT,"
        " lease_ms BIGINT, granted BIGINT, settings TEXT, mode TEXT, rev BIGINT, rev_by TEXT,"
        " created_at TIMESTAMP WITH TIME ZONE, changed_at TIMESTAMP WITH TIME ZONE, writes BIGINT"
    ),
    nullable=("lease_ms", "granted", "mode", "rev", "rev_by", "created_at", "changed_at", "writes"),
    optional={"demand": "TEXT"},
)
START_TIMESTAMPS = Table(
    "start_timestamps",
    _columns("prefix INTEGER, last_start BIGINT, holder TEXT, seen_at TIMESTAMP WITH TIME ZONE"),
    nullable=("holder", "seen_at"),
)
ALLOCATIONS = Table(
    "allocations",
    _columns(
        "request_id TEXT, sequence TEXT, first_id BIGINT, id_count BIGINT, step BIGINT, generation BIGINT, period TEXT,"
        " prefix INTEGER, node TEXT, written_at TIMESTAMP WITH TIME ZONE, window_ms BIGINT"
    ),
    nullable=("window_ms",),
)
# The parts of a store, in the order of their creation.
TABLES = {table.name: table for table in (SEQUENCES, START_TIMESTAMPS, ALLOCATIONS)}
# ``seen`` is the replaced token: a statement can refer only to new values of columns.
WITNESS_MARKS = Table(
    "witness_marks",
    _columns("name TEXT, generation BIGINT, value BIGINT, step BIGINT, token TEXT, gaps TEXT, seen TEXT"),
)
