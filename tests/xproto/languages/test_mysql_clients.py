"""The programs of examples/mysql, with MySQL's own clients, against a real server."""

import re
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.languages.conftest import Secrets
from tests.languages.programs import EXAMPLES, LANGUAGES, Language, java_steps
from tests.support.environments import mysqlx_python
from tests.support.paths import ROOT
from tests.support.processes import environment, running

# With cold caches a build downloads its packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

FOLDER = EXAMPLES / "mysql"
IDS_A_RUN = 3


def node_steps() -> list[list[str]]:
    """Return npm's commands."""
    return [["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"]]


CLIENTS = {
    "java": Language("mysql/java", ("java", "-cp", "target/lib/*", "Add.java"), java_steps, LANGUAGES["java"].tools),
    "node": Language("mysql/node", ("node", "add.js"), node_steps, LANGUAGES["node"].tools),
    "python": Language("mysql/python", ("python", "add.py")),
}


@pytest.fixture(scope="module", params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> Language:
    """Return a program with its client installed; skip the test if that is impossible here."""
    client = CLIENTS[request.param]
    if client.name == "mysql/python":
        return Language(client.name, (str(mysqlx_python()), "add.py"))
    if missing := client.missing():
        pytest.skip(missing)
    client.build()
    return client


def run(client: Language, uri: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program."""
    variables = environment() | {"MYSQLX_URI": uri} if uri else environment()
    return subprocess.run(client.program, cwd=client.folder, env=variables, capture_output=True, text=True, timeout=120)


def ids(client: Language, uri: str) -> list[str]:
    """Return the ids that a program prints."""
    done = run(client, uri)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def ssl(client: Language, mode: str) -> str:
    """Return the part of a URI that selects a mode of TLS."""
    return f"{'xdevapi.' if client.name == 'mysql/java' else ''}ssl-mode={mode}"


def test_a_program_prints_the_ids_of_its_documents(client: Language, tmp_path: Path) -> None:
    """F4, F5: the server makes and returns each document's id; a second run gets larger ones."""
    with running(tmp_path, xproto_listen="127.0.0.1:0", node_prefix=7) as server:
        uri = f"mysqlx://shop:any@{server.xproto}?{ssl(client, 'DISABLED')}"
        first, second = ids(client, uri), ids(client, uri)
    assert len(first) == len(second) == IDS_A_RUN
    assert all(re.fullmatch("0007[0-9a-f]{24}", each) for each in first + second)
    assert first + second == sorted({*first, *second})


def test_a_program_logs_in_with_a_token(client: Language, secrets: Secrets, tmp_path: Path) -> None:
    """With access an identity logs in over TLS by name and token; another token does not."""
    token = quote(secrets.token_file.read_text().strip(), safe="")
    with running(tmp_path, xproto_listen="127.0.0.1:0", **secrets.settings) as server:
        at = f"@{server.xproto}?{ssl(client, 'REQUIRED')}"
        assert len(ids(client, f"mysqlx://tests:{token}{at}")) == IDS_A_RUN
        refused = run(client, f"mysqlx://tests:wrong{at}")
    assert refused.returncode != 0
    assert "Access denied for user 'tests'" in refused.stderr


def test_the_lock_of_the_python_client_is_the_tested_one() -> None:
    """The example installs the version with which the tests run."""
    locks = (FOLDER / "python" / "requirements.txt", ROOT / "requirements" / "mysqlx.txt")
    assert locks[0].read_text() == locks[1].read_text()
