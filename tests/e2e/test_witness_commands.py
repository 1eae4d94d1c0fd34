"""`idalloc witness show` and `forget` on files; restored stores under servers with a witness."""

import asyncio
import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

import idalloc
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.store.urls import open_store, open_witness
from tests.e2e.test_http import LOOPBACK, get, metrics
from tests.support.command_line import run_here
from tests.support.fake_store import FakeClock
from tests.support.faults.store_copies import CopiedStore
from tests.support.processes import IDALLOC, Server, environment, locked, running
from tests.support.waiting import wait_until

YEARLY = Sequence(reset=Reset.YEARLY, format="{year}-{value}")


class Place:
    """A store and its witness in files, and the command in this process."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        # The settings of these names.
        self.store, self.witness = f"sqlite://{folder}/ids.db", f"sqlite://{folder}/witness.db"
        self.copied = CopiedStore(self.store, folder / "ids.db")  # the store, to copy and restore
        self._capfd = capfd

    def use(self, **ids: int) -> None:
        """Grant ids of sequences, as a server does; `orders_2026` is a period of `orders`."""

        async def grant() -> None:
            store = WitnessedStore(open_store(self.store, FakeClock()), open_witness(self.witness, self.store))
            await store.open()
            for name, count in ids.items():
                sequence, _, period = name.partition("_")
                await store.create(Row(sequence, 0, YEARLY if period else Sequence(), 7, 0, 0, "created"))
                if period:
                    await store.open_period(name_of_period(sequence, period), YEARLY, 0, 7)
                await store.grant(name_of_period(sequence, period) if period else sequence, count, 0)
            await store.claim_start(7, 1_700_000_000, "here", 30.0)
            await store.close()

        with capture_logs():
            asyncio.run(grant())

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run `idalloc witness`."""
        environ = environment(**{"store": self.store, "witness": self.witness} | settings)
        with capture_logs():
            return run_here(self._capfd, environ, "witness", *arguments, opens_store=True)

    def error_line(self, code: int, *arguments: str, **settings: str) -> str:
        """Run a command that prints nothing but an error."""
        done = self.run(*arguments, **settings)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
        return done.stderr.rstrip("\n")


@pytest.fixture
def place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capfd)


def test_show_finds_a_restored_store(place: Place) -> None:
    """Each mark is shown beside the store; exit 1, with the repair, if a sequence is refused."""
    place.use(orders=5, invoices_2026=3)
    copy = place.copied.copy()
    done = place.run("show")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["start timestamp", "7", "-", "1700000000", "-", "1700000000", "-", "ok", "-"],
        ["sequence", "invoices", "-", "0", "7", "0", "7", "ok", "-"],
        ["sequence", "invoices", "2026", "3", "7", "3", "7", "ok", "-"],
        ["sequence", "orders", "-", "5", "7", "5", "7", "ok", "-"],
    ]
    place.use(orders=50, invoices_2026=4, later=2)
    place.copied.restore(copy)
    done = place.run("show", "--json")
    marks = {(each["name"], each.get("period")): each for each in json.loads(done.stdout)["marks"]}
    assert done.returncode == 1
    assert {name: (each["state"], each.get("repair")) for name, each in marks.items()} == {
        ("7", None): ("behind", None),
        ("invoices", None): ("ok", None),
        ("invoices", "2026"): ("behind", "advance"),
        ("orders", None): ("behind", "advance"),
        ("later", None): ("missing", "create"),
    }
    assert marks["orders", None] == {
        "kind": "sequence", "name": "orders", "lastId": "55", "generation": "7", "storeLastId": "5",
        "storeGeneration": "7", "state": "behind", "repair": "advance",
    }  # fmt: skip
    assert done.stderr == (
        "idalloc: 3 marks are not reached by the store: create missing or deleted sequences again with "
        "`idalloc sequences create`; then run `idalloc sequences advance --all`\n"
    )
    done = place.run("show", "orders")
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    assert done.stderr.endswith(": run `idalloc sequences advance --all`\n")


def test_forget_deletes_the_marks_of_a_sequence(place: Place) -> None:
    """`forget` deletes a sequence's marks, also of its periods; with --all the store's name too."""
    place.use(orders=5, invoices_2026=3, returns=1)
    assert place.run("forget", "invoices").stdout == "deleted 2 marks\n"
    assert json.loads(place.run("forget", "orders", "--json").stdout) == {"deleted": 1}
    assert place.error_line(1, "show", "orders") == f"idalloc: the witness {place.witness} has no mark of 'orders'"
    done = place.run("forget", "returns", "no\u202etes")
    assert (done.returncode, done.stdout) == (1, "deleted 1 mark\n")
    assert done.stderr == f"idalloc: the witness {place.witness} has no mark of 'no\\u202etes'\n"
    assert place.run("forget", "--all").stdout == "deleted 2 marks\n"  # the start timestamp and the name
    assert place.run("show").stdout == ""


@pytest.mark.test_long
def test_the_witness_of_another_store_is_refused(place: Place, tmp_path: Path) -> None:
    """Another store's marks are not compared, and an unused store is not bound to the witness."""
    other = Place(tmp_path / "other", place._capfd)
    place.use(orders=1)
    other.use(orders=1)
    line = place.error_line(2, "show", witness=other.witness)
    assert line.startswith("idalloc: witness: it belongs to the store ")
    assert "put that store back" in line


@pytest.mark.test_long
@pytest.mark.parametrize("verb", ["show", "forget"])
def test_a_missing_witness_is_one_line(place: Place, verb: str) -> None:
    """A witness or store that is unset, missing or invalid is one line, exit 2; none is created."""
    names = ["orders"] if verb == "forget" else []
    line = place.error_line(2, verb, *names, witness="")
    assert line == "idalloc: witness: is not set; give the URL that the servers have, as --witness or IDALLOC_WITNESS"
    line = place.error_line(2, verb, *names)
    assert line.startswith("idalloc: witness: cannot read ")
    assert place.error_line(2, verb, *names, witness=place.store).startswith("idalloc: witness: ")
    for flag in ("--store", "--witness"):
        line = place.error_line(2, verb, *names, f"{flag}=crate://me:pLaNtEd@db:4200/")
        assert line.startswith(f"idalloc: {flag}: ")
        assert "pLaNtEd" not in line
    assert not place.copied.file.exists()
    place.use(orders=1)
    assert place.error_line(1, verb, "") == "idalloc: INVALID_REQUEST: sequence: must not be empty"
    place.copied.file.unlink()
    if verb == "show":
        assert place.error_line(2, "show").startswith("idalloc: store: cannot read ")
    assert not place.copied.file.exists()


def test_forget_needs_names_or_all(place: Place) -> None:
    """Names and --all exclude each other; nothing is opened."""
    for arguments in ([], ["orders", "--all"]):
        assert place.error_line(2, "forget", *arguments) == "idalloc: give either names of sequences or --all"


@pytest.mark.test_long
@pytest.mark.timeout(180)
class TestServers:
    """A restored store under real servers with a witness."""

    SHORT: ClassVar = {"lease_ttl": "3s", "store_timeout": "1s", "outage_reserve": "1s"}

    def idalloc(self, server: Server, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command; it may fail."""
        environ = environment(server=server.address, **settings)
        return subprocess.run([IDALLOC, *command], env=environ, capture_output=True, text=True, timeout=50)

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_restored_store_is_repaired(self, place: Place, tmp_path: Path, workers: int) -> None:
        """P3: fresh servers refuse a restored store until `advance --all` passes every mark."""
        settings: dict[str, Any] = {"witness": place.witness, "workers": workers, **self.SHORT}
        with running(tmp_path, **settings) as server, idalloc.Client(server.address) as client:
            client.sequences.create("down", step=-1, min_value=-(10**9), max_value=-1)
            client.sequences.create("invoices", reset="yearly", format="{year}-{value}")
            for name in ("down", "invoices", "orders"):
                client.allocate_range(name, 5)
            assert client.node().witness == place.witness
            server.stop()
        copy = place.copied.copy()
        last = {}
        with running(tmp_path, **settings) as server, idalloc.Client(server.address) as client:
            for name in ("down", "invoices", "later", "orders"):
                last[name] = client.allocate_range(name, 1_000).last_id
            server.stop()
        place.copied.restore(copy)
        with running(tmp_path, **settings) as server, idalloc.Client(server.address) as client:
            for name in last:
                with pytest.raises(idalloc.StoreWentBackwards):
                    client.allocate_range(name, 1)
            show = ("witness", "show")
            where = {"store": place.store, "witness": place.witness}
            done = self.idalloc(server, *show, **where)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1)
            client.sequences.create("later")
            done = self.idalloc(server, "sequences", "advance", "--all")
            assert (done.returncode, done.stdout.count("\n")) == (0, 4)
            done = self.idalloc(server, *show, **where)
            assert (done.returncode, done.stderr) == (0, "")
            for name, before in last.items():
                found = client.allocate_range(name, 1)
                assert found.first_id == before + found.step, name

    @pytest.mark.parametrize("workers", [1, 2])
    def test_the_page_shows_the_witness(self, place: Place, tmp_path: Path, workers: int) -> None:
        """The documents of the page and the metrics have the witness, and whether it answers."""

        def node(server: Server) -> dict[str, Any]:
            return dict(json.loads(get(server, "api/status")[1])["node"])

        settings: dict[str, Any] = {"http_listen": LOOPBACK, "workers": workers, **self.SHORT}
        with running(tmp_path, witness=place.witness, **settings) as server, idalloc.Client(server.address) as client:
            wait_until(lambda: node(server).get("witness_up") is True)
            assert node(server)["witness"] == place.witness
            assert metrics(server)["idalloc_witness_up"] == 1
            with locked(tmp_path / "witness.db"):

                def is_down() -> bool:
                    with suppress(idalloc.IdallocError):
                        client.allocate_range("orders", 1_000_000)
                    return node(server)["witness_up"] is False and metrics(server)["idalloc_witness_up"] == 0

                wait_until(is_down, seconds=60)
        with running(tmp_path, store=f"sqlite://{tmp_path}/other.db", **settings) as server:
            wait_until(lambda: get(server, "readyz")[0] == 200)
            assert not {"witness", "witness_up"} & node(server).keys()
            assert "idalloc_witness_up" not in metrics(server)
