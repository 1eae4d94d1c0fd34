"""A CrateDB with a table of a user's rows."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from crate import client

from tests.support.faults.store_copies import copied_store


@contextmanager
def table_with_a_row(table: str, row_id: int, folder: Path) -> Iterator[int]:
    """Yield the port of an emulator whose table has a row with an id."""
    with copied_store("cratedb", folder) as crate:
        address = urlsplit(crate.url).netloc.rpartition("@")[2]
        with closing(client.connect(f"http://{address}")) as connection:
            cursor = connection.cursor()
            cursor.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO {table} (id) VALUES (?)", (row_id,))
        yield int(address.rpartition(":")[2])
