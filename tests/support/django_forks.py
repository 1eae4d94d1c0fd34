"""Inserts orders of examples/python/django_models.py before a fork, and after it in each process.

Its arguments are the path of the example, and then those of the example.
"""

import multiprocessing
import runpy
import sys

from django.db import connection

EXAMPLE = sys.argv.pop(1)
shop = runpy.run_path(EXAMPLE, run_name="shop")  # as a pre-fork server imports it: main() does not run


def insert(count: int) -> None:
    """Insert orders one by one."""
    for _ in range(count):
        shop["Order"].objects.create(customer="Example Ltd")


if __name__ == "__main__":
    count = shop["arguments"].count
    with connection.schema_editor() as editor:
        editor.create_model(shop["Order"])
    insert(count)
    connection.close()  # SQLite's connections must not be used after a fork
    with multiprocessing.get_context("fork").Pool(2) as children:
        inserted = children.map_async(insert, [count, count], chunksize=1)
        insert(count)
        inserted.get(60)
