"""The plugin on the dialects of CrateDB and PostgreSQL, with schemas of real programs."""

import asyncio
import getpass
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import create_async_engine

from bench import rivals
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_server import FakeServer


def stopgap_models(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """Return MLflow's models of experiments, runs and metrics, with its adapter's stopgap."""
    support = pytest.importorskip("sqlalchemy_cratedb.support")
    monkeypatch.setattr(sa.Column, "__init__", sa.Column.__init__)
    support.patch_autoincrement_timestamp()
    base: Any = orm.declarative_base()

    class Experiment(base):  # type: ignore[misc]
        __tablename__ = "experiments"
        __table_args__ = (sa.PrimaryKeyConstraint("experiment_id", name="experiment_pk"),)
        experiment_id = sa.Column(sa.Integer, autoincrement=True)
        name = sa.Column(sa.String(256), nullable=False)

    class Run(base):  # type: ignore[misc]
        __tablename__ = "runs"
        __table_args__ = (sa.PrimaryKeyConstraint("run_uuid", name="run_pk"),)
        run_uuid = sa.Column(sa.String(32), nullable=False)
        experiment_id = sa.Column(sa.Integer, sa.ForeignKey("experiments.experiment_id"))

    class Metric(base):  # type: ignore[misc]
        __tablename__ = "metrics"
        __table_args__ = (sa.PrimaryKeyConstraint("run_uuid", "step", name="metric_pk"),)
        run_uuid = sa.Column(sa.String(32))
        step = sa.Column(sa.BigInteger, default=0, nullable=False)

    return Experiment, Run, Metric


async def test_cratedbs_stopgap_is_replaced(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In CrateDB, keys with the default now() get ids past the rows; the log names a table once."""
    experiment, run, metric = stopgap_models(monkeypatch)
    # LangChain's messages.
    key = sa.Column("id", sa.BigInteger, primary_key=True, server_default=sa.func.now())
    messages = sa.Table("messages", sa.MetaData(), key, sa.Column("message", sa.Text))
    assert experiment.__table__.c.experiment_id.default is not None
    tables = [
        "experiments (experiment_id BIGINT PRIMARY KEY, name TEXT)",
        "runs (run_uuid TEXT PRIMARY KEY, experiment_id BIGINT)",
        "metrics (run_uuid TEXT PRIMARY KEY, step BIGINT)",
        "messages (id BIGINT PRIMARY KEY, message TEXT)",
    ]

    def use(host: str) -> list[int]:
        engine = sa.create_engine(f"crate://{host}/?schema=shop&plugin=idalloc&idalloc_server={server.target}")
        with orm.Session(engine) as session:
            for table in tables:
                session.connection().exec_driver_sql(f"CREATE TABLE {table}")
            session.connection().exec_driver_sql("INSERT INTO experiments (experiment_id, name) VALUES (41, 'old')")
            session.add_all(added := [experiment(name="a"), experiment(name="b")])
            session.flush()
            session.add_all([run(run_uuid="a", experiment_id=added[0].experiment_id), metric(run_uuid="a")])
            session.flush()
            said = [session.connection().execute(messages.insert(), {"message": each}) for each in "ab"]
            keys = [
                *(each.experiment_id for each in added),
                *(key for each in said for key in each.inserted_primary_key or ()),
            ]
            session.rollback()
        engine.dispose()
        return keys

    async with CrateEmulator() as crate:
        assert await asyncio.to_thread(use, crate.host) == [42, 43, 1, 2]
        assert not crate.unknown
        refreshed = [text for _, text in crate.requests if "REFRESH" in text]
    assert refreshed == ["REFRESH TABLE experiments", "REFRESH TABLE messages"]
    created = [(each.sequence.name, each.sequence.start) for each in server.requests["CreateSequence"]]
    assert created == [("shop.experiments", 42), ("shop.messages", 1)]
    logged = [each.getMessage() for each in caplog.records if each.name == "idalloc.ext.sqlalchemy"]
    of = "the keys of {} come from idalloc, in place of its default now()"
    assert logged == [of.format("experiments"), of.format("messages")]


def test_other_dialects_keep_a_default_of_now(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default now() is the program's own choice in other databases than CrateDB."""
    experiment, *_ = stopgap_models(monkeypatch)
    engine = sa.create_engine(f"sqlite://?plugin=idalloc&idalloc_server={server.target}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE experiments (experiment_id TEXT, name TEXT)")
        connection.execute(sa.insert(experiment.__table__), {"name": "a"})
    engine.dispose()
    assert not server.requests["AllocateRange"]


@pytest.mark.test_long
async def test_postgresql_threads_and_tasks(server: FakeServer) -> None:
    """PostgreSQL: both kinds of engines, RETURNING in order, and a table that is locked."""
    pytest.importorskip("psycopg")
    if not shutil.which("postgres"):
        pytest.skip("PostgreSQL is not installed")
    table = sa.Table(
        "items", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("n", sa.Integer)
    )
    # Not in pytest's folder, which other users cannot enter: PostgreSQL does not run as root.
    with tempfile.TemporaryDirectory() as folder, rivals.postgres(Path(folder)) as postgres:
        owner = "nobody" if os.geteuid() == 0 else getpass.getuser()
        url = f"postgresql+psycopg://{owner}@{postgres.address}/postgres"
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
