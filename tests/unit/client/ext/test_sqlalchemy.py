"""Defaults of SQLAlchemy columns, in SQLite."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import idalloc
from idalloc.ext import sqlalchemy as ext
from idalloc.ext.sqlalchemy import idalloc_default
from tests.support.fake_server import FakeServer, serving


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    yield engine
    engine.dispose()


def table(client: idalloc.Client | None) -> sa.Table:
    return sa.Table(
        "orders",
        sa.MetaData(),
        sa.Column("id", sa.BigInteger, primary_key=True, default=idalloc_default("orders", client)),
        sa.Column("what", sa.String),
    )


def test_models_get_ids_in_bulk_inserts(server: FakeServer, engine: sa.Engine) -> None:
    """Rows of a model get unique primary keys in few calls, also in bulk inserts."""

    class Base(DeclarativeBase):
        pass

    with idalloc.Client(server.target) as client:

        class Order(Base):
            __tablename__ = "orders"
            id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, default=idalloc_default("orders", client))
            what: Mapped[str]

        Base.metadata.create_all(engine)
        with Session(engine) as session:
            first = Order(what="one")
            session.add(first)
            session.flush()
            assert first.id == 1
            session.add_all([Order(what="many") for _ in range(500)])
            session.execute(sa.insert(Order), [{"what": "bulk"} for _ in range(500)])
            returned = session.scalars(
                sa.insert(Order).returning(Order.id, sort_by_parameter_order=True),
                [{"what": "returned"} for _ in range(500)],
            ).all()
            session.add(Order(id=10_000, what="has one"))
            session.commit()
            ids = session.scalars(sa.select(Order.id).order_by(Order.id)).all()
    assert list(ids) == [*range(1, 1502), 10_000]
    assert list(returned) == sorted(returned)
    assert len(server.requests["AllocateRange"]) < 20


def test_executemany_gives_each_row_an_id(server: FakeServer, engine: sa.Engine) -> None:
    """Each row of an executemany gets the next id."""
    with idalloc.Client(server.target) as client, engine.begin() as connection:
        orders = table(client)
        orders.create(connection)
        connection.execute(orders.insert(), [{"what": "it"}] * 1000)
        assert connection.execute(orders.insert().values(what="it")).inserted_primary_key == (1001,)
        assert connection.scalars(sa.select(orders.c.id).order_by(orders.c.id)).all() == list(range(1, 1002))


def test_columns_share_a_client_created_on_first_use(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a client, all columns share one that is created with the first id."""
    monkeypatch.setattr(ext, "_clients", {})
    first, second = idalloc_default("orders"), idalloc_default("invoices")
    assert not ext._clients
    monkeypatch.setenv("IDALLOC_SERVER", server.target)
    assert (first(), first(), second()) == (1, 2, 1)
    [client] = ext._clients.values()
    assert client.target == server.target
    client.close()


@pytest.mark.parametrize("given", [True, False], ids=["clients", "environment"])
def test_defaults_of_two_servers_share_no_ids(server: FakeServer, monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    """P1: columns of one sequence name on two servers each get ids of their own server."""
    monkeypatch.setattr(ext, "_clients", {})
    with serving() as other, idalloc.Client(server.target) as one, idalloc.Client(other.target) as two:
        defaults = []
        for client in (one, two):
            monkeypatch.setenv("IDALLOC_SERVER", client.target)
            defaults.append(idalloc_default("orders", client if given else None))
            assert defaults[-1]() == 1
        assert [[default() for default in defaults] for _ in range(99)] == [[n, n] for n in range(2, 101)]
        for shared in ext._clients.values():
            shared.close()


def test_threads_can_share_a_default(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: threads that share a default get each id once."""
    monkeypatch.setattr(ext, "_clients", {})
    monkeypatch.setenv("IDALLOC_SERVER", server.target)
    default = idalloc_default("orders")
    with ThreadPoolExecutor(16) as threads:
        runs = list(threads.map(lambda _: [default() for _ in range(500)], range(16)))
    assert sorted(value for run in runs for value in run) == list(range(1, 8001))
    ext._clients[server.target].close()


def test_a_sequence_with_a_reset_is_rejected(server: FakeServer) -> None:
    """A sequence with a reset raises InvalidRequest, because its numbers repeat."""
    server.period = "2026"
    with idalloc.Client(server.target) as client, pytest.raises(idalloc.InvalidRequest, match="texts=True"):
        idalloc_default("invoices", client)()


def test_cratedbs_dialect_sends_ids(server: FakeServer) -> None:
    """CrateDB's dialect includes the id in an INSERT."""
    dialect = pytest.importorskip("sqlalchemy_cratedb").dialect()
    statement = table(None).insert().values(id=1, what="it").compile(dialect=dialect)
    assert "id" in str(statement)


def test_the_client_does_not_import_sqlalchemy() -> None:
    """Importing the client and the CLI does not import SQLAlchemy."""
    script = "import sys, idalloc; idalloc.Client; import idalloc.cli; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=30).returncode == 0
