"""What the CrateDB stand-in understands: the statement forms of idalloc and of CrateDB's guide, executed on SQLite.

Answers and errors are those that a real CrateDB 6.4.3 gave. A form that is not known here is no guess but an
``UnknownStatement``, which fails the test.
"""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.crate_functions import add_functions
from tests.crate_refusals import SqlError, UnknownStatement, check_arguments, check_columns, check_sets, error_of

Answer = dict[str, Any]
LARGEST, SMALLEST = 2**63 - 2, -(2**63) + 1  # of a BIGINT column

_TYPES = {"TEXT": 4, "INTEGER": 9, "BIGINT": 10, "TIMESTAMP WITH TIME ZONE": 11}
_WORDS = set(
    "AND AS BIGINT CASE CAST COALESCE ELSE END EXCLUDED GREATEST IS LEAST LIKE MOD NOT NULL NULLIF OR THEN WHEN".split()  # noqa: SIM905
)
_TOKEN = re.compile(r"'(?:[^']|'')*'|\$\d+|\?|[A-Za-z_]\w*|\"[^\"]*\"|[^A-Za-z_$?'\"]+")
_REFERENCE = r'(?:"?(?P<schema>[\w-]+)"?\.)?"?(?P<table>[\w-]+)"?'
_VALUE = r"(?:\$\d+|\?|'(?:[^']|'')*'|-?\d+)"
# What rows may be looked for by: of those that were there at the last refresh.
_SCAN = (
    r"name > VALUE_ AND name LIKE VALUE_(?: AND COALESCE\(mode, ''\) <> 'deleted')?(?: AND name NOT LIKE VALUE_)?"
    r"|written_at < CURRENT_TIMESTAMP - CAST\(VALUE_ AS BIGINT\)|written_at <= VALUE_"
)


def _form(pattern: str) -> re.Pattern[str]:
    pattern = pattern.replace("SCAN_", _SCAN).replace("REFERENCE", _REFERENCE).replace("VALUE_", _VALUE)
    return re.compile(pattern, re.IGNORECASE)


class Statements:
    """Tables and statements.

    Attributes:
        now_ms: The clock behind CURRENT_TIMESTAMP, in milliseconds since 1970.
        versions: One of each node.
        denied: The privileges that the user lacks: of DQL, DML, DDL; and "sys" where its tables are hidden.
    """

    def __init__(self, path: str = ":memory:") -> None:
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self.versions = ["6.4.3"]
        self.denied: set[str] = set()
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        add_functions(self._db)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS _tables (schema TEXT, name TEXT, columns TEXT, keys TEXT, settings TEXT,"
            " writes INTEGER DEFAULT 0, PRIMARY KEY (schema, name))"
        )
        self._forms: list[tuple[re.Pattern[str], Callable[[re.Match[str], Sequence[Any]], Answer]]] = [
            (_form(pattern), method)
            for pattern, method in [
                (
                    r"CREATE TABLE (?P<lenient>IF NOT EXISTS )?REFERENCE \((?P<columns>.+?)\)"
                    r"(?: CLUSTERED INTO 1 SHARDS)?(?: WITH \((?P<settings>.+)\))?",
                    self._create,
                ),
                (r"ALTER TABLE REFERENCE ADD COLUMN (?P<name>\w+) (?P<type>[A-Z ]+)", self._add_column),
                (r"DROP TABLE (?P<lenient>IF EXISTS )?REFERENCE", self._drop),
                (r"REFRESH TABLE REFERENCE", self._refresh),
                (
                    r"INSERT INTO REFERENCE \((?P<columns>[\w, ]+)\) VALUES (?P<rows>\([^()]+\)(?:, ?\([^()]+\))*)"
                    r"(?: ON CONFLICT \((?P<key>\w+)\) DO (?:NOTHING|UPDATE SET (?P<sets>.+?)))?"
                    r"(?: RETURNING (?P<returning>[\w, ]+))?",
                    self._insert,
                ),
                (
                    r"UPDATE REFERENCE SET (?P<sets>.+?) WHERE (?P<key>\w+) ?= ?(?P<is>VALUE_)"
                    r"(?: AND _seq_no ?= ?(?P<seq_no>VALUE_) AND _primary_term ?= ?(?P<term>VALUE_))?"
                    r"(?: RETURNING (?P<returning>[\w, ]+))?",
                    self._update,
                ),
                (
                    r"DELETE FROM REFERENCE WHERE (?P<key>\w+) ?= ?(?P<is>VALUE_)"
                    r"(?: AND _seq_no ?= ?(?P<seq_no>VALUE_) AND _primary_term ?= ?(?P<term>VALUE_))?",
                    self._delete,
                ),
                (
                    r"SELECT (?P<columns>[\w, ]+) FROM REFERENCE WHERE (?P<key>\w+) ?= ?(?P<is>VALUE_)",
                    self._select,
                ),
                (
                    r"SELECT (?P<columns>[\w, ]+) FROM REFERENCE(?: WHERE (?P<where>SCAN_))?"
                    r"(?: ORDER BY (?P<order>\w+))?(?: LIMIT (?P<limit>VALUE_))?",
                    self._scan,
                ),
                (
                    r"SELECT (?P<calls>MAX\(_seq_no\), MAX\(_primary_term\), MAX\(written_at\)|COUNT\(\*\))"
                    r" FROM REFERENCE",
                    self._aggregate,
                ),
                (r"SELECT CURRENT_TIMESTAMP", lambda *_: _rows(["current_timestamp"], [[self.now_ms()]], [11])),
                (r"SELECT version\['number'\] FROM sys\.nodes", self._versions),
                (
                    r"SELECT column_name, data_type FROM information_schema\.columns"
                    r" WHERE table_schema = \? AND table_name = \?",
                    self._columns_of,
                ),
                (
                    r"SELECT column_name FROM information_schema\.key_column_usage"
                    r" WHERE table_schema = \? AND table_name = \?",
                    self._keys_of,
                ),
                (
                    r"SELECT number_of_replicas, settings\['translog'\]\['durability'\] FROM information_schema\.tables"
                    r" WHERE table_schema = \? AND table_name = \?",
                    self._settings_of,
                ),
            ]
        ]

    def execute(self, statement: str, args: Sequence[Any]) -> Answer:
        """Runs one statement.

        Raises:
            SqlError: CrateDB would answer with it.
            UnknownStatement: The form is not known.
        """
        text = " ".join(statement.split()).removesuffix(";")
        for pattern, run in self._forms:
            if found := pattern.fullmatch(text):
                check_arguments(text, args)
                self._db.execute("BEGIN")
                try:
                    answer = run(found, args)
                    self._db.execute("COMMIT")
                except sqlite3.Error as error:
                    raise error_of(error) from error
                finally:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                return answer
        if re.match(r"(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|REFRESH)\b", text, re.IGNORECASE):
            raise UnknownStatement(statement)
        raise SqlError(400, 4000, f"ParsingException[line 1:1: mismatched input '{text.partition(' ')[0]}']")

    def close(self) -> None:
        """Closes the database below."""
        self._db.close()

    # Tables

    def _find(self, found: re.Match[str], privilege: str) -> sqlite3.Row:
        schema, table = found["schema"] or "doc", found["table"]
        # Whoever has no privilege at all on a schema is told that it is not there.
        if self.denied >= {"DQL", "DML", "DDL"}:
            raise SqlError(404, 4045, f"SchemaUnknownException[Schema '{schema}' unknown]")
        row = self._db.execute("SELECT * FROM _tables WHERE schema = ? AND name = ?", (schema, table)).fetchone()
        if row is None:
            known = self._db.execute("SELECT 1 FROM _tables WHERE schema = ?", (schema,)).fetchone()
            if schema == "doc" or known:
                raise SqlError(404, 4041, f"RelationUnknown[Relation '{schema}.{table}' unknown]")
            raise SqlError(404, 4045, f"SchemaUnknownException[Schema '{schema}' unknown]")
        self._need(privilege)
        assert isinstance(row, sqlite3.Row)
        return row

    def _need(self, privilege: str) -> None:
        if privilege in self.denied:
            message = f"MissingPrivilegeException[Missing '{privilege}' privilege for user 'someone']"
            raise SqlError(401, 4011, message)

    def _create(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        self._need("DDL")
        schema, table = found["schema"] or "doc", found["table"]
        if self._db.execute("SELECT 1 FROM _tables WHERE schema = ? AND name = ?", (schema, table)).fetchone():
            if found["lenient"]:
                return _count(0)
            raise SqlError(409, 4093, f"RelationAlreadyExists[Relation '{schema}.{table}' already exists.]")
        columns, constraints, keys = {}, [], []
        for definition in found["columns"].split(", "):
            column = re.fullmatch(r"(\w+) (.+?)( PRIMARY KEY)?( NOT NULL)?", definition)
            if column is None or column[2].upper() not in _TYPES:
                raise UnknownStatement(found[0])
            columns[column[1]] = column[2].upper()
            keys += [column[1]] if column[3] else []
            null = "NOT NULL" if column[3] or column[4] else ""
            constraints.append(f'"{column[1]}" {_sqlite_type(column[2])} {null}')
        settings = dict(re.findall(r"\"?([\w.]+)\"? ?= ?'?([^',]+)'?", found["settings"] or ""))
        self._db.execute(
            f'CREATE TABLE "{schema}.{table}" ({", ".join(constraints)}, _seq_no INTEGER, _primary_term INTEGER,'
            f" _version INTEGER, PRIMARY KEY ({', '.join(keys)})) STRICT"
        )
        self._db.execute(
            "INSERT INTO _tables (schema, name, columns, keys, settings) VALUES (?, ?, ?, ?, ?)",
            (schema, table, json.dumps(columns), json.dumps(keys), json.dumps(settings)),
        )
        return _count(1)

    def _add_column(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DDL")
        columns, name, kind = json.loads(table["columns"]), found["name"], found["type"].upper()
        full_name = f"{table['schema']}.{table['name']}"
        if name in columns:
            raise SqlError(400, 4000, f"SQLParseException[The table {full_name} already has a column named {name}]")
        if kind not in _TYPES:
            raise UnknownStatement(found[0])
        self._db.execute(f'ALTER TABLE "{full_name}" ADD COLUMN "{name}" {_sqlite_type(kind)}')
        columns[name] = kind
        self._db.execute(
            "UPDATE _tables SET columns = ? WHERE schema = ? AND name = ?",
            (json.dumps(columns), table["schema"], table["name"]),
        )
        return _count(-1)

    def _drop(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        try:
            table = self._find(found, "DDL")
        except SqlError:
            if found["lenient"]:
                return _count(0)
            raise
        self._db.execute(f'DROP TABLE "{table["schema"]}.{table["name"]}"')
        self._db.execute(f"DROP TABLE IF EXISTS {_refreshed(table)}")
        self._db.execute("DELETE FROM _tables WHERE schema = ? AND name = ?", (table["schema"], table["name"]))
        return _count(1)

    def _refresh(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DQL")
        self._db.execute(f"DROP TABLE IF EXISTS {_refreshed(table)}")
        self._db.execute(f'CREATE TABLE {_refreshed(table)} AS SELECT * FROM "{table["schema"]}.{table["name"]}"')
        return _count(1)

    # Rows

    def _insert(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DML")
        if found["key"] and [found["key"]] != json.loads(table["keys"]):
            raise UnknownStatement(found[0])
        check_sets(found)
        count = _Placeholders()
        columns = found["columns"].replace(" ", "").split(",")
        check_columns(table, columns)
        # Every row is a write of its own.
        rows = [
            f"({self._translate(values, table, count)}, {self._next_seq_no(table)}, 1, 1)"
            for values in re.findall(r"\(([^()]+)\)", found["rows"])
        ]
        sql = (
            f'INSERT INTO "{table["schema"]}.{table["name"]}" ({", ".join(columns)}, _seq_no, _primary_term, _version)'
            f" VALUES {', '.join(rows)}"
        )
        if found["key"]:
            sql += f" ON CONFLICT ({found['key']}) DO "
            if found["sets"]:
                sets = self._translate(found["sets"], table, count)
                sql += f"UPDATE SET {sets}, _seq_no = excluded._seq_no, _version = _version + 1"
            else:
                sql += "NOTHING"
        return self._written(table, found, self._db.execute(f"{sql} RETURNING *", args).fetchall())

    def _update(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DML")
        self._only_key(table, found)
        check_sets(found)
        count = _Placeholders()
        seq_no = self._next_seq_no(table)
        sets = self._translate(found["sets"], table, count)
        sql = (
            f'UPDATE "{table["schema"]}.{table["name"]}" SET {sets}, _seq_no = {seq_no}, _version = _version + 1'
            f" WHERE {self._by_key(table, found, count)} RETURNING *"
        )
        return self._written(table, found, self._db.execute(sql, args).fetchall())

    def _delete(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DML")
        self._only_key(table, found)
        self._next_seq_no(table)
        where = self._by_key(table, found, _Placeholders())
        sql = f'DELETE FROM "{table["schema"]}.{table["name"]}" WHERE {where}'
        return _count(self._db.execute(sql, args).rowcount)

    def _by_key(self, table: sqlite3.Row, found: re.Match[str], count: "_Placeholders") -> str:
        where = f'"{found["key"]}" = {self._translate(found["is"], table, count)}'
        if found["seq_no"]:
            where += f" AND _seq_no = {self._translate(found['seq_no'], table, count)}"
            where += f" AND _primary_term = {self._translate(found['term'], table, count)}"
        return where

    def _select(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DQL")
        self._only_key(table, found)
        value = self._translate(found["is"], table, _Placeholders())
        sql = f'SELECT * FROM "{table["schema"]}.{table["name"]}" WHERE "{found["key"]}" = {value}'
        return self._answer(table, found["columns"], self._db.execute(sql, args).fetchall())

    def _scan(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        """Looks at the rows as they were at the last refresh: CrateDB refreshes up to a second later by itself."""
        table = self._find(found, "DQL")
        count = _Placeholders()
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_refreshed(table)[1:-1],)).fetchone():
            return self._answer(table, found["columns"], [])
        sql = f"SELECT * FROM {_refreshed(table)}"
        if found["where"]:
            sql += f" WHERE {self._translate(found['where'], table, count)}"
        if found["order"]:
            sql += f" ORDER BY {self._translate(found['order'], table, count)}"
        if found["limit"]:
            sql += f" LIMIT {self._translate(found['limit'], table, count)}"
        return self._answer(table, found["columns"], self._db.execute(sql, args).fetchall())

    def _aggregate(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        """Counts over the rows as they were at the last refresh."""
        table = self._find(found, "DQL")
        calls = found["calls"].lower().split(", ")
        check_columns(table, [call[4:-1] for call in calls if call.startswith("max(")])
        copied = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_refreshed(table)[1:-1],)).fetchone()
        row = [0 if call == "count(*)" else None for call in calls]
        if copied:
            row = list(self._db.execute(f"SELECT {found['calls']} FROM {_refreshed(table)}").fetchone())
        return _rows(calls, [row], [10 for _ in calls])

    def _written(self, table: sqlite3.Row, found: re.Match[str], rows: list[sqlite3.Row]) -> Answer:
        for row in rows:
            for name, kind in json.loads(table["columns"]).items():
                if kind == "BIGINT" and row[name] is not None and not SMALLEST <= row[name] <= LARGEST:
                    message = f"SQLParseException[Value {row[name]} exceeds allowed range for column of type bigint]"
                    raise SqlError(400, 4000, message)
        if not found["returning"]:
            return _count(len(rows))
        return self._answer(table, found["returning"], [{**row, "_version": None} for row in map(dict, rows)])

    def _answer(self, table: sqlite3.Row, columns: str, rows: Sequence[Any]) -> Answer:
        names = columns.replace(" ", "").split(",")
        check_columns(table, names)
        types = json.loads(table["columns"])
        return _rows(
            names, [[row[name] for name in names] for row in rows], [_TYPES[types.get(n, "BIGINT")] for n in names]
        )

    def _next_seq_no(self, table: sqlite3.Row) -> int:
        where = (table["schema"], table["name"])
        self._db.execute("UPDATE _tables SET writes = writes + 1 WHERE schema = ? AND name = ?", where)
        return int(table["writes"])

    def _only_key(self, table: sqlite3.Row, found: re.Match[str]) -> None:
        check_columns(table, [found["key"]])
        if [found["key"]] != json.loads(table["keys"]):
            raise UnknownStatement(f"not by the primary key: {found[0]}")

    def _translate(self, expression: str, table: sqlite3.Row, count: "_Placeholders") -> str:
        """Turns an expression of CrateDB into SQLite's; what is in none of the known forms is refused."""
        out = []
        tokens = _TOKEN.findall(expression)
        for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
            if token == "?":
                out.append(count.next())
            elif token[0] == "$":
                out.append(f"?{token[1:]}")
            elif token.upper() == "CURRENT_TIMESTAMP":
                out.append(str(self.now_ms()))
            elif re.match(r"[A-Za-z_]", token) and token.upper() not in _WORDS:
                if following.startswith("("):
                    raise UnknownStatement(f"the function {token}")
                check_columns(table, [token])
                out.append(f'"{token}"')
            else:
                out.append(token)
        return "".join(out)

    # What the cluster tells of itself

    def _versions(self, _: re.Match[str], __: Sequence[Any]) -> Answer:
        if "sys" in self.denied:
            raise SqlError(404, 4045, "SchemaUnknownException[Schema 'sys' unknown]")
        return _rows(["version['number']"], [[version] for version in self.versions], [4])

    def _described(self, args: Sequence[Any]) -> sqlite3.Row | None:
        if self.denied >= {"DQL", "DML", "DDL"}:
            return None
        found: sqlite3.Row | None = self._db.execute(
            "SELECT * FROM _tables WHERE schema = ? AND name = ?", args
        ).fetchone()
        return found

    def _columns_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._described(args)
        columns = json.loads(table["columns"]) if table else {}
        return _rows(["column_name", "data_type"], [[name, kind.lower()] for name, kind in columns.items()], [4, 4])

    def _keys_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._described(args)
        return _rows(["column_name"], [[key] for key in json.loads(table["keys"])] if table else [], [4])

    def _settings_of(self, _: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._described(args)
        settings = json.loads(table["settings"]) if table else {}
        row = [settings.get("number_of_replicas", "0-1"), settings.get("translog.durability", "REQUEST")]
        return _rows(["number_of_replicas", "settings['translog']['durability']"], [row] if table else [], [4, 4])


class _Placeholders:
    """Numbers the question marks of one statement."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> str:
        self._last += 1
        return f"?{self._last}"


def _rows(columns: list[str], rows: list[list[Any]], types: list[int]) -> Answer:
    return {"cols": columns, "col_types": types, "rows": rows, "rowcount": len(rows)}


def _count(count: int) -> Answer:
    return {"cols": [], "col_types": [], "rows": [[]], "rowcount": count}


def _sqlite_type(kind: str) -> str:
    return "TEXT" if kind.upper() == "TEXT" else "INTEGER"


def _refreshed(table: sqlite3.Row) -> str:
    """The name of the copy of a table that scans look at."""
    return f'"{table["schema"]}.{table["name"]}.refreshed"'
