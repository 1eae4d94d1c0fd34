"""Rows by SQLAlchemy with three kinds of keys: `python -m bench.auto_increment`.

Writers insert row after row into CrateDB, and some of them are killed meanwhile. The keys are those
of the plugin of idalloc, those of CrateDB's stopgap now(), and gen_random_text_uuid(). Each writer
notes the keys of the rows that the database acknowledged. The report has how many of these came
twice, and how many rows the database refused because their key was taken.
"""

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from bench.markdown import number, table
from bench.servers import running
from tests.support.processes import start_module

KINDS = ("plugin", "now()", "gen_random_text_uuid()")
HEAD = ["keys", "writers, killed", "seconds", "rows", "rows/s", "refused: key taken", "acknowledged twice", "missing"]


def model(kind: str, name: str) -> Any:
    """Return the model of a table, as a program without idalloc declares it."""
    base: Any = orm.declarative_base()
    key: Any
    if kind == "plugin":
        key = sa.Column(sa.BigInteger, primary_key=True, autoincrement=True)
    elif kind == "now()":  # as patch_autoincrement_timestamp() makes it
        key = sa.Column(sa.BigInteger, primary_key=True, default=sa.func.now())
    else:
        key = sa.Column(sa.Text, primary_key=True, default=sa.func.gen_random_text_uuid())
    return type("Row", (base,), {"__tablename__": name, "id": key, "what": sa.Column(sa.Text)})


def write(url: str, kind: str, name: str, until: float, notes: Path) -> None:
    """Insert row after row, and note the key of each, or the name of the error."""
    row, engine = model(kind, name), sa.create_engine(url)
    with notes.open("w", buffering=1) as file:
        while time.time() < until:
            try:
                with orm.Session(engine, expire_on_commit=False) as session:
                    session.add(added := row(what="a"))
                    session.commit()
                print(added.id, file=file)
            except sa.exc.DBAPIError as error:
                print("taken" if "uplicate" in str(error) or "UNIQUE" in str(error) else "failed", file=file)


@contextmanager
def writers(count: int, *arguments: Any, folder: Path) -> Iterator[list[Any]]:
    """Run writers in processes of their own, until they end."""
    context = multiprocessing.get_context("spawn")
    notes = [folder / f"{number}.txt" for number in range(count)]
    processes = [context.Process(target=write, args=(*arguments, each)) for each in notes]
    for each in processes:
        each.start()
    yield processes
    for each in processes:
        each.join()


def measure(url: str, plugin: str, kind: str, options: argparse.Namespace) -> list[str]:
    """Return the line of the report for a kind of keys."""
    name = f"auto_increment_{os.getpid()}_{len(kind)}"
    engine = sa.create_engine(url)
    row = model(kind, name)
    row.__table__.create(engine)
    until = time.time() + options.seconds + 5  # the processes start within these 5 s
    with tempfile.TemporaryDirectory() as folder:
        own = url + plugin if kind == "plugin" else url
        with writers(options.writers, own, kind, name, until, folder=Path(folder)) as processes:
            time.sleep(5 + options.seconds / 2)
            for each in processes[: options.killed]:
                os.kill(each.pid, signal.SIGKILL)
        lines = [line for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
    found = Counter(lines)
    taken, failed = found.pop("taken", 0), found.pop("failed", 0)
    with engine.begin() as connection:
        if engine.dialect.name == "crate":
            connection.exec_driver_sql(f"REFRESH TABLE {name}")
        rows: Any = connection.exec_driver_sql(f"SELECT COUNT(*) FROM {name}").scalar()
        connection.exec_driver_sql(f"DROP TABLE {name}")
    if failed:
        print(f"{kind}: {failed} inserts failed for another reason")
    acknowledged = sum(found.values())
    twice, missing = acknowledged - len(found), max(0, acknowledged - rows)
    figures = [number(rows), number(rows / options.seconds), number(taken), number(twice), number(missing)]
    return [kind, f"{options.writers}, {options.killed}", number(options.seconds), *figures]


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.auto_increment", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", default="", help="SQLAlchemy's URL of a CrateDB; the emulator by default")
    parser.add_argument("--server", default="", help="HOST:PORT of an idalloc server; by default it starts one")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each kind of keys, at most 600 (20)")
    parser.add_argument("--writers", type=int, default=16, help="processes, at most 64 (16)")
    parser.add_argument("--killed", type=int, default=2, help="how many of them are killed in the middle (2)")
    options = parser.parse_args()
    if not (0 < options.seconds <= 600 and 0 <= options.killed < options.writers <= 64):
        parser.error("--seconds, --writers and --killed must be within their limits")
    with ExitStack() as stack:
        url = options.database or start_module(stack, "tests.support.cratedb.emulator")
        if not (server := options.server):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            command = ("idalloc_server", "--listen=127.0.0.1:0", f"--store=sqlite://{folder}/ids.db")
            server = stack.enter_context(running(*command)).address
        kinds = KINDS if url.startswith("crate") else KINDS[:1]
        plugin = f"{'&' if '?' in url else '?'}plugin=idalloc&idalloc_server={server}"
        print(table(HEAD, "lr" + "r" * 6, [measure(url, plugin, kind, options) for kind in kinds]))


if __name__ == "__main__":
    main()
