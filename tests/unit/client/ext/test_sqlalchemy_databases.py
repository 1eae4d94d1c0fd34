"""The plugin on the dialects of CrateDB and PostgreSQL, with schemas of real programs."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_server import FakeServer
from tests.support.postgres import postgresql


def tables(monkeypatch: pytest.MonkeyPatch) -> list[sa.Table]:
    """Return MLflow's tables as its adapter makes them, and LangChain's messages."""
    support = pytest.importorskip("sqlalchemy_cratedb.support")
    monkeypatch.setattr(sa.Column, "__init__", sa.Column.__init__)
    support.patch_autoincrement_timestamp()
    experiment = sa.Column("experiment_id", sa.Integer, autoincrement=True)
    run, key = sa.Column("run_uuid", sa.String(32)), sa.Column("key", sa.String(250))
    step = sa.Column("step", sa.BigInteger, default=0, nullable=False)
    message = sa.Column("id", sa.BigInteger, server_default=sa.func.now())
    columns: dict[str, list[Any]] = {
        "experiments": [experiment],
        "runs": [run],
        "metrics": [key, step],
        "messages": [message],
    }
    return [
        sa.Table(name, sa.MetaData(), *keys, sa.Column("name", sa.Text), sa.PrimaryKeyConstraint(*keys))
        for name, keys in columns.items()
    ]


@pytest.mark.parametrize(("schema", "argument"), [("shop", {}), ("other", {"schema": "shop"})], ids=["url", "argument"])
async def test_cratedbs_stopgap_is_replaced(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, schema: str, argument: Any
) -> None:
    """In CrateDB, keys with the default now() get ids past the rows; the log names a table once."""
    experiments, runs, metrics, messages = tables(monkeypatch)
    assert experiments.c.experiment_id.default is not None

    def use(host: str) -> list[Any]:
        url = f"crate://{host}/?schema={schema}&plugin=idalloc&idalloc_server={server.target}"
        engine = sa.create_engine(url, connect_args=argument)
        with engine.begin() as connection:
            for table in (experiments, runs, metrics, messages):
                [key, *_] = table.primary_key
                column = f"{key.name} {'TEXT' if isinstance(key.type, sa.String) else 'BIGINT'} PRIMARY KEY"
                connection.exec_driver_sql(f"CREATE TABLE {table} ({column}, name TEXT, step BIGINT)")
            connection.exec_driver_sql("INSERT INTO experiments (experiment_id, name) VALUES (41, 'old')")
            rows = [(experiments, {"name": "a"}), (experiments, {"name": "b"}), (runs, {"run_uuid": "a"})]
            rows += [(metrics, {"key": "a"}), (messages, {"name": "a"}), (messages, {"name": "b"})]
            keys = [connection.execute(each.insert(), row).inserted_primary_key for each, row in rows]
        engine.dispose()
        return [tuple(each or ()) for each in keys]

    async with CrateEmulator() as crate:
        assert await asyncio.to_thread(use, crate.host) == [(42,), (43,), ("a",), ("a", 0), (1,), (2,)]
        assert not crate.unknown
        refreshed = [text for _, text in crate.requests if "REFRESH" in text]
    assert refreshed == ["REFRESH TABLE experiments", "REFRESH TABLE messages"]
    created = [(each.sequence.name, each.sequence.start) for each in server.requests["CreateSequence"]]
    assert created == [("shop.experiments", 42), ("shop.messages", 1)]
    logged = [each.getMessage() for each in caplog.records if each.name == "idalloc.ext.sqlalchemy"]
    of = "the keys of {} come from idalloc, in place of its default now()"
    assert logged == [of.format("experiments"), of.format("messages")]


@pytest.mark.test_long
async def test_postgresql_threads_and_tasks(server: FakeServer) -> None:
    """PostgreSQL: both kinds of engines, RETURNING in order, and a table that is locked."""
    pytest.importorskip("psycopg")
    table = sa.Table("items", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("n", sa.INT))
    with postgresql() as (owner, address):
        url = f"postgresql+psycopg://{owner}@{address}/postgres"
        own = f"?plugin=idalloc&idalloc_server={server.target}&idalloc_timeout=1"
        engine = sa.create_engine(url + own)
        table.create(engine)
        with engine.begin() as connection:
            connection.execute(table.insert(), {"id": 41})
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE items ADD COLUMN m TEXT")
            with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                connection.execute(table.insert(), {"n": 1})
        ordered = table.insert().returning(table.c.id, table.c.n, sort_by_parameter_order=True)
        with engine.begin() as connection:
            rows = connection.execute(ordered, [{"n": n} for n in range(3000)]).all()
        assert [tuple(row) for row in rows] == [(42 + n, n) for n in range(3000)]
        engine.dispose()
        aio = create_async_engine(url + own)

        async def add(number: int) -> int:
            async with aio.begin() as session:
                key: Any = (await session.execute(table.insert(), {"n": number})).inserted_primary_key
                return int(key[0])

        assert sorted(await asyncio.gather(*map(add, range(10)))) == [*range(3042, 3052)]
        await aio.dispose()
    assert [each.sequence.name for each in server.requests["CreateSequence"]] == ["public.items"]
