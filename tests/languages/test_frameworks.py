"""The programs of docs/guides/frameworks.md insert rows from several processes at once."""

import json
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import idalloc
from tests.languages.programs import EXAMPLES, LANGUAGES, Language, minimum
from tests.support.documents import blocks
from tests.support.environments import django_packages
from tests.support.paths import ROOT
from tests.support.postgres import postgresql
from tests.support.processes import Server, environment, running

# With cold caches a build downloads its packages, and compiles some.
MARKS = [pytest.mark.languages, pytest.mark.timeout(900)]

PROCESSES, ROWS = 3, 2500  # the last batch of a process is smaller
BEYOND_NUMBER = 2**53 + 1  # the first integer that JavaScript's Number rounds; no database begins there
GO_BINARY = ROOT / ".build" / "languages" / "databasesql"
BLOCKS = blocks((ROOT / "docs/guides/frameworks.md").read_text())
# By heading of the page.
SHOWN = {
    "Django": "python/django_models.py",
    "database/sql": "frameworks/databasesql/main.go",
    "TypeORM": "frameworks/typeorm/src/orders.ts",
    "Hibernate": "frameworks/hibernate/src/main/java/Orders.java",
}


def go_steps() -> list[list[str]]:
    """Return Go's commands."""
    return [["go", "build", "-o", str(GO_BINARY), "."], ["go", "vet", "."]]


def npm_steps() -> list[list[str]]:
    """Return npm's commands. It installs once, since it may compile SQLite's driver for minutes."""
    folder = EXAMPLES / "frameworks" / "typeorm"
    lock, installed = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    is_installed = installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime
    install = [] if is_installed else [["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"]]
    return [*install, ["npm", "run", "build"]]


def maven_steps() -> list[list[str]]:
    """Return Maven's commands: for the client, without its tests, and the program."""
    skipped = ["-DskipTests", "-Dmaven.javadoc.skip", "-Dmaven.source.skip"]
    return [["mvn", "-B", "-q", "-f", "with-client.xml", "package", *skipped]]


FRAMEWORKS = {
    "database/sql": Language(
        "frameworks/databasesql",
        (str(GO_BINARY),),
        go_steps,
        {"go": minimum("frameworks/databasesql/go.mod", r"^go (\S+)")},
    ),
    "django": Language("python", (sys.executable, "django_models.py")),
    "hibernate": Language(
        "frameworks/hibernate",
        ("java", "-cp", "target/classes:target/lib/*", "Orders"),
        maven_steps,
        {"javac": minimum("frameworks/hibernate/pom.xml", "<maven.compiler.release>(.+)<"), "mvn": "3.8.7"},
    ),
    "typeorm": Language("frameworks/typeorm", ("node", "dist/orders.js"), npm_steps, LANGUAGES["node"].tools),
}


@pytest.fixture(scope="module", params=list(FRAMEWORKS))
def framework(request: pytest.FixtureRequest) -> Language:
    """Return a framework with its program built; skip the test if that is impossible here."""
    found = FRAMEWORKS[request.param]
    if found.name == "frameworks/typeorm":
        request.getfixturevalue("builds").language("node")  # the package that it uses
    if missing := found.missing():
        pytest.skip(missing)
    found.build()
    return found


@contextmanager
def orders(folder: Path) -> Iterator[Server]:
    """Run a server with the sequence of the programs."""
    with running(folder) as server:
        with idalloc.Client(server.address) as client:
            client.sequences.create("orders", start=BEYOND_NUMBER)
        yield server


def start(stack: ExitStack, framework: Language, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a program, which the stack ends."""
    if framework.name == "python":
        variables["PYTHONPATH"] = str(django_packages())
    process = subprocess.Popen(
        [*framework.program, *arguments],
        cwd=framework.folder,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def sqlite_ids(file: Path) -> list[int]:
    """Return the ids in a SQLite file."""
    with closing(sqlite3.connect(file)) as table:
        return [row[0] for row in table.execute("SELECT id FROM orders")]


class H2:
    """An open file of H2. The process that opens it first serves it to others until it ends.

    Args:
        stack: Ends the process.
        framework: A built program, which has H2's library.
        file: The file.
    """

    def __init__(self, stack: ExitStack, framework: Language, file: Path) -> None:
        self._csv = file.with_suffix(".csv")
        url = f"jdbc:h2:file:{file};AUTO_SERVER=TRUE"
        self._shell = subprocess.Popen(
            ["java", "-cp", "target/lib/*", "org.h2.tools.Shell", "-url", url],
            cwd=framework.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(self._shell)
        stack.callback(self._shell.kill)
        assert self._shell.stdout
        assert any("Welcome" in line for line in self._shell.stdout), "H2 did not open the file"

    def ids(self) -> list[int]:
        """Return the ids in the table, and end."""
        self._shell.communicate(f"CALL CSVWRITE('{self._csv}', 'SELECT id FROM orders');\nexit\n", timeout=50)
        _, *ids = self._csv.read_text().split()
        return [int(each.strip('"')) for each in ids]


def check_ids(server: Server, ids: list[int], count: int) -> None:
    """Check that so many rows have ids of their own, from the sequence."""
    assert len(ids) == len(set(ids)) == count
    with idalloc.Client(server.address) as client:
        assert BEYOND_NUMBER <= min(ids) <= max(ids) < client.allocate_range("orders").first_id


class TestPrograms:
    """Each program, against a real server."""

    pytestmark = MARKS

    def test_no_id_comes_twice_in_three_processes(self, framework: Language, tmp_path: Path) -> None:
        """P1: three processes fill one table; each row has an id of its own, from the sequence."""
        file = tmp_path / "orders.db"
        with orders(tmp_path) as server, ExitStack() as stack:
            h2 = H2(stack, framework, file) if framework.name == "frameworks/hibernate" else None
            started = [start(stack, framework, server.address, str(file), str(ROWS)) for _ in range(PROCESSES)]
            for process in started:
                output, _ = process.communicate(timeout=100)
                assert process.returncode == 0, output
            check_ids(server, h2.ids() if h2 else sqlite_ids(file), PROCESSES * ROWS)

    def test_an_unmodified_program_gets_keys_by_its_url(self, tmp_path: Path) -> None:
        """P1: three processes of a stock SQLAlchemy program; only the URL knows idalloc."""
        stock = Language("frameworks", (sys.executable, "sqlalchemy_orders.py"))
        file = tmp_path / "orders.db"
        with orders(tmp_path) as server, ExitStack() as stack:
            url = f"sqlite:///{file}?timeout=60&plugin=idalloc&idalloc_sequence=orders&idalloc_server={server.address}"
            sqlite3.connect(file).execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer)").connection.close()
            for process in [start(stack, stock, url, str(ROWS)) for _ in range(PROCESSES)]:
                output, _ = process.communicate(timeout=100)
                assert (process.returncode, output) == (0, f"{ROWS} orders\n"), output
            check_ids(server, sqlite_ids(file), PROCESSES * ROWS)

    def test_rows_of_a_data_frame_have_ids(self, tmp_path: Path) -> None:
        """P1: two runs of the program for pandas number all rows differently."""
        rows = Language("frameworks", (sys.executable, "pandas_rows.py"))
        with running(tmp_path) as server, ExitStack() as stack:
            for _ in range(2):
                process = start(stack, rows, server.address, f"sqlite:///{tmp_path}/rows.db", "30000")
                output, _ = process.communicate(timeout=100)
                assert re.match("30000 rows: numbered in ", output), output
        with closing(sqlite3.connect(tmp_path / "rows.db")) as table:
            assert sorted(table.execute("SELECT id FROM measurements")) == [(n,) for n in range(1, 60_001)]

    def test_forks_of_a_django_process_have_ids_of_their_own(self, tmp_path: Path) -> None:
        """P8: models that were used before a fork take no id of the parent in its children."""
        file, count, forks = tmp_path / "orders.db", 500, str(ROOT / "tests/support/django_forks.py")
        forked = Language("python", (sys.executable, forks, "django_models.py"))
        with orders(tmp_path) as server, ExitStack() as stack:
            process = start(stack, forked, server.address, str(file), str(count), GRPC_ENABLE_FORK_SUPPORT="1")
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0, output
            check_ids(server, sqlite_ids(file), 4 * count)  # before the fork, and then in three processes

    @pytest.mark.parametrize("kind", ["sqlite3", "postgresql"])
    def test_djangos_fields_get_keys_in_each_way(self, kind: str, tmp_path: Path) -> None:
        """P1: save, bulk_create, admin, fixtures, a migration from AutoField, existing rows."""
        keys = Language("python", (sys.executable, str(ROOT / "tests/support/django_keys.py")))
        database = {"ENGINE": f"django.db.backends.{kind}", "NAME": str(tmp_path / "shop.db")}
        with running(tmp_path) as server, ExitStack() as stack:
            if kind == "postgresql":
                owner, address = stack.enter_context(postgresql())
                host, _, port = address.rpartition(":")
                database |= {"NAME": "postgres", "USER": owner, "HOST": host, "PORT": port}
            process = start(stack, keys, server.address, json.dumps(database))
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0, output


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, without indentation."""
    return re.split(r"\n{2,}", "\n".join(line.strip() for line in text.strip().splitlines()))


@pytest.mark.parametrize(("heading", "program"), SHOWN.items())
def test_the_page_shows_lines_of_the_program(heading: str, program: str) -> None:
    """Each paragraph of code under a heading of the page is in its program, which is short."""
    code = (EXAMPLES / program).read_text()
    shown = [part for each in BLOCKS if each.heading == heading for part in paragraphs(each.text)]
    assert [each for each in shown if each not in "\n\n".join(paragraphs(code))] == []
    assert shown
    assert len(code.splitlines()) <= 60


def test_hibernates_program_uses_this_version_of_the_client() -> None:
    """The program needs the version of the Java client that the repository has."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert minimum("frameworks/hibernate/pom.xml", r"idalloc-client</artifactId>\s*<version>(.+)<") == version
