"""idalloc's tables in CrateDB."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table as idalloc makes it.

    Attributes:
        name: Its name, without its schema.
        key: Its primary key.
        columns: The type of each column. Of a table that is adopted all but the first two may be missing.
        written: Those that get a value in every row that idalloc makes; the others may be NULL.
    """

    name: str
    key: str
    columns: Mapping[str, str]
    written: Collection[str]

    def reference(self, schema: str) -> str:
        """Returns its full name as SQL takes it."""
        return f'"{schema}"."{self.name}"'

    def definition(self, schema: str) -> str:
        """Returns the statement that makes it."""
        columns = ", ".join(
            f"{name} {kind}{' PRIMARY KEY' if name == self.key else ''}" for name, kind in self.columns.items()
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
)
STARTS = Table(
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
