"""The plugin ``idalloc`` of SQLAlchemy's engines: integer primary keys from sequences.

    create_engine("crate://host:4200/?schema=shop&plugin=idalloc")

The program stays as it is. See docs/guides/cratedb-auto-increment.md.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CreateEnginePlugin, Engine
from sqlalchemy.exc import ArgumentError, CompileError, OperationalError, StatementError
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.functions import now
from sqlalchemy.util import await_only, to_list

from idalloc._core.errors import DeadlineExceeded, IdallocError, InvalidConfig, Unavailable
from idalloc.ext._keys import MAX_ID, KeySource
from idalloc.ext._keys import KeyConflict as KeyConflict

T = TypeVar("T")
Column = sa.Column[Any]

_PREFIX = "idalloc_"
_log = logging.getLogger("idalloc.ext.sqlalchemy")


class IdallocPlugin(CreateEnginePlugin):
    """Gives a row that is inserted without a key the next id of its table's sequence.

    It covers the integer primary keys that SQLAlchemy treats as autoincrement and that have no
    default, and in CrateDB those with the default ``now()``. The ids become parameters of the
    INSERT; tables are not changed. If idalloc is not available, the INSERT raises
    ``OperationalError``, and ``StatementError`` for other errors; ``orig`` is the ``IdallocError``.

    Args:
        url: The URL of the engine. Its parameters ``idalloc_…`` are the plugin's.
        kwargs: The arguments of ``create_engine``.

    Raises:
        ArgumentError: A parameter is unknown or invalid.
    """

    def __init__(self, url: sa.URL, kwargs: Mapping[str, Any]) -> None:
        self._parameters = [name for name in url.query if name.startswith(_PREFIX)]
        given = {name.removeprefix(_PREFIX): to_list(url.query[name])[-1] for name in self._parameters}
        try:
            self._source = KeySource(given, pattern="{schema}.{table}", prefix=_PREFIX)
        except InvalidConfig as error:
            raise ArgumentError(str(error)) from error
        self._schema = kwargs.get("connect_args", {}).get("schema") or url.query.get("schema")
        self._keys: WeakKeyDictionary[sa.Table, str | None] = WeakKeyDictionary()
        self._prepared: set[tuple[str, ...]] = set()
        self._threads: tuple[int, ThreadPoolExecutor] | None = None  # and their process

    def update_url(self, url: sa.URL) -> sa.URL:
        """Return the URL without the plugin's parameters."""
        return url.difference_update_query(self._parameters)

    def engine_created(self, engine: Engine) -> None:
        """Watch the statements of an engine."""
        self._engine = engine
        self._dialect = engine.dialect
        sa.event.listen(engine, "before_execute", self._add_keys, retval=True)

    def _add_keys(
        self, connection: Connection, statement: Any, multiparams: Any, params: Any, execution_options: Any
    ) -> tuple[Any, Any, Any]:
        column = self._key(statement.table) if isinstance(statement, Insert) else None
        if column is None:
            return statement, multiparams, params
        names = _names(statement, column)
        values = [key for key, value in (statement._values or {}).items() if not _is_none(value)]
        if not names.isdisjoint(map(_name, statement._select_names or values)):
            return statement, multiparams, params
        if statement.select is not None:
            raise CompileError(
                f"INSERT INTO {column.table} … SELECT has no {column.name}: the number of its rows is unknown, so the "
                "plugin idalloc cannot get their ids; select them, too, or insert rows"
            )
        several = [_by_column(statement, row, names) for rows in statement._multi_values for row in rows]
        given = several or list(multiparams) or [params]
        missing = [not any(value is not None and _name(key) in names for key, value in row.items()) for row in given]
        if not any(missing):
            return statement, multiparams, params
        with _errors_of_sqlalchemy(column):
            ids = self._ids(connection, column, sum(missing), execution_options)
        rows = [{**row, column.key: next(ids)} if lacks else row for row, lacks in zip(given, missing, strict=True)]
        if several:
            statement = statement._generate()
            statement._multi_values = (rows,)
            return statement, multiparams, params
        return (statement, rows, params) if multiparams else (statement, multiparams, rows[0])

    def _key(self, table: Any) -> Column | None:
        """Return the column of a table that gets ids, if any."""
        if not isinstance(table, sa.Table):
            return None
        if table not in self._keys:
            column: Column | None = table.autoincrement_column
            if column is not None and (column.default is not None or column.server_default is not None):
                column = None
            if column is None and self._dialect.name == "crate" and (column := _stopgap(table)) is not None:
                _log.warning("the keys of %s come from idalloc, in place of its default now()", table.fullname)
            self._keys[table] = None if column is None else column.key
        key = self._keys[table]
        return None if key is None else table.c[key]

    def _ids(
        self, connection: Connection, column: Column, count: int, execution_options: Mapping[str, Any]
    ) -> Iterator[int]:
        """Return ids for rows of a table, and prepare its sequence before its first use."""
        table: Any = column.table
        translations = execution_options.get("schema_translate_map") or {}
        schema = translations.get(table.schema, table.schema) or self._default_schema()
        name = self._source.name(schema, table.name)
        if (name, schema, table.name) not in self._prepared:
            with self._own_connection(connection) as own:
                largest = self._largest(own, column, translations)
            prepare = partial(self._source.prepare, column=f"{table.name}.{column.name}", largest=largest)
            self._run(partial(prepare, name, limit=self._limit(column)))
            self._prepared.add((name, schema, table.name))
        return self._run(partial(self._source.allocate, name, count))

    @contextmanager
    def _own_connection(self, connection: Connection) -> Iterator[Connection]:
        """Open a connection outside of the caller's transaction, and close it."""
        if isinstance(self._engine.pool, StaticPool | SingletonThreadPool):  # SQLite in memory has one
            yield connection
            return
        # Not from the engine's pool, whose last connection may be the caller's.
        reader = Engine(self._engine.pool.recreate(), self._dialect, self._engine.url)
        try:
            with reader.connect() as own:
                if self._dialect.name == "postgresql":  # the caller may have locked the table
                    own.exec_driver_sql(f"SET LOCAL lock_timeout = {int(self._source.timeout * 1000)}")
                yield own
        finally:
            reader.dispose()

    def _largest(self, own: Connection, column: Column, translations: Mapping[Any, Any]) -> int | None:
        """Return the largest key of a table."""
        table: Any = column.table
        if self._dialect.name == "crate":  # else a query misses rows of the last second
            schema = translations.get(table.schema, table.schema)
            quote = self._dialect.identifier_preparer.quote
            own.exec_driver_sql(f"REFRESH TABLE {'.'.join(quote(each) for each in (schema, table.name) if each)}")
        largest = sa.select(sa.type_coerce(sa.func.max(column), sa.BigInteger))
        value = own.scalar(largest, execution_options={"schema_translate_map": translations})
        return None if value is None else int(value)

    def _default_schema(self) -> str:
        given = self._schema if self._dialect.name == "crate" else None  # others may name something else so
        return to_list(given)[0] if given else self._dialect.default_schema_name or ""

    def _limit(self, column: Column) -> int:
        """Return the largest value of a key."""
        # For SQLite models often have the variant Integer of BigInteger. It has 64 bits there.
        kind: Any = column.type if self._dialect.name == "sqlite" else column.type.dialect_impl(self._dialect)
        kind = getattr(kind, "impl", kind)
        if isinstance(kind, sa.BigInteger) or not isinstance(kind, sa.Integer):
            return MAX_ID
        return 2**15 - 1 if isinstance(kind, sa.SmallInteger) else 2**31 - 1

    def _run(self, call: Callable[[], T]) -> T:
        """Call idalloc. The event loop of an asynchronous engine runs on meanwhile."""
        if not self._dialect.is_async:
            return call()
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = (os.getpid(), ThreadPoolExecutor(64, "idalloc"))  # connections that may wait for ids
        return await_only(asyncio.get_running_loop().run_in_executor(self._threads[1], call))


def _name(key: Any) -> Any:
    """Return the name of a parameter, which may be a column."""
    return getattr(key, "key", key)


def _is_none(value: Any) -> bool:
    """Return whether a value of VALUES is None, and no parameter that comes later."""
    return isinstance(value, sa.BindParameter) and value.value is value.callable is None and not value.required


def _names(insert: Insert, column: Column) -> set[str]:
    """Return the names of a key in parameters: that of the column, and that of the attribute."""
    mapper: Any = insert._propagate_attrs.get("plugin_subject")
    if mapper is None or mapper.local_table is not column.table:
        return {column.key}
    return {column.key, mapper.get_property_by_column(column).key}


def _by_column(insert: Insert, row: Any, names: set[str]) -> Mapping[Any, Any]:
    """Return one of several rows of VALUES, which may lack names, without a key that is None."""
    by_column = row if isinstance(row, Mapping) else dict(zip(insert.table.c.keys(), row, strict=False))
    return {key: value for key, value in by_column.items() if value is not None or _name(key) not in names}


def _stopgap(table: sa.Table) -> Column | None:
    """Return the integer key of a table whose default is ``now()``, if it has one."""
    columns = list(table.primary_key.columns)
    if len(columns) != 1 or not isinstance(columns[0].type, sa.Integer):
        return None
    default = columns[0].default or columns[0].server_default
    return columns[0] if isinstance(getattr(default, "arg", None), now) else None


@contextmanager
def _errors_of_sqlalchemy(column: Column) -> Iterator[None]:
    """Raise errors of idalloc as those that programs of SQLAlchemy handle."""
    statement = f"INSERT INTO {column.table}"
    try:
        yield
    except (Unavailable, DeadlineExceeded) as error:
        raise OperationalError(statement, None, error) from error
    except IdallocError as error:
        raise StatementError(str(error), statement, None, error) from error
