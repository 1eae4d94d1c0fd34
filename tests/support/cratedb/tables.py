"""The tables of the CrateDB emulator: DDL, privileges and information_schema."""

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.cratedb.functions import add_functions
from tests.support.cratedb.refusals import SqlError, UnknownStatement, check_usable

Answer = dict[str, Any]
Form = tuple[str, Callable[[re.Match[str], Sequence[Any]], Answer]]

TYPES = {"TEXT": 4, "INTEGER": 9, "BIGINT": 10, "TIMESTAMP WITH TIME ZONE": 11}
_OF_TABLE = r" WHERE table_schema = \? AND table_name = \?"
_COLUMN = re.compile(
    r'"?(?P<name>\w+)"? (?P<type>TEXT|INTEGER|BIGINT|TIMESTAMP WITH TIME ZONE)(?P<key> PRIMARY KEY)?'
    r"(?: INDEX OFF STORAGE WITH \(columnstore = false\))?"
    r"(?: GENERATED ALWAYS AS (?P<generated>.+?))?(?P<not_null> NOT NULL)?(?: DEFAULT (?P<default>'[^']*'|\d+))?"
    r"(?: CONSTRAINT (?P<check>\w+) CHECK \((?P<clause>.+)\))?",
    re.IGNORECASE,
)


class Tables:
    """Tables, and the privileges of the user."""

    def __init__(self, path: str) -> None:
        self.versions: list[str | None] = ["6.4.3"]  # of each node; None for one that is paused
        self.cluster_id = "a cluster"
        # The privileges that the user lacks, of DQL, DML and DDL; "sys" hides the schema sys.
        self.denied: set[str] = set()
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        add_functions(self._db)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS _tables (schema TEXT, name TEXT, columns TEXT, keys TEXT, settings TEXT,"
            " properties TEXT, writes INTEGER DEFAULT 0, oid INTEGER DEFAULT (abs(random()) >> 33),"
            " PRIMARY KEY (schema, name))"
        )

    def close(self) -> None:
        """Close the SQLite database."""
        self._db.close()

    @property
    def _table_forms(self) -> list[Form]:
        return [
            (
                r"CREATE TABLE (?P<lenient>IF NOT EXISTS )?REFERENCE \((?P<columns>.+?)\)"
                r"(?: CLUSTERED INTO (?P<shards>\d+) SHARDS)?(?: PARTITIONED BY \((?P<partitioned_by>\w+)\))?"
                r"(?: WITH \((?P<settings>.+)\))?",
                self._create,
            ),
            (r"ALTER TABLE REFERENCE ADD COLUMN (?P<name>\w+) (?P<type>[A-Z ]+)", self._add_column),
            (r'ALTER TABLE REFERENCE DROP COLUMN "?(?P<name>\w+)"?', self._drop_column),
            (r'ALTER TABLE REFERENCE DROP CONSTRAINT "?(?P<name>\w+)"?', self._drop_constraint),
            (
                r'ALTER TABLE REFERENCE ALTER COLUMN "?(?P<name>\w+)"? SET DEFAULT (?P<value>VALUE_)',
                self._set_default,
            ),
            (r"ALTER TABLE REFERENCE SET \((?P<settings>.+)\)", self._set),
            (r"ALTER TABLE REFERENCE (?P<what>CLOSE|OPEN)", self._close_or_open),
            (r'ALTER CLUSTER SWAP TABLE REFERENCE TO (?:"?(?P<schema2>[\w-]+)"?\.)?"?(?P<table2>[\w-]+)"?', self._swap),
            (r"DROP TABLE (?P<lenient>IF EXISTS )?REFERENCE", self._drop),
            (r"REFRESH TABLE REFERENCE", self._refresh),
            (r"(?P<what>GRANT|REVOKE) (?P<names>[A-Z, ]+) ON SCHEMA .+ (?:TO|FROM) .+", self._grant),
            (r"(?:CREATE|DROP) USER .+", lambda *_: count_of(1)),
            (r"SELECT version\['number'\] FROM sys\.nodes", self._versions),
            (
                r"SELECT table_name FROM information_schema\.tables WHERE table_schema = \?"
                r" AND table_type = 'BASE TABLE' ORDER BY table_name ASC, table_schema ASC",
                self._names_in,
            ),
            (
                r"SELECT column_name, data_type FROM information_schema\.columns" + _OF_TABLE,
                self._types_of,
            ),
            (
                r"SELECT column_name, is_nullable, column_default, is_generated, ordinal_position"
                r" FROM information_schema\.columns" + _OF_TABLE,
                self._columns_of,
            ),
            (
                r"SELECT column_name FROM information_schema\.key_column_usage" + _OF_TABLE,
                self._keys_of,
            ),
            (
                r"SELECT number_of_replicas, settings\['translog'\]\['durability'\], partitioned_by"
                r" FROM information_schema\.tables" + _OF_TABLE,
                self._settings_of,
            ),
            (r"SELECT number_of_shards FROM information_schema\.tables" + _OF_TABLE, self._shards_of),
            (r"SELECT id FROM sys\.cluster", self._cluster_id),
            (
                r"SELECT conname, conkey FROM pg_catalog\.pg_constraint WHERE conrelid = 'REFERENCE'::regclass"
                r" AND contype = 'c'",
                self._constraints_of,
            ),
        ]

    def _find(self, found: re.Match[str], privilege: str, operation: str) -> sqlite3.Row:
        schema, table = found["schema"] or "doc", found["table"]
        # CrateDB hides a schema from a user without any privilege on it.
        if self.denied >= {"DQL", "DML", "DDL"}:
            raise SqlError(404, 4045, f"SchemaUnknownException[Schema '{schema}' unknown]")
        row = self._db.execute("SELECT * FROM _tables WHERE schema = ? AND name = ?", (schema, table)).fetchone()
        if row is None:
            known = self._db.execute("SELECT 1 FROM _tables WHERE schema = ?", (schema,)).fetchone()
            if schema == "doc" or known:
                raise SqlError(404, 4041, f"RelationUnknown[Relation '{schema}.{table}' unknown]")
            raise SqlError(404, 4045, f"SchemaUnknownException[Schema '{schema}' unknown]")
        assert isinstance(row, sqlite3.Row)
        check_usable(row, operation)
        self._require(privilege)
        return row

    def _require(self, privilege: str) -> None:
        if privilege in self.denied:
            message = f"MissingPrivilegeException[Missing '{privilege}' privilege for user 'someone']"
            raise SqlError(401, 4011, message)

    def _grant(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        names = set(found["names"].replace(" ", "").split(","))
        self.denied = self.denied - names if found["what"] == "GRANT" else self.denied | names
        return count_of(len(names))

    def _create(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        self._require("DDL")
        schema, table = found["schema"] or "doc", found["table"]
        if self._db.execute("SELECT 1 FROM _tables WHERE schema = ? AND name = ?", (schema, table)).fetchone():
            if found["lenient"]:
                return count_of(0)
            raise SqlError(409, 4093, f"RelationAlreadyExists[Relation '{schema}.{table}' already exists.]")
        columns, definitions, keys = {}, [], []
        properties: dict[str, Any] = {"checks": {}, "defaults": {}, "generated": [], "not_null": [], "closed": False}
        for definition in found["columns"].split(", "):
            column = _COLUMN.fullmatch(definition)
            if column is None:
                raise UnknownStatement(found[0])
            name = column["name"]
            columns[name] = column["type"].upper()
            keys += [name] if column["key"] else []
            properties["generated"] += [name] if column["generated"] else []
            properties["not_null"] += [name] if column["key"] or column["not_null"] else []
            if column["default"]:
                properties["defaults"][name] = column["default"]
            if column["check"]:
                properties["checks"][column["check"]] = [column["clause"], [name]]
            null = "NOT NULL" if name in properties["not_null"] else ""
            definitions.append(f'"{name}" {_sqlite_type(column["type"])} {null}')
        properties["shards"] = int(found["shards"] or 4)
        properties["partitioned_by"] = [found["partitioned_by"]] if found["partitioned_by"] else None
        self._db.execute(
            f'CREATE TABLE "{schema}.{table}" ({", ".join(definitions)}, _seq_no INTEGER, _primary_term INTEGER,'
            f" _version INTEGER, PRIMARY KEY ({', '.join(keys)})) STRICT"
        )
        self._db.execute(
            "INSERT INTO _tables (schema, name, columns, keys, settings, properties) VALUES (?, ?, ?, ?, ?, ?)",
            (schema, table, *map(json.dumps, (columns, keys, _settings(found["settings"] or ""), properties))),
        )
        return count_of(1)

    def _swap(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        """Exchange the names of two tables, whose OIDs stay with their rows."""
        self._require("DDL")
        one, other = (found["schema"] or "doc", found["table"]), (found["schema2"] or "doc", found["table2"])
        aside = ("", "swapped")
        for (schema, name), (to_schema, to_name) in ((one, aside), (other, one), (aside, other)):
            self._db.execute(f'ALTER TABLE "{schema}.{name}" RENAME TO "{to_schema}.{to_name}"')
            rename = "UPDATE _tables SET schema = ?, name = ? WHERE schema = ? AND name = ?"
            self._db.execute(rename, (to_schema, to_name, schema, name))
        for schema, name in (one, other):  # the next REFRESH makes them again
            self._db.execute(f'DROP TABLE IF EXISTS "{schema}.{name}.refreshed"')
        return count_of(1)

    def rewind(self, schema: str, table: str, writes: int) -> None:
        """Set the number of the next write of a table back, as a restored copy has it."""
        self._db.execute("UPDATE _tables SET writes = ? WHERE schema = ? AND name = ?", (writes, schema, table))

    def _oid(self, reference: str) -> int:
        schema, _, name = reference.replace('"', "").rpartition(".")
        where = (schema or "doc", name)
        row = self._db.execute("SELECT oid FROM _tables WHERE schema = ? AND name = ?", where).fetchone()
        return int(row[0]) if row else -1

    def _select_oid(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        oid = self._oid(f"{found['schema'] or 'doc'}.{found['table']}")
        return rows_of([str(oid)], [[oid]], [9])

    def _add_column(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DDL", "ALTER")
        columns, name, kind = json.loads(table["columns"]), found["name"], found["type"].upper()
        full_name = f"{table['schema']}.{table['name']}"
        if name in columns:
            raise SqlError(400, 4000, f"SQLParseException[The table {full_name} already has a column named {name}]")
        if kind not in TYPES:
            raise UnknownStatement(found[0])
        self._db.execute(f'ALTER TABLE "{full_name}" ADD COLUMN "{name}" {_sqlite_type(kind)}')
        return self._changed(table, columns={**columns, name: kind})

    def _drop_column(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DDL", "ALTER")
        name, columns, properties = found["name"], json.loads(table["columns"]), json.loads(table["properties"])
        self._db.execute(f'ALTER TABLE "{table["schema"]}.{table["name"]}" DROP COLUMN "{name}"')
        del columns[name]
        properties["defaults"].pop(name, None)
        for part in ("generated", "not_null"):
            properties[part] = [each for each in properties[part] if each != name]
        return self._changed(table, columns=columns, properties=properties)

    def _drop_constraint(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DDL", "ALTER")
        properties = json.loads(table["properties"])
        del properties["checks"][found["name"]]
        return self._changed(table, properties=properties)

    def _set_default(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DDL", "ALTER")
        properties = json.loads(table["properties"])
        properties["defaults"][found["name"]] = found["value"]
        return self._changed(table, properties=properties)

    def _set(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DDL", "SET")
        return self._changed(table, settings={**json.loads(table["settings"]), **_settings(found["settings"])})

    def _close_or_open(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DDL", found["what"].upper())
        return self._changed(
            table, properties={**json.loads(table["properties"]), "closed": found["what"].upper() == "CLOSE"}
        )

    def _changed(self, table: sqlite3.Row, **parts: Any) -> Answer:
        for name, value in parts.items():
            self._db.execute(
                f"UPDATE _tables SET {name} = ? WHERE schema = ? AND name = ?",
                (json.dumps(value), table["schema"], table["name"]),
            )
        return count_of(-1)

    def _drop(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        self._require("DDL")
        try:
            table = self._find(found, "DDL", "DROP")
        except SqlError:
            if found["lenient"]:
                return count_of(0)
            raise
        self._db.execute(f'DROP TABLE "{table["schema"]}.{table["name"]}"')
        self._db.execute(f"DROP TABLE IF EXISTS {refreshed(table)}")
        self._db.execute("DELETE FROM _tables WHERE schema = ? AND name = ?", (table["schema"], table["name"]))
        return count_of(1)

    def _refresh(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DQL", "REFRESH")
        self._db.execute(f"DROP TABLE IF EXISTS {refreshed(table)}")
        self._db.execute(f'CREATE TABLE {refreshed(table)} AS SELECT * FROM "{table["schema"]}.{table["name"]}"')
        return count_of(1)

    # System tables

    def _versions(self, _: re.Match[str], __: Sequence[Any]) -> Answer:
        if "sys" in self.denied:
            raise SqlError(404, 4045, "SchemaUnknownException[Schema 'sys' unknown]")
        return rows_of(["version['number']"], [[version] for version in self.versions], [4])

    def _cluster_id(self, _: re.Match[str], __: Sequence[Any]) -> Answer:
        if "sys" in self.denied:
            raise SqlError(404, 4045, "SchemaUnknownException[Schema 'sys' unknown]")
        return rows_of(["id"], [[self.cluster_id]], [4])

    def _shards_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._described(args)
        shards = json.loads(table["properties"])["shards"] if table else 0
        return rows_of(["number_of_shards"], [[shards]], [9])

    def _names_in(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        names = self._db.execute("SELECT name FROM _tables WHERE schema = ? ORDER BY name", args).fetchall()
        return rows_of(["table_name"], [[name] for (name,) in names], [4])

    def _described(self, args: Sequence[Any]) -> sqlite3.Row | None:
        if self.denied >= {"DQL", "DML", "DDL"}:
            return None
        found: sqlite3.Row | None = self._db.execute(
            "SELECT * FROM _tables WHERE schema = ? AND name = ?", args
        ).fetchone()
        return found

    def _types_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._described(args)
        columns = json.loads(table["columns"]) if table else {}
        return rows_of(["column_name", "data_type"], [[name, kind.lower()] for name, kind in columns.items()], [4, 4])

    def _columns_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._described(args)
        columns = json.loads(table["columns"]) if table else {}
        properties = json.loads(table["properties"]) if table else {}
        names = ["column_name", "is_nullable", "column_default", "is_generated", "ordinal_position"]
        rows = [
            [
                name,
                "NO" if name in properties["not_null"] else "YES",
                properties["defaults"].get(name),
                "ALWAYS" if name in properties["generated"] else "NEVER",
                position,
            ]
            for position, name in enumerate(columns, 1)
        ]
        return rows_of(names, rows, [4, 4, 4, 4, 9])

    def _keys_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._described(args)
        return rows_of(["column_name"], [[key] for key in json.loads(table["keys"])] if table else [], [4])

    def _settings_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        names = ["number_of_replicas", "settings['translog']['durability']", "partitioned_by"]
        table = self._described(args)
        if table is None:
            return rows_of(names, [], [4, 4, [100, 4]])
        settings = json.loads(table["settings"])
        row = [settings.get("number_of_replicas", "0-1"), settings.get("translog.durability", "REQUEST")]
        return rows_of(names, [[*row, json.loads(table["properties"])["partitioned_by"]]], [4, 4, [100, 4]])

    def _constraints_of(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._described([found["schema"], found["table"]])
        columns = list(json.loads(table["columns"])) if table else []
        checks = json.loads(table["properties"])["checks"] if table else {}
        rows = [[name, [columns.index(each) + 1 for each in of]] for name, (_clause, of) in checks.items()]
        return rows_of(["conname", "conkey"], rows, [4, [100, 8]])


def rows_of(columns: list[str], rows: list[list[Any]], types: list[Any]) -> Answer:
    """Return an answer with rows."""
    return {"cols": columns, "col_types": types, "rows": rows, "rowcount": len(rows)}


def count_of(count: int) -> Answer:
    """Return an answer without rows."""
    return {"cols": [], "col_types": [], "rows": [[]], "rowcount": count}


def refreshed(table: sqlite3.Row) -> str:
    """Return the name of the copy of a table as of the last refresh, for scans."""
    return f'"{table["schema"]}.{table["name"]}.refreshed"'


def _settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"\"?([\w.]+)\"? ?= ?'?([^',]+)'?", text))


def _sqlite_type(kind: str) -> str:
    return "TEXT" if kind.upper() == "TEXT" else "INTEGER"
