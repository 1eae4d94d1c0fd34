"""The definitions of idalloc's tables in CrateDB."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """The definition of a table."""

    name: str  # its name, without the schema
    key: str  # its primary key
    # The type of each column. An adopted table may lack all but the first two.
    columns: Mapping[str, str]
    written: Collection[str]  # the columns that are never NULL in a row that idalloc creates
    # The type of each column that a server can do without, if its user may not add it.
    optional: Mapping[str, str] = field(default_factory=dict)

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


SEQUENCES = Table(
    "sequences",
    "name",
    {
        "name": "TEXT",
        "last_value": "BIGINT",
        "step": "BIGINT",
        "min_value": "BIGINT",
        "max_value": "BIGINT",
        "generation": "BIGINT",
        "lease_ms": "BIGINT",
        "granted": "BIGINT",
        "settings": "TEXT",
        "mode": "TEXT",
        "rev": "BIGINT",
        "rev_by": "TEXT",
        "created_at": "TIMESTAMP WITH TIME ZONE",
        "changed_at": "TIMESTAMP WITH TIME ZONE",
        "writes": "BIGINT",
    },
    written=("name", "last_value", "step", "min_value", "max_value", "generation", "settings"),
    optional={"demand": "TEXT"},
)
START_TIMESTAMPS = Table(
    "start_timestamps",
    "prefix",
    {
        "prefix": "INTEGER",
        "last_start": "BIGINT",
        "holder": "TEXT",
        "seen_at": "TIMESTAMP WITH TIME ZONE",
    },
    written=("prefix", "last_start"),
)
ALLOCATIONS = Table(
    "allocations",
    "request_id",
    {
        "request_id": "TEXT",
        "sequence": "TEXT",
        "first_id": "BIGINT",
        "id_count": "BIGINT",
        "step": "BIGINT",
        "generation": "BIGINT",
        "period": "TEXT",
        "prefix": "INTEGER",
        "node": "TEXT",
        "written_at": "TIMESTAMP WITH TIME ZONE",
        "window_ms": "BIGINT",
    },
    written=(
        "request_id",
        "sequence",
        "first_id",
        "id_count",
        "step",
        "generation",
        "period",
        "prefix",
        "node",
        "written_at",
    ),
)
# The parts of a store, in the order of their creation.
TABLES = {table.name: table for table in (SEQUENCES, START_TIMESTAMPS, ALLOCATIONS)}
# ``seen`` is the replaced token: a statement can refer only to new values of columns.
WITNESS_MARKS = Table(
    "witness_marks",
    "name",
    {
        "name": "TEXT",
        "generation": "BIGINT",
        "value": "BIGINT",
        "step": "BIGINT",
        "token": "TEXT",
        "gaps": "TEXT",
        "seen": "TEXT",
    },
    written=("name", "generation", "value", "step", "token", "gaps", "seen"),
)
# Each collection has a table of its own besides, which ``CrateDocuments`` creates.
DOCUMENT_COLLECTIONS = Table(
    "document_collections",
    "collection_key",
    {"collection_key": "TEXT", "schema_name": "TEXT", "collection_name": "TEXT"},
    written=("collection_key", "schema_name", "collection_name"),
)
DOCUMENT_SCHEMAS = Table("document_schemas", "name", {"name": "TEXT"}, written=("name",))
DOCUMENT_TABLES = (DOCUMENT_COLLECTIONS, DOCUMENT_SCHEMAS)
