"""Insert rows into a CrateDB table with ids from one range: two calls for any number of rows.

    pip install 'idalloc[crate]'
    python insert_rows.py [ROWS]

IDALLOC_SERVER is the idalloc server (127.0.0.1:50051); IDALLOC_TOKEN_FILE and IDALLOC_CA are the token and the CA, if
the server needs them; CRATEDB is the database (http://127.0.0.1:4200).
"""

import argparse
import os
import sys

from crate import client as crate

import idalloc


def main(rows: int) -> None:
    with (
        idalloc.Client.from_environment() as ids,
        crate.connect(os.environ.get("CRATEDB", "http://127.0.0.1:4200"), username="crate") as database,
    ):
        cursor = database.cursor()
        cursor.execute("CREATE TABLE IF NOT EXISTS doc.idalloc_orders (id BIGINT PRIMARY KEY, what TEXT)")

        # The ids are known before the insert, so rows of other tables can refer to them.
        numbers = ids.allocate_range("idalloc_orders", rows)
        results = cursor.executemany(
            "INSERT INTO doc.idalloc_orders (id, what) VALUES (?, ?)",
            [(number, f"thing {number}") for number in numbers],
        )

        # A bulk statement fails row by row: rowcount -2 means that a row was not written.
        written = sum(result["rowcount"] == 1 for result in results)
        print(f"{written} of {rows} rows, ids {numbers[0]} to {numbers[-1]}")
        if written < rows:
            sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", metavar="ROWS", type=int, nargs="?", default=1000)
    rows = parser.parse_args().rows
    if rows < 1:
        parser.error("ROWS must be at least 1")
    try:
        main(rows)
    except (idalloc.IdallocError, ValueError) as error:  # ValueError: an invalid environment variable
        sys.exit(f"idalloc: {error}")
    except crate.Error as error:
        sys.exit(f"CrateDB: {error}")
