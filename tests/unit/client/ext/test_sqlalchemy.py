"""Ids as defaults of SQLAlchemy's columns, in SQLite."""

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
def server() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


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


def test_models_get_their_ids_also_in_bulk(server: FakeServer, engine: sa.Engine) -> None:
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


def test_executemany_of_a_table(server: FakeServer, engine: sa.Engine) -> None:
    with idalloc.Client(server.target) as client, engine.begin() as connection:
        orders = table(client)
        orders.create(connection)
        connection.execute(orders.insert(), [{"what": "it"}] * 1000)
        assert connection.execute(orders.insert().values(what="it")).inserted_primary_key == (1001,)
        assert connection.scalars(sa.select(orders.c.id).order_by(orders.c.id)).all() == list(range(1, 1002))


def test_the_client_is_made_when_it_is_needed_and_shared(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext, "_clients", {})
    first, second = idalloc_default("orders"), idalloc_default("invoices")
    assert not ext._clients
    monkeypatch.setenv("IDALLOC_SERVER", server.target)
    assert (first(), first(), second()) == (1, 2, 1)
    [client] = ext._clients.values()
    assert client.target == server.target
    client.close()


def test_threads_share_it(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext, "_clients", {})
    monkeypatch.setenv("IDALLOC_SERVER", server.target)
    default = idalloc_default("orders")
    with ThreadPoolExecutor(16) as threads:
        runs = list(threads.map(lambda _: [default() for _ in range(500)], range(16)))
    assert sorted(value for run in runs for value in run) == list(range(1, 8001))
    ext._clients[server.target].close()


def test_a_sequence_that_starts_over_is_no_source_of_keys(server: FakeServer) -> None:
    server.period = "2026"
    with idalloc.Client(server.target) as client, pytest.raises(idalloc.InvalidRequest, match="allocate_texts"):
        idalloc_default("invoices", client)()


def test_cratedbs_dialect_sends_the_ids(server: FakeServer) -> None:
    dialect = pytest.importorskip("sqlalchemy_cratedb").dialect()
    statement = table(None).insert().values(id=1, what="it").compile(dialect=dialect)
    assert "id" in str(statement)


def test_the_client_alone_does_not_load_sqlalchemy() -> None:
    script = "import sys, idalloc; idalloc.Client; import idalloc.cli; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=30).returncode == 0
