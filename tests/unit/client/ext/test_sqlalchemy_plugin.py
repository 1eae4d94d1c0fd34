"""The plugin of SQLAlchemy's engines, in SQLite: each way to insert rows, and existing tables."""

import asyncio
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import idalloc
from idalloc.ext.sqlalchemy_plugin import KeyConflict
from tests.support.fake_server import FakeServer
from tests.unit.client import test_fork


class Base(orm.DeclarativeBase):
    pass


def kind_of(row: Any) -> str:
    return "order" if row.get_current_parameters() else ""


class Order(Base):
    __tablename__ = "orders"
    # The attribute's name is not the column's.
    number: orm.Mapped[int] = orm.mapped_column("id", sa.BigInteger, primary_key=True, autoincrement=True)
    what: orm.Mapped[str | None] = orm.mapped_column(unique=True)
    kind: orm.Mapped[str] = orm.mapped_column(default=kind_of)
    lines: orm.Mapped[list["Line"]] = orm.relationship()
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "order"}  # noqa: RUF012


class Gift(Order):
    __tablename__ = "gifts"
    number: orm.Mapped[int] = orm.mapped_column("id", sa.ForeignKey("orders.id"), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "gift"}  # noqa: RUF012


class Line(orm.MappedAsDataclass, Base):
    __tablename__ = "lines"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, init=False)
    order_id: orm.Mapped[int | None] = orm.mapped_column(sa.ForeignKey("orders.id"), default=None)


ORDERS: Any = Order.__table__
LINES: Any = Line.__table__
INSERT = ORDERS.insert()
MakeEngine = Callable[..., sa.Engine]
Way = Callable[[orm.Session], Any]


@pytest.fixture
def make(server: FakeServer, tmp_path: Path) -> Iterator[MakeEngine]:
    """Return a function that makes an engine on one file of SQLite, with the plugin and tables."""
    engines = []

    def make(*parameters: str, plugin: bool = True, file: str = "shop.db", **options: Any) -> sa.Engine:
        own = ["plugin=idalloc", f"idalloc_server={server.target}"] if plugin else []
        query = "&".join([*own, *parameters])
        engines.append(sa.create_engine(f"sqlite:///{tmp_path / file}?{query}", **options))
        Base.metadata.create_all(engines[-1])
        return engines[-1]

    yield make
    for each in engines:
        each.dispose()


@pytest.fixture
def engine(make: MakeEngine) -> sa.Engine:
    return make()


def insert(engine: sa.Engine, statement: Any = INSERT, row: Any = None) -> int:
    """Insert a row in a transaction of its own; return its key."""
    with engine.begin() as connection:
        key = connection.execute(statement, row).inserted_primary_key
        return int(key[0] if key else 0)


def ids(engine: sa.Engine, column: Any = ORDERS.c.id) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(column).order_by(column)))


def counts(server: FakeServer) -> list[int]:
    """Return how many ids each call requested."""
    return [request.id_count for request in server.requests["AllocateRange"]]


def flushed(*new: Callable[[], Any]) -> Way:
    def run(session: orm.Session) -> list[int]:
        session.add_all(added := [make() for make in new])
        session.flush()
        assert all(line.order_id == each.number for each in added for line in vars(each).get("lines", ()))
        return [sa.inspect(each).identity[0] for each in added]

    return run


def returned(statement: Any, rows: Any = None) -> Way:
    return lambda session: list(session.scalars(statement, rows) if rows else session.scalars(statement))


def executed(statement: Any, rows: Any = None) -> Way:
    return lambda session: session.connection().execute(statement, rows).close()


by_sa = sa.insert(Order).returning(Order.number, sort_by_parameter_order=True)
several = sa.insert(Order).values([{"kind": "order"}, {"kind": "order", "number": 7}]).returning(Order.number)
many = [{"what": f"{n}"} for n in range(3000)]
mixed: list[dict[str, Any]] = [{"what": "a"}, {"what": "b", "id": 7}]
upsert = sqlite.insert(ORDERS).values(what="new").on_conflict_do_update(index_elements=["what"], set_={"kind": "x"})
# What inserts rows, and may return their ids; the ids; how many of them each call requests.
WAYS: dict[str, tuple[Way, list[int], list[int]]] = {
    "flush": (flushed(*[Order] * 3000), [*range(1, 3001)], [3000]),
    "flush mixed": (flushed(Order, lambda: Order(number=500), Order), [1, 500, 2], [1, 1]),
    "flush related": (flushed(lambda: Order(lines=[Line(), Line()])), [1], [1, 2]),
    "flush inherited": (flushed(Gift, Gift), [1, 2], [2]),
    "flush dataclass": (flushed(Line, Line), [1, 2], [2]),
    "mappings": (lambda session: session.bulk_insert_mappings(sa.inspect(Order), [{}, {}]), [1, 2], [2]),
    "orm values": (returned(by_sa.values(what="a")), [1], [1]),
    "orm own": (returned(by_sa.values(number=7)), [7], []),
    "orm several": (returned(several), [1, 7], [1]),
    "orm bulk": (returned(by_sa, many), [*range(1, 3001)], [3000]),
    "orm bulk own": (returned(by_sa, [{"number": 8}, {"number": 7}]), [8, 7], []),
    "core": (executed(INSERT), [1], [1]),
    "core column": (executed(INSERT.values({ORDERS.c.id: 7})), [7], []),
    "core parameter": (executed(INSERT, {"id": 7}), [7], []),
    "core none": (executed(INSERT, {"id": None}), [1], [1]),
    "core value none": (executed(INSERT.values(id=None)), [1], [1]),
    "core value later": (executed(INSERT.values(id=sa.bindparam("k")), {"k": 7}), [7], []),
    "core stream": (executed(INSERT, [{}] * 20_001), [*range(1, 20_002)], []),
    "core many": (executed(INSERT, many), [*range(1, 3001)], [3000]),
    "core many mixed": (executed(INSERT, mixed), [1, 7], [1]),
    "core several": (executed(INSERT.values(mixed)), [1, 7], [1]),
    "core several none": (executed(INSERT.values([{"id": 7, "what": "b"}, {"id": None, "what": "a"}])), [1, 7], [1]),
    "core tuples": (executed(INSERT.values([(None, "a", "order"), (7, "b", "order")])), [1, 7], [1]),
    "upsert": (executed(upsert), [1], [1]),
    "pickled": (executed(pickle.loads(pickle.dumps(INSERT.values(what="a")))), [1], [1]),
    "select with ids": (executed(INSERT.from_select(["id"], sa.select(sa.literal(7)))), [7], []),
}
FORK = """
from tests.unit.client.ext.test_sqlalchemy_plugin import ORDERS, insert, sa
engine = sa.create_engine(f"sqlite:///{os.environ['SHOP']}?plugin=idalloc&idalloc_server={target}")
ORDERS.create(engine)
insert(engine)
engine.dispose()
fork(lambda: insert(engine), lambda: insert(engine))
"""


class TestInserts:
    @pytest.mark.parametrize("way", WAYS)
    def test_each_way_to_insert_gets_ids_by_one_call(self, engine: sa.Engine, server: FakeServer, way: str) -> None:
        """Rows without a key get ids by one call or stream a statement; given keys stay."""
        run, expected, requested = WAYS[way]
        server.limit = 10_000
        with orm.Session(engine) as session:
            assert (run(session) or list(session.scalars(sa.select(ORDERS.c.id)))) == expected
        assert (counts(server), len(server.requests["StreamRanges"])) == (requested, way == "core stream")
        assert (ORDERS.c.id.default, ORDERS.autoincrement_column) == (None, ORDERS.c.id)

    def test_an_engine_without_the_plugin_is_not_changed(self, make: MakeEngine, server: FakeServer) -> None:
        """Two engines share tables and compiled statements; that without the plugin gets no ids."""
        cache: dict[Any, Any] = {}
        with_plugin, without = (make(plugin=each).execution_options(compiled_cache=cache) for each in (True, False))
        for engine, expected in ((with_plugin, 1), (without, 1), (with_plugin, 2), (without, 1)):
            with engine.begin() as connection:
                connection.execute(LINES.delete())
            assert insert(engine, LINES.insert(), {"order_id": 1}) == expected
        assert counts(server) == [1, 1]

    def test_reflected_and_copied_tables_share_a_sequence(self, engine: sa.Engine, server: FakeServer) -> None:
        """A reflected table and a copy of a table's definition continue the table's sequence."""
        reflected = sa.Table("orders", sa.MetaData(), autoload_with=engine)
        for number, table in enumerate((reflected, ORDERS.to_metadata(sa.MetaData()), ORDERS), 1):
            assert insert(engine, table.insert(), {"kind": "order"}) == number
        assert [*server.sequences] == ["main.orders"]

    def test_a_translated_schema_has_a_sequence(self, make: MakeEngine, server: FakeServer, tmp_path: Path) -> None:
        """The name of a sequence has the schema that schema_translate_map gives a table."""
        engine = make().execution_options(schema_translate_map={None: "tenant"})
        sa.event.listen(engine.pool, "connect", lambda own, _: own.execute(f"ATTACH '{tmp_path}/t.db' AS tenant"))
        engine.pool.dispose()
        ORDERS.create(engine)
        assert [insert(engine, row={"id": 41}), insert(engine)] == [41, 42]
        assert [*server.sequences] == ["tenant.orders"]

    def test_rows_that_get_no_ids(self, engine: sa.Engine, server: FakeServer) -> None:
        """Other keys, tables without keys and text() get no ids; INSERT FROM SELECT is an error."""
        two = sa.Table("two", sa.MetaData(), *(sa.Column(name, sa.Integer, primary_key=True) for name in "ab"))
        own = sa.Table("own", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True, default=5))
        served = sa.Table("served", sa.MetaData(), sa.Column("id", sa.Integer, sa.Identity(), primary_key=True))
        for table in (two, own, served):
            table.create(engine)
            insert(engine, table.insert(), {"a": 1, "b": 1} if table is two else None)
        insert(engine, sa.table("lines", sa.column("order_id")).insert(), {"order_id": 1})
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO lines (order_id) VALUES (1)"))
        with pytest.raises(sa.exc.CompileError, match="the number of its rows is unknown"):
            insert(engine, ORDERS.insert().from_select(["what"], sa.select(sa.literal("a"))))
        assert counts(server) == []

    def test_a_rollback_loses_ids_and_repeats_none(self, engine: sa.Engine) -> None:
        """P1: ids of a transaction that was rolled back are a gap."""
        with orm.Session(engine) as session:
            for end in (session.rollback, session.commit):
                session.add(Order())
                session.flush()
                end()
        assert ids(engine) == [2]

    def test_threads_share_an_engine(self, make: MakeEngine) -> None:
        """P1: threads that insert rows at once get different ids."""
        engine = make(connect_args={"timeout": 30})
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: insert(engine), range(40)))
        assert ids(engine) == [*range(1, 41)]

    @pytest.mark.parametrize("file", ["/shop.db", ""], ids=["file", "memory"])
    async def test_the_event_loop_goes_on_meanwhile(self, server: FakeServer, tmp_path: Path, file: str) -> None:
        """The event loop runs while ids are fetched; in memory there is one connection."""
        url = f"sqlite+aiosqlite:///{file and str(tmp_path) + file}?plugin=idalloc&idalloc_server={server.target}"
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
            await connection.execute(ORDERS.insert(), {"id": 41})

        async def add() -> int:
            async with AsyncSession(engine) as session:
                session.add(order := Order())
                await session.flush()
                return order.number

        assert await add() == 42
        server.hold.clear()
        adding = asyncio.create_task(add())
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not adding.done()
        server.hold.set()
        assert await adding == 43
        await engine.dispose()


class TestExistingTables:
    def test_a_sequence_is_created_past_the_rows_in_one_call(self, make: MakeEngine, server: FakeServer) -> None:
        """P1: the first INSERT creates the sequence at max(id) + 1 in one call, never advanced."""
        engine = make("idalloc_margin=1000", pool_size=1, max_overflow=0, pool_timeout=1)
        insert(engine, row={"id": 41})
        opened: list[object] = []
        sa.event.listen(engine, "connect", lambda own, _: opened.append(own))
        with engine.begin() as connection:  # has the only connection of the pool, and a change that others do not see
            connection.execute(ORDERS.update().values(id=5000))
            assert [connection.execute(ORDERS.insert()).inserted_primary_key for _ in range(2)] == [(1042,), (1043,)]
        assert len(opened) == 1
        [created] = server.requests["CreateSequence"]
        assert (created.sequence.name, created.sequence.start) == ("main.orders", 1042)
        assert not server.requests["AdvanceSequence"]

    @pytest.mark.parametrize("margin", [0, 60_000])
    def test_old_writers_collide_unless_there_is_room(self, make: MakeEngine, margin: int) -> None:
        """A writer that goes on with now() writes an issued key, unless there is a margin."""
        engine = make(f"idalloc_margin={margin}")
        now = insert(engine, row={"id": 1_760_000_000_000})
        assert [insert(engine) for _ in range(5)] == [now + margin + n for n in range(1, 6)]
        with nullcontext() if margin else pytest.raises(sa.exc.IntegrityError):
            insert(engine, row={"id": now + 5})  # 5 ms later

    @pytest.mark.parametrize("upserts", [False, True], ids=["insert", "upsert"])
    def test_a_sequence_behind_the_rows_is_an_error(self, make: MakeEngine, server: FakeServer, upserts: bool) -> None:
        """P1: the first use of a sequence that is behind raises the command; no row changes."""
        engine = make()
        with idalloc.Client(server.target) as client:
            client.sequences.create("main.orders")
            client.sequences.advance("main.orders", 40)
        insert(engine, row={"id": 41, "what": "old"})
        overwrite = sqlite.insert(ORDERS).on_conflict_do_update(index_elements=["id"], set_={"what": "overwritten"})
        shown = r"has 41, .* 'main\.orders', 40: .*idalloc sequences advance main\.orders --past 41 \(or"
        with pytest.raises(sa.exc.StatementError, match=shown) as error:
            insert(engine, overwrite if upserts else INSERT)
        assert isinstance(error.value.orig, KeyConflict)
        assert (ids(engine, ORDERS.c.what), counts(server)) == (["old"], [])
        if upserts:  # what the comparison prevents
            insert(make("idalloc_existing=ignore"), overwrite)
            assert ids(engine, ORDERS.c.what) == ["overwritten"]

    def test_a_table_of_another_database_needs_another_name(self, engine: sa.Engine, make: MakeEngine) -> None:
        """P1: a table of the same name in another database is an error; idalloc_sequence helps."""
        insert(engine)
        insert(make(plugin=False, file="other.db"), row={"id": 7})
        with pytest.raises(sa.exc.StatementError, match="idalloc_existing=ignore"):
            insert(make(file="other.db"))
        assert insert(make("idalloc_sequence=other.{schema}.{table}", file="other.db")) == 8

    def test_processes_that_start_at_once_agree(self, make: MakeEngine, server: FakeServer) -> None:
        """P1: if another process creates the sequence first, this one compares it with the rows."""
        server.fail_next("GetSequence", "SEQUENCE_NOT_FOUND", grpc.StatusCode.NOT_FOUND, times=2)
        assert [insert(make()), insert(make())] == [1, 2]
        assert len(server.requests["CreateSequence"]) == 2

    def test_without_the_role_admin_the_error_has_the_command(self, engine: sa.Engine, server: FakeServer) -> None:
        """A token without the role admin: the error shows the command that creates the sequence."""
        insert(engine, LINES.insert(), {"id": 41})
        server.fail_next("CreateSequence", "PERMISSION_DENIED", grpc.StatusCode.PERMISSION_DENIED)
        with pytest.raises(sa.exc.StatementError, match=r"create main\.lines --start 42 --max-value 2147483647"):
            insert(engine, LINES.insert())
        assert counts(server) == []

    @pytest.mark.parametrize(
        ("kind", "limit"), [(sa.SmallInteger, 2**15 - 1), (sa.Integer, 2**31 - 1), (sa.BigInteger, 2**63 - 2)]
    )
    def test_the_type_bounds_a_sequence(self, engine: sa.Engine, server: FakeServer, kind: Any, limit: int) -> None:
        """A new sequence ends with the type; keys of now()'s size in INTEGER are an error."""
        table = sa.Table("t", sa.MetaData(), sa.Column("id", kind, primary_key=True))
        other = sa.Table("other", table.metadata, sa.Column("id", kind, primary_key=True))
        table.metadata.create_all(engine)
        assert insert(engine, table.insert()) == 1
        assert server.sequences["main.t"].max_value == limit
        insert(engine, other.insert(), {"id": min(limit * 1000, 2**63 - 2)})
        step = "create a sequence below them" if kind is sa.BigInteger else "declare it BigInteger; .* --start"
        with pytest.raises(sa.exc.StatementError, match=rf"exceed its limit, {limit}: {step}"):
            insert(engine, other.insert())


class TestConnection:
    def test_an_outage_ends_the_insert_with_a_named_error(self, make: MakeEngine) -> None:
        """Without a server the INSERT ends after idalloc_timeout, with OperationalError."""
        engine = make("plugin=idalloc", "idalloc_timeout=0.3", "idalloc_server=127.0.0.1:1", plugin=False)
        began = time.monotonic()
        with pytest.raises(sa.exc.OperationalError, match=r"ServerUnreachable|DeadlineExceeded") as error:
            insert(engine)
        assert isinstance(error.value.orig, idalloc.IdallocError)
        assert time.monotonic() - began < 4

    def test_several_plugins_and_parameters_share_a_url(self, make: MakeEngine) -> None:
        """The plugin takes its own parameters off the URL, and leaves those of others."""
        other = Mock(**{"update_url.side_effect": lambda url: url.difference_update_query(["other_x"])})
        sa.dialects.plugins.impls["other"] = lambda: lambda url, kwargs: other
        engine = make("plugin=other", "other_x=1", "timeout=7")
        other.engine_created.assert_called_once_with(engine)
        assert (dict(engine.url.query), insert(engine)) == ({"timeout": "7"}, 1)

    @pytest.mark.parametrize(
        ("parameter", "problem"),
        [
            ("srever=a:1", "srever: is unknown; did you mean idalloc_server?"),
            ("existing=maybe", "existing: must be check or ignore, not 'maybe'"),
            ("margin=-1", "margin: must be a number of ids, not '-1'"),
            ("timeout=soon", "timeout: must be a number of seconds, not 'soon'"),
            ("sequence={tabel}", "sequence: may have {schema} and {table}, not '{tabel}'"),
        ],
    )
    def test_an_invalid_parameter_is_an_error_of_create_engine(self, parameter: str, problem: str) -> None:
        """A parameter that is unknown or invalid is reported when the engine is created."""
        with pytest.raises(sa.exc.ArgumentError) as error:
            sa.create_engine(f"sqlite://?plugin=idalloc&idalloc_{parameter}")
        assert str(error.value) == f"idalloc_{problem}"

    def test_parameters_take_the_place_of_variables(
        self, make: MakeEngine, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The URL's token file wins over IDALLOC_TOKEN, as its server over IDALLOC_SERVER."""
        monkeypatch.setenv("IDALLOC_TOKEN", "of-the-environment")
        monkeypatch.setenv("IDALLOC_SERVER", "127.0.0.1:1")
        (tmp_path / "token").write_text("secret")
        server.tokens = {"secret"}
        insert(make(f"idalloc_token_file={tmp_path}/token"))
        assert server.authorizations["AllocateRange"] == ["Bearer secret"]

    @pytest.mark.test_long
    def test_a_fork_has_own_ids(self, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """P8: a child of a process that inserted rows gets other ids than its parent."""
        monkeypatch.setenv("SHOP", str(tmp_path / "shop.db"))
        parent, child, status = test_fork.run(server, FORK, fork_support=True)
        assert ({parent, child}, status) == ({2, 3}, 0)
