"""The page on replacing, moving, cloning: each step works, ids repeat only where it says (P1)."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import free_port
from tests.support.faults.store_copies import copied_store
from tests.support.operations import Operator, operator

PAGE = "docs/operations/replace-move-clone.md"

# Each runs several real processes, and waits for leases.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(240)]


@pytest.fixture
def by_the_page(tmp_path: Path) -> Iterator[Operator]:
    """An operator who has set the page's variables."""
    with operator(PAGE, tmp_path, {50052: free_port()}) as made:
        made.run_all("Before you begin")
        yield made


@pytest.fixture
def on_cratedb(by_the_page: Operator, tmp_path: Path) -> Iterator[Operator]:
    """The same, with a node on CrateDB whose prefix was set and persisted to 7."""
    with copied_store("cratedb", tmp_path) as store:
        by_the_page.set(IDALLOC_STORE=store.url)
        by_the_page.serve()
        by_the_page.shell("idalloc node set --prefix 7 --persist")
        by_the_page.take()
        yield by_the_page


def last_doc_id(printed: str) -> str:
    """Return the document id that a block printed last but for integers."""
    return next(line for line in reversed(printed.split()) if len(line) == 28)


def test_a_stop_gives_ids_back_and_a_crash_burns_them(by_the_page: Operator) -> None:
    """After a drain ids continue without a gap; after kill -9, past the whole lease."""
    by_the_page.set(IDALLOC_LEASE_TTL="180s")  # no lease is given back as idle
    for block in by_the_page.blocks("What a stop and a crash cost"):
        by_the_page.run_shown(block)


@pytest.mark.parametrize("lost", [False, True], ids=["stopped", "lost"])
def test_a_node_is_replaced(on_cratedb: Operator, lost: bool) -> None:
    """P1, P6: the new node with the old prefix issues new ids, and its document ids rise."""
    before = last_doc_id(on_cratedb.shell("idalloc docid"))
    note, start, check = on_cratedb.blocks("Replace a node on CrateDB or OpenSearch")
    assert "persisted-" in on_cratedb.run(note)
    if lost:
        on_cratedb.kill()
    else:
        on_cratedb.stop()
    on_cratedb.run(start)
    assert ("prefix_conflict" in (on_cratedb.folder / "new.log").read_text()) == lost
    after = last_doc_id(on_cratedb.run(check))
    assert after[:4] == before[:4] == "0007"
    assert after > before


def test_a_sqlite_store_is_moved(by_the_page: Operator) -> None:
    """P1: ids continue in the moved files, documents are among them, and the old file refuses."""
    by_the_page.set(IDALLOC_XPROTO_LISTEN="127.0.0.1:0")
    start, *_ = by_the_page.blocks("What a stop and a crash cost")
    by_the_page.run(start)
    by_the_page.take(100)
    stop, copy, documents, retire, serve, check = by_the_page.blocks("Move a SQLite store")
    for block in (stop, copy, documents, retire):
        by_the_page.run(block)
    assert (by_the_page.folder / "moved/idalloc-documents.db").exists()
    assert "this store was retired on" in by_the_page.start_refused()
    by_the_page.run(serve)
    assert "orders" in by_the_page.run(check)
    by_the_page.take()


def test_the_newest_commits_move_in_the_wal_of_a_crash(by_the_page: Operator) -> None:
    """P1: after kill -9 the files of the page, -wal included, have the newest counters."""
    by_the_page.serve()
    by_the_page.take(100)
    by_the_page.kill()
    _, copy, _, retire, serve, check = by_the_page.blocks("Move a SQLite store")
    by_the_page.run(copy)
    assert (by_the_page.folder / "moved/idalloc.db-wal").stat().st_size
    by_the_page.run(retire)
    by_the_page.run(serve)
    by_the_page.run(check)


def test_a_clone_on_a_shared_store_issues_other_ids(on_cratedb: Operator) -> None:
    """P1: a clone without its persisted prefix takes the page's; the ids of both are new."""
    persisted = "idalloc config show --listen $IDALLOC_SERVER | grep node_prefix"
    on_cratedb.shell("export IDALLOC_LISTEN=$IDALLOC_SERVER")
    assert "persisted-" in on_cratedb.shell(persisted)
    prefix, start = on_cratedb.blocks("A clone on CrateDB or OpenSearch")
    printed = on_cratedb.run(prefix)
    assert "node_prefix = 8" in printed
    assert "persisted-" not in on_cratedb.shell(persisted)
    assert last_doc_id(on_cratedb.run(start)).startswith("0008")
    on_cratedb.take()
    on_cratedb.shell("idalloc allocate orders 10 --server 127.0.0.1:50052")
    on_cratedb.take()


def test_one_host_name_and_address_are_one_holder(on_cratedb: Operator) -> None:
    """A process with the same host name and `listen` is the same node to the store: no conflict."""
    on_cratedb.kill()
    on_cratedb.serve("--prefix-conflict refuse")
    on_cratedb.take()
    assert "prefix_conflict" not in on_cratedb.log.read_text()


def test_a_clone_of_a_sqlite_file_issues_the_same_ids(by_the_page: Operator) -> None:
    """The page's warning is true; after its advance the original issues new ids."""
    by_the_page.serve()
    by_the_page.take()
    by_the_page.stop()
    clone = by_the_page.folder / "clone"
    shutil.copytree(by_the_page.file.parent, clone)
    by_the_page.serve()
    by_the_page.take()
    by_the_page.stop()
    by_the_page.shell(f'export ORIGINAL="$IDALLOC_STORE" IDALLOC_STORE="sqlite://{clone}/idalloc.db"')
    by_the_page.serve()
    with pytest.raises(AssertionError, match="came twice"):
        by_the_page.take()
    by_the_page.stop()
    by_the_page.shell('export IDALLOC_STORE="$ORIGINAL"')
    by_the_page.serve()
    printed = by_the_page.run_all("A clone with a SQLite file")
    assert int(printed.split()[-1]) > 1234567
    by_the_page.take()
