"""The commands of the pages on backups and upgrades work as written, and no id comes twice (P1)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.operations import Operator, operator

PAGE = "docs/operations/backup-and-restore.md"

# Each runs several real processes, and waits for leases.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(240)]


@pytest.fixture
def by_the_page(tmp_path: Path) -> Iterator[Operator]:
    """An operator who has set the page's names, with a server that has issued ids of ``orders``."""
    with operator(PAGE, tmp_path) as made:
        made.run_all("Set the names")
        made.serve()
        made.take()
        yield made


def test_a_lost_file_is_restored(by_the_page: Operator) -> None:
    """P1: after the page's restore, ids continue past all issued before and after the backup."""
    by_the_page.run_all("Copy a SQLite file")
    by_the_page.take(100)
    by_the_page.run_all("Export")
    by_the_page.take(1000)
    by_the_page.stop()
    put_aside, put_back, start, advance, create, periods, stop, ids = by_the_page.blocks("Restore")
    by_the_page.run(put_aside)
    assert "raised or changed 1" in by_the_page.run(put_back)
    by_the_page.run(start)
    assert "orders" in by_the_page.run(advance)
    by_the_page.run(create)
    assert "4711" in by_the_page.run(periods)
    by_the_page.run(stop)
    by_the_page.serve()
    assert int(by_the_page.run(ids)) > 1234567
    assert by_the_page.shell("idalloc allocate parcels").endswith("4712\r\n")


def test_a_restore_with_a_witness_needs_no_highest_id(by_the_page: Operator) -> None:
    """P1, P3: with a witness, servers refuse the restored file until the page's exact advance."""
    by_the_page.stop()
    by_the_page.shell('export IDALLOC_WITNESS="sqlite://$PWD/witness.db"')
    by_the_page.serve()
    by_the_page.take()
    by_the_page.run_all("Copy a SQLite file")
    by_the_page.take(1000)
    by_the_page.stop()
    put_aside, *_ = by_the_page.blocks("Restore")
    by_the_page.run(put_aside)
    by_the_page.shell('cp copy.db "$FILE"')
    by_the_page.serve()
    assert "in the witness" in by_the_page.refused("STORE_WENT_BACKWARDS")
    show, advance = by_the_page.blocks("With a witness")
    assert "behind" in by_the_page.run(show, code=1)
    by_the_page.shell('export REPAIR="$IDALLOC_SERVER"')
    by_the_page.run(advance)
    by_the_page.take(100)
    assert "behind" not in by_the_page.run(show)


def test_an_import_refuses_to_lower_a_counter(by_the_page: Operator) -> None:
    """P2: an older export raises nothing, and the line is named."""
    by_the_page.run_all("Export")
    assert "raised or changed 1" in by_the_page.shell("idalloc store import sequences.jsonl")
    by_the_page.take()
    printed = by_the_page.shell("idalloc store import sequences.jsonl", code=1)
    assert "would be lowered from" in printed
    by_the_page.take()


def test_a_store_moves_and_returns(by_the_page: Operator) -> None:
    """P1: a sequence that moves to another store under a server, and back, repeats no id."""
    [move] = by_the_page.blocks("Move to another store")
    assert "created 1" in by_the_page.run(move)
    assert "this store was retired on" in by_the_page.refused("SEQUENCE_NOT_FOUND")
    by_the_page.stop()
    assert "this store was retired on" in by_the_page.start_refused()
    by_the_page.shell('export OLD="$IDALLOC_STORE" IDALLOC_STORE="$NEW"')
    by_the_page.serve()
    by_the_page.take()
    by_the_page.stop()
    by_the_page.shell('export IDALLOC_STORE="$OLD"')
    back, ids = by_the_page.blocks("Go back to a retired store")
    by_the_page.run(back)
    by_the_page.serve()
    by_the_page.run(ids)
    by_the_page.take()


def test_a_server_is_replaced(tmp_path: Path) -> None:
    """The page on upgrades shows the next server's version; ids continue past all issued ones."""
    with operator("docs/operations/upgrades.md", tmp_path) as made:
        made.serve()
        made.take()
        made.stop()
        made.serve()
        wait, ids = made.blocks("Replace servers without an outage")
        assert "version" in made.run(wait)
        made.run(ids)
