"""The programs of examples/python against real servers: their output, and handled failures."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import sqlalchemy as sa
from crate import client as crate_client

import idalloc
from idalloc.ext import sqlalchemy as ext
from tests.e2e.test_crate import Crate
from tests.support.cratedb.cluster import URL
from tests.support.paths import ROOT
from tests.support.processes import Server, environment, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.test_long

EXAMPLES = ROOT / "examples" / "python"
UNREACHABLE = "127.0.0.1:1"
ROWS = 1200  # two batches
TABLES = ("example_orders", "example_shop_orders", "example_shop_lines")


def command(example: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / example), *arguments]


def run(example: str, *arguments: str, server: str = UNREACHABLE, **variables: str) -> subprocess.CompletedProcess[str]:
    env = environment(server=server) | variables
    return subprocess.run(command(example, *arguments), env=env, capture_output=True, text=True, timeout=50)


def error_line(example: str, *arguments: str, **variables: str) -> str:
    done = run(example, *arguments, **variables)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


class Database:
    """A CrateDB for the example: the emulator or a real one."""

    def __init__(self, emulator: Crate | None) -> None:
        self.emulator = emulator  # None for a real CrateDB
        self.url = f"http://127.0.0.1:{emulator.port}" if emulator else f"http://{urlsplit(URL).netloc.split(',')[0]}"

    def execute(self, *statements: str) -> None:
        """Execute statements."""
        self._fetch(*statements)

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._fetch("REFRESH TABLE doc.example_orders", "SELECT COUNT(*) FROM doc.example_orders")[0])

    def _fetch(self, *statements: str) -> list[Any]:
        connection = crate_client.connect(self.url)
        try:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchone() or ())
        finally:
            connection.close()

    def fail(self, **fault: Any) -> None:
        """Inject a fault into the next INSERT."""
        if self.emulator is None:
            pytest.skip("only the emulator injects faults")
        self.emulator.fail({"match": "INSERT", **fault})


@pytest.fixture(
    scope="module", params=["emulator", *([pytest.param("cratedb", marks=pytest.mark.cratedb)] if URL else [])]
)
def crate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    emulator = Crate(tmp_path_factory.mktemp("crate") / "crate.db") if request.param == "emulator" else None
    yield Database(emulator)
    if emulator:
        emulator.kill()


@pytest.fixture
def database(crate: Database) -> Iterator[Database]:
    yield crate
    for table in TABLES:
        crate.execute(f"DROP TABLE IF EXISTS doc.{table}")


# insert_rows.py


def insert(database: Database, server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("insert_rows.py", *arguments, server=server.address, CRATEDB=database.url)


def test_a_repeated_job_writes_no_row_twice(database: Database, server: Server) -> None:
    """P7: a job has the same ids when it is repeated, and each row is in the table once."""
    job = str(uuid.uuid4())
    done = [insert(database, server, str(ROWS), "--job", job) for _ in range(2)]
    assert [each.returncode for each in done] == [0, 0], done
    assert done[0].stdout == done[1].stdout
    assert done[0].stdout.startswith(f"job {job}: ids ")
    assert done[0].stdout.endswith(f"\n{ROWS} rows of this job are in doc.example_orders\n")
    assert database.count() == ROWS


@pytest.mark.parametrize(
    "fault",
    [{"kind": "drop"}, {"kind": "drop", "applied": False}, {"kind": "error"}, {"kind": "partial"}],
    ids=["lost-reply", "lost-request", "no-master", "partial"],
)
def test_a_failed_batch_is_retried(database: Database, server: Server, fault: dict[str, Any]) -> None:
    """A batch whose reply is lost, or that was written in part, is retried without a double row."""
    database.fail(**fault)
    done = insert(database, server, str(ROWS))
    assert done.returncode == 0, done
    assert done.stdout.endswith(f"\n{ROWS} rows of this job are in doc.example_orders\n")
    assert database.count() == ROWS


def test_a_killed_job_is_repeated_with_the_same_ids(database: Database, server: Server) -> None:
    """P7: a job that was killed after a batch continues under its UUID, with the same ids."""
    job = str(uuid.uuid4())
    database.fail(kind="hang")  # the batch is written, and its reply never arrives
    env = environment(server=server.address) | {"CRATEDB": database.url}
    arguments = command("insert_rows.py", str(ROWS), "--job", job)
    with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first = process.stdout.readline()
        wait_until(database.count, "the first batch is written")
        process.kill()
    done = insert(database, server, str(ROWS), "--job", job)
    assert done.returncode == 0, done
    assert done.stdout.startswith(first)
    assert database.count() == ROWS


def allocated(server: Server, count: int) -> tuple[str, int]:
    """Return a job and the first id that it will get."""
    job = str(uuid.uuid4())
    with idalloc.Client(server.address) as client:
        return job, client.allocate_range("example_orders", count, request_id=job).first_id


def test_rejected_rows_are_reported(database: Database, server: Server) -> None:
    """A row that CrateDB rejects ends the program at once, with CrateDB's message."""
    job, first = allocated(server, 10)
    database.execute(
        "CREATE TABLE doc.example_orders (id BIGINT PRIMARY KEY, job TEXT,"
        f" what TEXT CONSTRAINT few CHECK (what <> 'order {first}'))"
    )
    done = insert(database, server, "10", "--job", job)
    assert done.returncode == 1
    assert done.stderr.startswith(f"CrateDB: 1 rows were not written, such as ({first}, ")
    assert "Failed CONSTRAINT few" in done.stderr


def test_ids_of_other_rows_are_reported(database: Database, server: Server) -> None:
    """If rows that did not come from the sequence have its ids, the program says so."""
    job, first = allocated(server, 10)
    database.execute(
        "CREATE TABLE doc.example_orders (id BIGINT PRIMARY KEY, job TEXT, what TEXT)",
        f"INSERT INTO doc.example_orders (id, what) VALUES ({first}, 'imported')",
    )
    done = insert(database, server, "10", "--job", job)
    assert done.returncode == 1
    assert done.stderr == "CrateDB: other rows have 1 of these ids: advance the sequence past them\n"


def test_rows_report_an_unreachable_server(database: Database) -> None:
    """Without a server, the example that inserts rows prints one line."""
    line = error_line("insert_rows.py", CRATEDB=database.url)
    assert line.startswith(f"idalloc: no answer from {UNREACHABLE}")


def test_rows_report_an_unreachable_cratedb() -> None:
    """Without CrateDB, the example that inserts rows prints one line."""
    line = error_line("insert_rows.py", CRATEDB=f"http://{UNREACHABLE}")
    assert line.startswith("CrateDB: ")
    assert "Connection refused" in line


# invoice_service.py


@dataclass(eq=False)
class Service:
    """The web service in a process of its own."""

    url: str  # where invoices are posted

    def post(self, key: str | None = None) -> tuple[int, dict[str, str], str]:
        """Post an invoice. Return the status, the headers and the body."""
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            with urlopen(Request(self.url, method="POST", headers=headers), timeout=30) as reply:
                return reply.status, dict(reply.headers), reply.read().decode()
        except HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read().decode()

    def number(self, key: str) -> str:
        """Return the number of a new invoice."""
        status, _, body = self.post(key)
        assert status == 201, body
        return str(json.loads(body)["number"])


@contextmanager
def serving_invoices(server: str) -> Iterator[Service]:
    arguments = [sys.executable, "-m", "uvicorn", "invoice_service:app", "--port", "0"]
    process = subprocess.Popen(
        arguments, cwd=EXAMPLES, env=environment(server=server), stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    try:
        assert process.stderr
        for line in process.stderr:
            lines.append(line)
            if "running on " in line:
                break
        address = lines[-1].partition("running on ")[2].split(" ")[0]
        assert address, "".join(lines)
        yield Service(f"{address}/invoices")
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
        print("".join(lines), rest)
    assert "Application shutdown complete" in rest  # its client was closed


def key() -> str:
    return str(uuid.uuid4())


def test_a_retried_invoice_gets_the_same_number(tmp_path: Path) -> None:
    """P7: one key gets one number, even after a restart; no number without a key or a server."""
    one, reused = key(), key()
    with running(tmp_path) as server, serving_invoices(server.address) as service:
        first = service.number(one)
        assert (first[:4], first[8:]) == ("INV-", "-000001")
        second = service.number(key())
        assert second > first
        assert service.number(one) == first
        for missing in (None, "", "7", str(uuid.uuid1())):
            status, _, body = service.post(missing)
            assert (status, body) == (400, "the header Idempotency-Key must be a UUID of version 4")
        with idalloc.Client(server.address) as client:
            client.allocate_range("orders", request_id=reused)
        status, _, body = service.post(reused)
        assert (status, json.loads(body)) == (409, {"error": "REQUEST_ID_REUSED"})
        server.stop()
        status, headers, body = service.post(one)
        assert (status, headers["retry-after"], json.loads(body)) == (503, "1", {"error": "SERVER_UNREACHABLE"})
        with running(tmp_path, listen=server.address):
            wait_until(lambda: service.post(one)[0] == 201, "a repeat as Retry-After says")
            assert service.number(one) == first
            assert service.number(key()) > second


# sqlalchemy_models.py


def models_print_ids(server: Server, database: str) -> None:
    done = run("sqlalchemy_models.py", "3", server=server.address, DATABASE=database)
    assert done.returncode == 0, done
    assert re.fullmatch(r"order (\d+) with 3 lines\norder (?!\1)\d+ with 3 lines\n", done.stdout)


def test_models_get_ids(server: Server, tmp_path: Path) -> None:
    """The SQLAlchemy example inserts rows with ids from the server."""
    models_print_ids(server, f"sqlite:///{tmp_path}/shop.db")


def test_models_get_ids_in_cratedb(database: Database, server: Server) -> None:
    """The SQLAlchemy example works with CrateDB's dialect."""
    models_print_ids(server, database.url.replace("http", "crate"))


@pytest.mark.parametrize("applied", [False, True], ids=["rolled-back", "reply-lost"])
def test_a_lost_transaction_is_repeated_with_its_ids(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """A transaction that loses its connection at COMMIT is repeated; its rows are stored once."""
    monkeypatch.setenv("IDALLOC_SERVER", server.address)
    monkeypatch.setattr(ext, "_clients", {})
    models = load("sqlalchemy_models.py")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    models.Base.metadata.create_all(engine)
    faults = [applied]

    @sa.event.listens_for(engine, "commit")
    def lose(connection: sa.Connection) -> None:
        if faults:
            if faults.pop():
                connection.connection.commit()
            raise sa.exc.OperationalError("COMMIT", {}, ConnectionError("lost"))

    order = models.save_with_retries(engine, "somebody", ["one", "two"])
    with engine.connect() as connection:
        assert connection.scalars(sa.select(models.Order.id)).all() == [order]
        rows = connection.execute(sa.select(models.Line.order_id, models.Line.what).order_by(models.Line.id)).all()
    assert [tuple(row) for row in rows] == [(order, "one"), (order, "two")]
    engine.dispose()
    ext._clients[server.address].close()
    assert not faults


def load(example: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(example).stem, EXAMPLES / example)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_models_report_an_unreachable_server(tmp_path: Path) -> None:
    """Without a server, the SQLAlchemy example prints one line."""
    line = error_line("sqlalchemy_models.py", DATABASE=f"sqlite:///{tmp_path}/shop.db")
    assert f"no answer from {UNREACHABLE}" in line


def test_models_report_an_unreachable_cratedb() -> None:
    """Without CrateDB, the SQLAlchemy example prints one line."""
    assert "Connection refused" in error_line("sqlalchemy_models.py", DATABASE=f"crate://{UNREACHABLE}")


@pytest.mark.parametrize(("example", "name"), [("insert_rows.py", "ROWS"), ("sqlalchemy_models.py", "LINES")])
def test_an_invalid_count_is_a_usage_error(example: str, name: str) -> None:
    """An invalid number of rows is a usage error with exit code 2."""
    done = run(example, "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: {example} ")
    assert f"{example}: error: {name} must be " in done.stderr
