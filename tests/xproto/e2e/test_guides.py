"""The guide of MySQL's clients does what it says; a table has the operations of the code."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from idalloc_server.auth.access import ADMIN
from idalloc_xproto import operations
from tests.e2e.test_guides import GUIDES
from tests.support.documents import run_page
from tests.support.environments import mysqlx_python
from tests.support.paths import ROOT
from tests.support.processes import running


@pytest.fixture
def mysqlx() -> Path:
    """A Python with MySQL's client, which the first use installs."""
    return mysqlx_python()


@pytest.mark.test_long
@pytest.mark.timeout(300)
def test_mysql_clients_get_what_the_guide_shows(mysqlx: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The programs of the guide print what it shows, with MySQL's own Python client."""
    assert mysqlx.is_relative_to(ROOT / ".venv-mysqlx")
    files = ["examples", ".venv-mysqlx"]
    run_page("docs/guides/mysql-xdevapi.md", tmp_path, subtests, files=files)


@pytest.mark.test_long
@pytest.mark.timeout(300)
def test_the_guide_names_the_error_of_each_refused_statement(mysqlx: Path, tmp_path: Path) -> None:
    """Each statement of the guide's table ends with its error, and the collection is as before."""
    page = (GUIDES / "mysql-xdevapi.md").read_text().partition("## What is out")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.*)` \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) > 10
    statements = [*(statement for statement, _ in rows), "orders.add({'_id': 'first'})", "orders.find('price = 3')"]
    with running(tmp_path, xproto_listen="127.0.0.1:0") as server:
        uri = f"mysqlx://shop:any@{server.xproto}?ssl-mode=DISABLED"
        script = ROOT / "tests/xproto/support/mysql/run_statements.py"
        done = subprocess.run([mysqlx, script, uri], input=json.dumps(statements), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors = [*(int(error) for _, error in rows), 5116, 0]
    assert dict(zip(statements, json.loads(done.stdout), strict=True)) == dict(zip(statements, errors, strict=True))


def test_the_guide_has_every_operation_on_documents() -> None:
    """The guide names each audited operation: those that need admin, those logged if denied."""
    known = {each for each in vars(operations).values() if isinstance(each, operations.Operation)}
    page = (GUIDES / "access-control.md").read_text()
    bullet = page.partition("- `method` is `xproto/` and ")[2].partition("\n- ")[0]
    changing, denied = ({*re.findall(r"`([a-z]\w*)`", text)} for text in bullet.split(" A denied statement "))
    assert changing == {each.name for each in known if each.role == ADMIN}
    assert denied == {each.name for each in known if each.role != ADMIN} | {"why"}
