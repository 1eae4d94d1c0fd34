"""The recipe of CrateDB's guide: read the counter, and write the next value if it is unchanged."""

import base64
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from bench.drivers import in_threads
from bench.turns import Turn

WRITERS = 16
# As in the guide: five attempts, with a pause that doubles each time.
_ATTEMPTS = 5
_FIRST_PAUSE = 0.1
# The shortest turn: all writers begin at once, and most then pause for up to 0.8 s.
_MIN_SECONDS = 3.0


class Row(Protocol):
    """The counter's row, as one writer sees it."""

    def advance(self) -> bool:
        """Read the counter and write the next value; return whether the write succeeded."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class SqliteRow:
    """The row in SQLite, compared by value; each commit reaches the disk."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE IF NOT EXISTS recipe (name TEXT PRIMARY KEY, last_value INTEGER)")
        self._db.execute("INSERT OR IGNORE INTO recipe VALUES ('orders', 0)")

    def advance(self) -> bool:
        """See ``Row.advance``."""
        [value] = self._db.execute("SELECT last_value FROM recipe WHERE name = 'orders'").fetchone()
        found = self._db.execute(
            "UPDATE recipe SET last_value = ? WHERE name = 'orders' AND last_value = ? RETURNING last_value",
            (value + 1, value),
        )
        return bool(found.fetchall())

    def close(self) -> None:
        """See ``Row.close``."""
        self._db.close()


class CrateRow:
    """The row in CrateDB, over a persistent connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        kind = HTTPSConnection if query.get("tls") == ["true"] else HTTPConnection
        host = parts.netloc.rpartition("@")[2].partition(",")[0]
        self._connection = kind(host.partition(":")[0], int(host.partition(":")[2] or 4200), timeout=60)
        name, password = unquote(parts.username or "crate"), unquote(parts.password or "")
        token = base64.b64encode(f"{name}:{password}".encode()).decode()
        self._headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}
        self._table = f'"{query.get("schema", ["doc"])[0]}"."recipe"'
        self._sql(f"CREATE TABLE IF NOT EXISTS {self._table} (name TEXT PRIMARY KEY, last_value BIGINT)")
        self._sql(f"INSERT INTO {self._table} (name, last_value) VALUES ('orders', 0) ON CONFLICT (name) DO NOTHING")

    def advance(self) -> bool:
        """See ``Row.advance``."""
        [[value, *version]] = self._sql(
            f"SELECT last_value, _seq_no, _primary_term FROM {self._table} WHERE name = 'orders'"
        )
        written = self._sql(
            f"UPDATE {self._table} SET last_value = ? WHERE name = 'orders' AND _seq_no = ? AND _primary_term = ?"
            " RETURNING last_value",
            value + 1,
            *version,
        )
        return bool(written)

    def close(self) -> None:
        """See ``Row.close``."""
        self._connection.close()

    def _sql(self, statement: str, *args: int) -> list[list[int]]:
        body = json.dumps({"stmt": statement, "args": args})
        self._connection.request("POST", "/_sql", body, self._headers)
        answer = self._connection.getresponse()
        read = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"CrateDB answered {answer.status}: {read[:200]!r}")
        rows: list[list[int]] = json.loads(read)["rows"]
        return rows


def one_id(row: Row) -> int:
    """Take one id; return 1, or 0 if all attempts failed."""
    pause = _FIRST_PAUSE
    for attempt in range(_ATTEMPTS):
        if row.advance():
            return 1
        if attempt < _ATTEMPTS - 1:
            time.sleep(pause)
            pause *= 2
    return 0


class Writers:
    """Several writers of one row, each with its own connection and thread."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def turn(self, seconds: float) -> Turn:
        """Take ids for ``seconds`` or longer; a call is one attempt with its pauses."""
        takes: list[Callable[[], int]] = [partial(one_id, row) for row in self._rows]
        return in_threads(takes, max(seconds, _MIN_SECONDS))


@contextmanager
def on_sqlite(path: Path) -> Iterator[Writers]:
    """Yield the writers on SQLite."""
    rows: list[Row] = [SqliteRow(path) for _ in range(WRITERS)]
    yield Writers(rows)
    for row in rows:
        row.close()


@contextmanager
def on_crate(url: str) -> Iterator[Writers]:
    """Yield the writers on CrateDB."""
    rows: list[Row] = [CrateRow(url) for _ in range(WRITERS)]
    yield Writers(rows)
    for row in rows:
        row.close()
