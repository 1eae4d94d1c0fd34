"""Primary keys of Django models from idalloc sequences, one a table.

    DEFAULT_AUTO_FIELD = "idalloc.ext.django.IdallocBigAutoField"  # in settings.py
    IDALLOC = {"server": "127.0.0.1:50051"}

See docs/guides/frameworks.md.
"""

from contextlib import closing, nullcontext
from functools import cache
from typing import Any

from django.conf import settings
from django.db import connections, models, router

from idalloc._sync.ids import Ids
from idalloc.ext._keys import MAX_ID, KeySource
from idalloc.ext._keys import KeyConflict as KeyConflict


@cache
def _source() -> KeySource:
    given = {name: str(value) for name, value in getattr(settings, "IDALLOC", {}).items()}
    return KeySource(given, pattern="{table}", prefix="IDALLOC: ")


@cache
def _ids(alias: str, table: str, column: str, limit: int) -> Ids:
    """Return the ids of a table, whose sequence is prepared before its first use."""
    source = _source()
    database = connections[alias]
    is_in_memory = database.vendor == "sqlite" and database.is_in_memory_db()
    # Otherwise outside of the caller's transaction.
    with nullcontext(database) if is_in_memory else closing(database.copy()) as own, own.cursor() as cursor:
        quote = own.ops.quote_name
        if own.vendor == "Crate.io":  # else a query misses rows of the last second
            cursor.execute(f"REFRESH TABLE {quote(table)}")
        if own.vendor == "postgresql":  # the caller may have locked the table
            cursor.execute(f"SET lock_timeout = {int(source.timeout * 1000)}")
        cursor.execute(f"SELECT MAX({quote(column)}) FROM {quote(table)}")  # noqa: S608  # quoted
        [largest] = cursor.fetchone()
    name = source.name("", table)
    source.prepare(name, column=f"{table}.{column}", largest=largest, limit=limit)
    return source.client.ids(name, timeout=source.timeout)


class _KeyMixin(models.Field):
    """Gives an object without a key the next id when it is saved."""

    _limit = MAX_ID

    def get_pk_value_on_save(self, instance: models.Model) -> Any:
        """Return the next id of the table's sequence."""
        alias = instance._state.db or router.db_for_write(type(instance), instance=instance)
        return next(_ids(alias, self.model._meta.db_table, self.column, self._limit))


class IdallocBigAutoField(_KeyMixin, models.BigAutoField):
    """A ``BigAutoField`` whose values come from the sequence of its table.

    An object gets its key in ``save()``, ``create()`` or ``bulk_create()``, unless it has one.
    Prefetched ids make most of them free of calls. Raises ``IdallocError`` if there is no id.
    """


class IdallocAutoField(_KeyMixin, models.AutoField):
    """An ``AutoField`` whose values come from the sequence of its table, up to 2^31-1."""

    _limit = 2**31 - 1
