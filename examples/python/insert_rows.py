"""Insert rows into CrateDB in batches, with ids from idalloc. A retry never writes a row twice.

    pip install '.[crate]'  # in a clone of idalloc
    python insert_rows.py [ROWS] [--job UUID]

Needs an idalloc server and CrateDB. IDALLOC_SERVER is the server (default 127.0.0.1:50051);
IDALLOC_CA and IDALLOC_TOKEN_FILE are the CA and the token, if the server needs them; CRATEDB is
CrateDB's URL (default http://crate@127.0.0.1:4200; http://user:password@… if it requires a
password).

The program allocates all ids before it writes the first row, so each retry inserts the same rows:
CrateDB skips those that exist. If the program itself ends early, run it again with the ``--job``
that it printed: for an hour (the server's request_id_window) the same job gets the same ids.
"""

import argparse
import os
import sys
import time
import uuid
from typing import Any, TypeAlias

from crate import client as crate

import idalloc

SEQUENCE = "example_orders"
TABLE = "doc.example_orders"
BATCH_SIZE = 1000
ATTEMPTS = 5

Row: TypeAlias = tuple[int, str, str]


class RowsFailed(Exception):
    """Rows are not in the table after the last attempt."""


def insert_batch(cursor: Any, rows: list[Row]) -> None:
    """Insert rows, and retry those that are not known to be in the table.

    Raises:
        RowsFailed: CrateDB rejected a row, or did not write it in any attempt.
        crate.Error: CrateDB rejected the statement, or did not answer, in each attempt.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            # One reply for each row: rowcount 1 is a new row, 0 an existing one, -2 a row that was
            # not written.
            replies = cursor.executemany(
                f"INSERT INTO {TABLE} (id, job, what) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING", rows
            )
        except crate.Error:  # no reply, or the cluster is not ready: the rows may be in the table
            if attempt == ATTEMPTS:
                raise
        else:
            errors = [reply["error"] for reply in replies if "error" in reply]  # of the first ten rows of a shard
            rows = [row for row, reply in zip(rows, replies, strict=True) if reply["rowcount"] < 0]
            if not rows:
                return
            # A code that begins with 4 is of the row, one that begins with 5 of the cluster, which
            # may recover.
            if attempt == ATTEMPTS or any(str(error["code"]).startswith("4") for error in errors):
                raise RowsFailed(f"{len(rows)} rows were not written, such as {rows[0]}: {errors[:1]}")
        time.sleep(0.1 * 2**attempt)


def main(row_count: int, job: uuid.UUID) -> None:
    with (
        idalloc.Client.from_environment() as client,
        crate.connect(os.environ.get("CRATEDB", "http://crate@127.0.0.1:4200"), timeout=30) as database,
    ):
        cursor = database.cursor()
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (id BIGINT PRIMARY KEY, job TEXT, what TEXT)")

        # The ids are known before the insert, so rows of other tables can refer to them.
        ids = client.allocate_range(SEQUENCE, row_count, request_id=job).ids
        print(f"job {job}: ids {ids[0]} to {ids[-1]}", flush=True)
        for start in range(0, row_count, BATCH_SIZE):
            insert_batch(cursor, [(number, str(job), f"order {number}") for number in ids[start : start + BATCH_SIZE]])

        cursor.execute(f"REFRESH TABLE {TABLE}")
        cursor.execute(f"SELECT COUNT(*) FROM {TABLE} WHERE job = ?", (str(job),))
        [written] = cursor.fetchone()
        print(f"{written} rows of this job are in {TABLE}")
        if written != row_count:
            raise RowsFailed(f"other rows have {row_count - written} of these ids: advance the sequence past them")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Insert rows into CrateDB with ids from idalloc.")
    parser.add_argument("row_count", metavar="ROWS", type=int, nargs="?", default=5000, help="1 to 1,000,000")
    parser.add_argument("--job", metavar="UUID", type=uuid.UUID, default=uuid.uuid4(), help="repeat this job")
    arguments = parser.parse_args()
    if not 1 <= arguments.row_count <= 1_000_000:
        parser.error("ROWS must be from 1 to 1,000,000")
    try:
        main(arguments.row_count, arguments.job)
    except (idalloc.IdallocError, ValueError) as error:  # ValueError: an invalid environment variable
        sys.exit(f"idalloc: {error}")
    except (crate.Error, RowsFailed) as error:
        sys.exit(f"CrateDB: {error}")
