"""`idalloc sequences advance --past-table`: its URL, its query and its errors."""

import sys
from typing import Any

import pytest

from idalloc.cli import _past_table
from idalloc.v1 import sequences_pb2 as pb
from tests.support.command_line import Command
from tests.support.fake_server import FakeServer


@pytest.mark.parametrize(
    ("url", "column"),
    [
        ("crate://crate@here:4200/doc.orders.id", ("http://here:4200", "crate", "doc", "orders", "id")),
        ("crate://here/doc.orders.id?tls=false", ("http://here:4200", None, "doc", "orders", "id")),
        ("crate://a%40b@[::1]/s.o%2Eo.Id?tls=true", ("https://[::1]:4200", "a@b", "s", "o.o", "Id")),
    ],
)
def test_url_names_host_and_column(url: str, column: tuple[str | None, ...]) -> None:
    """The URL names host, user, TLS, schema, table and column."""
    assert tuple(_past_table.parse_url(url)) == column


@pytest.mark.parametrize(
    "url",
    ["here", "http://h/a.b.c", "crate:///a.b.c", "crate://h:x/a.b.c", "crate://h/a.b.c?x=1", "crate://h/a.b.c#d"],
)
def test_invalid_url_is_rejected(server: FakeServer, run: Command, url: str) -> None:
    """An invalid URL is an error that shows the form."""
    line = run.error_line(2, "sequences", "advance", "orders", "--past-table", url)
    assert "must have the form crate://user@host:4200/schema.table.column" in line


@pytest.mark.parametrize("path", ["", "/", "/id", "/orders.id", "/doc..id", "/crate.doc.orders.id"])
def test_url_without_three_names_is_rejected(server: FakeServer, run: Command, path: str) -> None:
    """A URL must name schema, table and column."""
    line = run.error_line(2, "sequences", "advance", "orders", "--past-table", f"crate://u@here{path}")
    assert "must name schema, table and column" in line


@pytest.mark.parametrize(
    "authority", ["u:planted@here", "u:plan/ted@here", "u:plan?ted@here", ":planted@here", "u:planted@@"]
)
def test_url_with_password_is_rejected(server: FakeServer, run: Command, authority: str) -> None:
    """A URL with a password is an error that does not repeat it."""
    line = run.error_line(2, "sequences", "advance", "orders", "--past-table", f"crate://{authority}/doc.orders.id")
    assert "set it in the variable CRATEPW" in line
    assert "plan" not in line
    assert "ted" not in line


class Database:
    """A fake of crate.client.http.Client: it answers with one value, and keeps the statements."""

    def __init__(self, value: Any) -> None:
        self.value, self.statements = value, list[str]()
        self.credentials: tuple[str | None, str | None] = (None, None)

    def client(self, *_: Any, username: str | None, password: str | None, **__: Any) -> "Database":
        self.credentials = username, password
        return self

    def sql(self, statement: str) -> dict[str, Any]:
        self.statements.append(statement)
        return {"rows": [[self.value]]}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("user", "credentials"), [("alice@", ("alice", "s:e@c")), ("", (None, None))])
def test_password_is_read_from_variable(
    server: FakeServer,
    run: Command,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    credentials: tuple[str | None, str | None],
) -> None:
    """The password comes from CRATEPW, and only with a user."""
    database = Database(7)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    monkeypatch.setenv("CRATEPW", "s:e@c")
    server.sequences["orders"] = pb.Sequence(name="orders", step=1, remaining=5)
    run("sequences", "advance", "orders", "--past-table", f"crate://{user}here/doc.orders.id")
    assert database.credentials == credentials


@pytest.mark.parametrize(("step", "function"), [(1, "MAX"), (-3, "MIN")])
def test_advance_past_largest_id_of_column(
    server: FakeServer, run: Command, monkeypatch: pytest.MonkeyPatch, step: int, function: str
) -> None:
    """--past-table refreshes the table, and uses its largest id; smallest for a negative step."""
    database = Database(-77)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    server.sequences["orders"] = pb.Sequence(name="orders", step=step, remaining=5)
    url = 'crate://crate@here/My"schema.Orders.Id'
    run("sequences", "advance", "orders", "--past-table", url, "--period", "2026")
    relation = '"My""schema"."Orders"'
    assert database.statements == [f"REFRESH TABLE {relation}", f'SELECT {function}("Id") FROM {relation}']
    [request] = server.requests["AdvanceSequence"]
    assert (request.past, request.period) == (-77, "2026")


def test_empty_table_and_text_column_change_nothing(
    server: FakeServer, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty table and a column of texts advance nothing."""
    database = Database(None)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = ("sequences", "advance", "orders", "--past-table", "crate://here/doc.orders.id")
    assert "nothing to do" in run.error_line(0, *line)
    database.value = "x"
    assert "must hold whole numbers, not 'x'" in run.error_line(1, *line)
    assert not server.requests["AdvanceSequence"]


def test_missing_crate_package_names_the_extra(
    server: FakeServer, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package crate, the error names what to install."""
    monkeypatch.setitem(sys.modules, "crate.client", None)
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = run.error_line(2, "sequences", "advance", "orders", "--past-table", "crate://here/doc.orders.id")
    assert "pip install 'idalloc[crate]'" in line


def test_unreachable_cratedb_is_one_line(server: FakeServer, run: Command) -> None:
    """An unreachable CrateDB is one line with its address."""
    pytest.importorskip("crate")
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = run.error_line(1, "sequences", "advance", "orders", "--past-table", "crate://u@127.0.0.1:1/doc.orders.id")
    assert line == "cannot reach CrateDB at http://127.0.0.1:1: Connection refused"


def test_cratedb_error_is_one_line(server: FakeServer, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of CrateDB is its first line."""

    def fail(_: str) -> None:
        raise exceptions.ProgrammingError("RelationUnknown: Relation 'doc.orders' unknown\n<html>and a page more")

    exceptions = pytest.importorskip("crate.client.exceptions")
    database = Database(None)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    monkeypatch.setattr(database, "sql", fail)
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = run.error_line(1, "sequences", "advance", "orders", "--past-table", "crate://here/doc.orders.id")
    assert line == "CrateDB at http://here:4200: RelationUnknown: Relation 'doc.orders' unknown"
