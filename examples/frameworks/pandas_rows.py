"""Numbers the rows of a data frame with ids from idalloc, and writes them to a database.

python pandas_rows.py SERVER DATABASE COUNT
"""

import argparse
import time
from typing import Any

import numpy
import pandas
from sqlalchemy import create_engine

import idalloc

parser = argparse.ArgumentParser(description="Number the rows of a data frame, and write them to a database.")
parser.add_argument("server", metavar="SERVER", help="HOST:PORT of the idalloc server")
parser.add_argument(
    "database", metavar="DATABASE", help="the database's SQLAlchemy URL, such as crate://127.0.0.1:4200"
)
parser.add_argument("count", metavar="COUNT", type=int, help="how many rows to write")


def number(frame: Any, client: idalloc.Client, sequence: str) -> None:
    """Add a column with ids: one call, an array of 8 bytes a row, no Python integers."""
    ranges = client.stream_ranges(sequence, len(frame), 1_000_000)
    frame.insert(0, "id", numpy.concatenate([ids.to_numpy() for ids in ranges]))


def write(frame: Any, database: str) -> None:
    options: dict[str, Any] = {}
    if database.startswith("crate"):  # CrateDB's bulk operations are faster than INSERTs of many rows
        from sqlalchemy_cratedb.support import insert_bulk

        options = {"method": insert_bulk}
    frame.to_sql("measurements", create_engine(database), if_exists="append", index=False, chunksize=20_000, **options)


def main(server: str, database: str, count: int) -> None:
    frame = pandas.DataFrame({"value": numpy.random.default_rng().random(count)})
    began = time.perf_counter()
    with idalloc.Client(server) as client:
        number(frame, client, "measurements")
    numbered = time.perf_counter()
    write(frame, database)
    print(f"{count} rows: numbered in {numbered - began:.2f} s, written in {time.perf_counter() - numbered:.2f} s")


if __name__ == "__main__":
    main(**vars(parser.parse_args()))
