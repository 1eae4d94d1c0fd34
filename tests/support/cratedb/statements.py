"""The statements of the CrateDB emulator: the forms of idalloc and of CrateDB's guide, executed on
SQLite.

Answers and errors are as a real CrateDB 6.4.3 gave them. Any other form raises
``UnknownStatement``, which fails the test.
"""

import json
import math
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.cratedb.refusals import (
    SqlError,
    UnknownStatement,
    check_arguments,
    check_columns,
    check_sets,
    check_table,
    error_of,
)
from tests.support.cratedb.tables import TYPES, Answer, Tables, count_of, refreshed, rows_of

_DISK_NEARLY_FULL = 4037
MAX_BIGINT, MIN_BIGINT = 2**63 - 2, -(2**63) + 1  # in a column

_WORDS = set(
    "AND AS BIGINT CASE CAST COALESCE ELSE END EXCLUDED GREATEST IS LEAST LIKE MOD NOT NULL NULLIF OR THEN WHEN".split()  # noqa: SIM905
)
_TOKEN = re.compile(r"'(?:[^']|'')*'|\$\d+|\?|[A-Za-z_]\w*|\"[^\"]*\"|[^A-Za-z_$?'\"]+")
_REFERENCE = r'(?:"?(?P<schema>[\w-]+)"?\.)?"?(?P<table>[\w-]+)"?'
_VALUE = r"(?:\$\d+|\?|'(?:[^']|'')*'|-?\d+)"
# Conditions of a scan, which reads the rows as of the last refresh.
_SCAN = (
    r"name > VALUE_ AND name LIKE VALUE_(?: AND COALESCE\(mode, ''\) <> 'deleted')?(?: AND name NOT LIKE VALUE_)?"
    r"|(?:doc_id|name) > VALUE_|written_at < CURRENT_TIMESTAMP - CAST\(VALUE_ AS BIGINT\)"
    r"|written_at <= VALUE_(?: AND written_at > 0)?"
)


def _form(pattern: str) -> re.Pattern[str]:
    pattern = pattern.replace("SCAN_", _SCAN).replace("REFERENCE", _REFERENCE).replace("VALUE_", _VALUE)
    return re.compile(pattern, re.IGNORECASE)


class Statements(Tables):
    """Executes statements."""

    def __init__(self, path: str = ":memory:") -> None:
        # The clock behind CURRENT_TIMESTAMP, in milliseconds since 1970.
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        super().__init__(path)
        # How long CrateDB's search does not find a new row; it refreshes each second.
        self.refresh_ms = 0
        self._created: dict[str, int] = {}  # when rows were created, by key
        # The _version of a row that comes back, by table and key. CrateDB forgets it after 60 s.
        self._later_versions: dict[tuple[str, object], int] = {}
        self._forms: list[tuple[re.Pattern[str], Callable[[re.Match[str], Sequence[Any]], Answer]]] = [
            (_form(pattern), method)
            for pattern, method in [
                *self._table_forms,
                (
                    r"INSERT INTO REFERENCE \((?P<columns>[\w, ]+)\) VALUES (?P<rows>\([^()]+\)(?:, ?\([^()]+\))*)"
                    r"(?: ON CONFLICT \((?P<key>\w+)\) DO (?:NOTHING|UPDATE SET (?P<sets>.+?)))?"
                    r"(?: RETURNING (?P<returning>[\w, ]+))?",
                    self._insert,
                ),
                # No recording has the forms of documents, up to UPDATE; a real CrateDB tests them.
                (
                    r"(?P<into>INSERT INTO REFERENCE \([\w, ]+\)) SELECT \* FROM UNNEST\((?P<arrays>\?(?:, \?)*)\)"
                    r"(?P<conflict> ON CONFLICT .+)",
                    self._insert_unnested,
                ),
                (
                    r"(?P<select>SELECT [\w, ()]+ FROM REFERENCE WHERE (?P<key>\w+) = \?)(?: OR (?P=key) = \?)+",
                    self._select_each,
                ),
                (
                    r"(?P<select>SELECT \w+, )LENGTH\((?P<text>\w+)\)(?P<rest> FROM .+)",
                    self._select_lengths,
                ),
                (
                    r"UPDATE REFERENCE SET (?P<sets>.+?) WHERE (?P<key>\w+) ?= ?(?P<is>VALUE_)"
                    r"(?: AND _seq_no ?= ?(?P<seq_no>VALUE_) AND _primary_term ?= ?(?P<term>VALUE_))?"
                    r"(?: RETURNING (?P<returning>[\w, ]+))?",
                    self._update,
                ),
                (
                    r"(?P<update>UPDATE REFERENCE SET .+?) WHERE name = ANY\((?P<names>\$\d)\)(?P<rest> RETURNING .+)",
                    self._update_each,
                ),
                (
                    r"DELETE FROM REFERENCE WHERE (?P<key>\w+) ?= ?(?P<is>VALUE_)"
                    r"(?: AND _seq_no ?= ?(?P<seq_no>VALUE_) AND _primary_term ?= ?(?P<term>VALUE_))?",
                    self._delete,
                ),
                (r"DELETE FROM REFERENCE", self._delete_all),
                (
                    r"SELECT (?P<columns>[\w, ]+) FROM REFERENCE WHERE (?P<key>\w+) ?= ?(?P<is>VALUE_)",
                    self._select,
                ),
                (
                    r"SELECT (?P<columns>[\w, ]+) FROM REFERENCE(?: WHERE (?P<where>SCAN_))?"
                    r"(?: ORDER BY (?P<order>\w+))?(?: LIMIT (?P<limit>VALUE_))?",
                    self._scan,
                ),
                # No recording has a MAX or MIN of one column, which `--past-table` asks for.
                (
                    r"SELECT (?P<calls>MAX\(_seq_no\), MAX\(_primary_term\), MAX\(written_at\)|COUNT\(\*\)"
                    r"|(?:MAX|MIN)\(\"\w+\"\))"
                    r" FROM REFERENCE(?: WHERE (?:(?P<key>\w+) ?= ?(?P<is>VALUE_)|(?P<where>written_at > 0)))?",
                    self._aggregate,
                ),
                (
                    r"(?P<head>SELECT sequence, period, step, CASE WHEN step > 0 THEN MAX\(.+\) ELSE MIN\(.+\) END)"
                    r" FROM REFERENCE WHERE written_at > 0 GROUP BY sequence, period, step",
                    self._recorded_ends,
                ),
                (r"SELECT 'REFERENCE'::regclass::integer", self._select_oid),
                (r"SELECT CURRENT_TIMESTAMP", lambda *_: rows_of(["current_timestamp"], [[self.now_ms()]], [11])),
            ]
        ]

    def execute(self, statement: str, args: Sequence[Any]) -> Answer:
        """Run one statement.

        Raises:
            SqlError: CrateDB answers with this error.
            UnknownStatement: The emulator does not know the form.
        """
        statement, nonce, reference = without_ties(statement)
        if statement.startswith("INSERT"):
            statement = statement.replace("now()", str(self.now_ms()))
            statement = statement.replace("gen_random_text_uuid()", f"'{uuid.uuid4().hex}'")
        found, run = self._parse(statement)
        check_arguments(found[0], args)
        with self._transaction():
            answer = run(found, args)
            ties = [nonce, *([self._oid(reference)] if reference else [])] if nonce else []
        if ties:  # the first columns are literals
            cols = [f"'{nonce}'", *map(str, ties[1:])]
            first = {"cols": cols + answer["cols"], "rows": [[*ties, *row] for row in answer["rows"]]}
            answer = {**answer, **first, "col_types": [4, 9][: len(ties)] + answer["col_types"]}
        return answer

    def insert_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> Answer:
        """Run an INSERT once for each row of ``bulk_args``. Existing keys and CHECKs refuse only
        their own row.

        Raises:
            SqlError: CrateDB rejects the statement as a whole.
            UnknownStatement: The emulator does not know the form, or what CrateDB does to the rows
                before.
        """
        found, run = self._parse(statement)
        results: list[Answer] = []
        with self._transaction():
            for args in rows:
                check_arguments(found[0], args)
                self._db.execute("SAVEPOINT one_row")
                try:
                    results.append({"rowcount": run(found, args)["rowcount"]})
                except (sqlite3.Error, SqlError) as caught:
                    error = error_of(caught) if isinstance(caught, sqlite3.Error) else caught
                    if not isinstance(error, SqlError) or (results and not _refuses_one_row(error)):
                        raise UnknownStatement(f"{statement}: {error}") from caught
                    if not _refuses_one_row(error):
                        raise error from caught
                    self._db.execute("ROLLBACK TO one_row")
                    results.append({"rowcount": -2, "error": {"code": error.code, "message": str(error)}})
                self._db.execute("RELEASE one_row")
        return {"cols": [], "results": results}

    def _parse(self, statement: str) -> tuple[re.Match[str], Callable[[re.Match[str], Sequence[Any]], Answer]]:
        text = _without_dialect(" ".join(statement.split()).removesuffix(";"))
        for pattern, run in self._forms:
            if found := pattern.fullmatch(text):
                return found, run
        if re.match(r"(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|REFRESH|GRANT|REVOKE)\b", text, re.IGNORECASE):
            raise UnknownStatement(statement)
        raise SqlError(400, 4000, f"ParsingException[line 1:1: mismatched input '{text.partition(' ')[0]}']")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise error_of(error) from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    # Rows

    def _insert(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DML", "INSERT")
        if found["key"] and [found["key"]] != json.loads(table["keys"]):
            raise UnknownStatement(found[0])
        check_sets(found)
        count = _Placeholders()
        columns: list[str] = found["columns"].replace(" ", "").split(",")
        check_columns(table, columns)
        defaults: dict[str, str] = json.loads(table["properties"])["defaults"]
        defaults = {name: value for name, value in defaults.items() if name not in columns}
        columns += defaults
        given = "".join(f", {value}" for value in defaults.values())
        # Each row is a write with its own _seq_no. CrateDB skips rows that it cannot write.
        rows = [
            f"({self._translate(values, table, count)}{given}, {self._next_seq_no(table)}, 1, 1)"
            for values in re.findall(r"\(([^()]+)\)", found["rows"])
        ]
        insert = "INSERT" if found["key"] or len(rows) == 1 else "INSERT OR IGNORE"
        sql = (
            f'{insert} INTO "{table["schema"]}.{table["name"]}"'
            f" ({', '.join(columns)}, _seq_no, _primary_term, _version) VALUES {', '.join(rows)}"
        )
        if found["key"]:
            sql += f" ON CONFLICT ({found['key']}) DO "
            if found["sets"]:
                sets = self._translate(found["sets"], table, count)
                sql += f"UPDATE SET {sets}, _seq_no = excluded._seq_no, _version = _version + 1"
            else:
                sql += "NOTHING"
        written = self._db.execute(f"{sql} RETURNING *", args).fetchall()
        self._continue_versions(f"{table['schema']}.{table['name']}", json.loads(table["keys"]), written)
        return self._written(table, found, written)

    def _continue_versions(self, name: str, keys: Sequence[str], rows: Sequence[sqlite3.Row]) -> None:
        """Give rows that come back a later version than they had."""
        for row in rows if len(keys) == 1 else ():
            key = row[keys[0]]
            if row["_version"] == 1:
                self._created[key] = self.now_ms()
            if row["_version"] == 1 and (version := self._later_versions.pop((name, key), None)):
                self._db.execute(f'UPDATE "{name}" SET _version = {version} WHERE "{keys[0]}" = ?', [key])

    def _insert_unnested(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        rows = list(zip(*args, strict=True))
        places = ", ".join([f"({found['arrays']})"] * len(rows))
        inner, run = self._parse(f"{found['into']} VALUES {places}{found['conflict']}")
        try:
            return run(inner, [value for row in rows for value in row])
        except SqlError as error:
            if error.code != _DISK_NEARLY_FULL:
                raise
            names = inner["returning"].replace(" ", "").split(",")  # CrateDB skips rows that it cannot write
            return rows_of(names, [], [TYPES["BIGINT" if name[0] == "_" else "TEXT"] for name in names])

    def _select_each(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        inner, run = self._parse(found["select"])
        answers = [run(inner, [key]) for key in args]
        rows = [row for answer in answers for row in answer["rows"]]
        return {**answers[0], "rows": rows, "rowcount": len(rows)}

    def _select_lengths(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        inner, run = self._parse(f"{found['select']}{found['text']}{found['rest']}")
        answer = run(inner, args)
        cols, rows = [answer["cols"][0], "length"], [[key, len(text)] for key, text in answer["rows"]]
        return {**answer, "cols": cols, "rows": rows, "col_types": [answer["col_types"][0], 9]}

    def _update(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DML", "UPDATE")
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

    def _update_each(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        """Update each row by its elements of the arrays, once, with the first ones of its name."""
        place = re.escape(f"[array_position(CAST({found['names']} AS ARRAY(TEXT)), name)]")
        update = re.sub(rf"CAST\((\$\d) AS ARRAY\(\w+\)\){place}", r"\1", found["update"])
        inner, run = self._parse(f"{update} WHERE name = {found['names']}{found['rest']}")
        answer = self._answer(self._find(inner, "DML", "UPDATE"), inner["returning"], [])
        first = {row[int(found["names"][1:]) - 1]: row for row in reversed([*zip(*args, strict=True)])}
        for name, row in first.items():
            if self.now_ms() - self._created.get(name, -math.inf) < self.refresh_ms:
                continue
            check_arguments(inner[0], row)
            self._db.execute("SAVEPOINT one_row")
            try:
                answer["rows"] += run(inner, row)["rows"]
            except SqlError as error:
                if not _refuses_one_row(error):
                    raise
                self._db.execute("ROLLBACK TO one_row")
            self._db.execute("RELEASE one_row")
        return {**answer, "rowcount": len(answer["rows"])}

    def _delete(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DML", "DELETE")
        self._only_key(table, found)
        self._next_seq_no(table)
        where = self._by_key(table, found, _Placeholders())
        name = f"{table['schema']}.{table['name']}"
        sql = f'DELETE FROM "{name}" WHERE {where} RETURNING "{found["key"]}", _version'
        deleted = self._db.execute(sql, args).fetchall()
        self._later_versions.update({(name, key): version + 2 for key, version in deleted})
        return count_of(len(deleted))

    def _delete_all(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DML", "DELETE")
        return count_of(self._db.execute(f'DELETE FROM "{table["schema"]}.{table["name"]}"').rowcount)

    def _by_key(self, table: sqlite3.Row, found: re.Match[str], count: "_Placeholders") -> str:
        where = f'"{found["key"]}" = {self._translate(found["is"], table, count)}'
        if found["seq_no"]:
            where += f" AND _seq_no = {self._translate(found['seq_no'], table, count)}"
            where += f" AND _primary_term = {self._translate(found['term'], table, count)}"
        return where

    def _select(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        table = self._find(found, "DQL", "READ")
        self._only_key(table, found)
        value = self._translate(found["is"], table, _Placeholders())
        sql = f'SELECT * FROM "{table["schema"]}.{table["name"]}" WHERE "{found["key"]}" = {value}'
        return self._answer(table, found["columns"], self._db.execute(sql, args).fetchall())

    def _scan(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        """Read the rows as of the last refresh; CrateDB itself refreshes up to a second later."""
        table = self._find(found, "DQL", "READ")
        count = _Placeholders()
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (refreshed(table)[1:-1],)).fetchone():
            return self._answer(table, found["columns"], [])
        sql = f"SELECT * FROM {refreshed(table)}"
        if found["where"]:
            sql += f" WHERE {self._translate(found['where'], table, count)}"
        if found["order"]:
            sql += f" ORDER BY {self._translate(found['order'], table, count)}"
        if found["limit"]:
            sql += f" LIMIT {self._translate(found['limit'], table, count)}"
        return self._answer(table, found["columns"], self._db.execute(sql, args).fetchall())

    def _aggregate(self, found: re.Match[str], args: Sequence[Any]) -> Answer:
        """Aggregate the rows as of the last refresh."""
        table = self._find(found, "DQL", "READ")
        calls = found["calls"].replace('"', "").lower().split(", ")
        columns = [call[4:-1] for call in calls if call.startswith(("max(", "min("))]
        check_columns(table, [*columns, found["key"] or "_seq_no"])
        copied = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (refreshed(table)[1:-1],)).fetchone()
        row = [0 if call == "count(*)" else None for call in calls]
        if copied:
            where = (
                f' WHERE "{found["key"]}" = {self._translate(found["is"], table, _Placeholders())}'
                if found["key"]
                else f" WHERE {found['where']}"
                if found["where"]
                else ""
            )
            row = list(self._db.execute(f"SELECT {found['calls']} FROM {refreshed(table)}{where}", args).fetchone())
        return rows_of([call.removesuffix("(*)") for call in calls], [row], [10 for _ in calls])

    def _recorded_ends(self, found: re.Match[str], _: Sequence[Any]) -> Answer:
        table = self._find(found, "DQL", "READ")
        where = "WHERE written_at > 0 GROUP BY sequence, period, step"
        rows = self._db.execute(f"{found['head']} FROM {refreshed(table)} {where}").fetchall()
        return rows_of(["sequence", "period", "step", "last_id"], [[*row] for row in rows], [4, 4, 10, 10])

    def _written(self, table: sqlite3.Row, found: re.Match[str], rows: list[sqlite3.Row]) -> Answer:
        check_table(self._db, table)
        for row in rows:
            for name, kind in json.loads(table["columns"]).items():
                if kind == "BIGINT" and row[name] is not None and not MIN_BIGINT <= row[name] <= MAX_BIGINT:
                    message = f"SQLParseException[Value {row[name]} exceeds allowed range for column of type bigint]"
                    raise SqlError(400, 4000, message)
        if not found["returning"]:
            return count_of(len(rows))
        return self._answer(table, found["returning"], [{**row, "_version": None} for row in map(dict, rows)])

    def _answer(self, table: sqlite3.Row, columns: str, rows: Sequence[Any]) -> Answer:
        names = columns.replace(" ", "").split(",")
        check_columns(table, names)
        types = json.loads(table["columns"])
        return rows_of(
            names, [[row[name] for name in names] for row in rows], [TYPES[types.get(n, "BIGINT")] for n in names]
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
        """Translate an expression of CrateDB to SQLite; refuse unknown functions and columns."""
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


def without_ties(statement: str) -> tuple[str, str, str]:
    """Return a statement without the literals that its answer repeats first: a text, and the OID
    of a table.

    Returns:
        The statement, the text, and the reference of the table; empty if there is none.
    """
    ties = r"'(?P<nonce>[0-9a-f]{16})', (?:'(?P<table>[^']+)'::regclass::integer, )?"
    found = re.match(rf"(?P<head>SELECT ){ties}", statement) or re.match(rf"(?P<head>.+ RETURNING ){ties}", statement)
    if found is None:
        return statement, "", ""
    return found["head"] + statement[found.end() :], found["nonce"], found["table"] or ""


def _without_dialect(text: str) -> str:
    """Return a statement of SQLAlchemy's dialect in the form of the others: types, the key, names
    of columns.
    """
    if made := re.fullmatch(r"CREATE TABLE (\w+) \( (.+), PRIMARY KEY \((\w+)\) \)", text):
        columns = made[2].replace(" LONG", " BIGINT").replace(" STRING", " TEXT")
        columns = re.sub(rf"\b{made[3]} (\w+) NOT NULL", rf"{made[3]} \1 PRIMARY KEY", columns)
        return f"CREATE TABLE {made[1]} ({columns})"
    if text.startswith("INSERT"):
        return re.sub(r" RETURNING \w+\.(\w+)$", r" RETURNING \1", text)
    if largest := re.fullmatch(r"SELECT max\((?:\w+\.)+(\w+)\) AS \w+ FROM (\S+)", text):
        return f'SELECT MAX("{largest[1]}") FROM {largest[2]}'
    if read := re.fullmatch(r"SELECT .+ FROM (\w+) WHERE .+", text):
        return text.replace(f"{read[1]}.", "")
    return text


def _refuses_one_row(error: SqlError) -> bool:
    return error.code == 4091 or "Failed CONSTRAINT" in str(error)


class _Placeholders:
    """Numbers the placeholders of one statement."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> str:
        self._last += 1
        return f"?{self._last}"
