"""`idalloc store import --from-elasticsearch`: whole, from stopped clients, with skipped names."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.opensearch.pages import WRITABLE, Pages, page, serve_pages
from tests.support.processes import IDALLOC, environment, running

HITS = [{"_id": name, "_source": {"value": value}} for name, value in (("cartons", 1041), ("tickets", -5))]

pytestmark = pytest.mark.test_long


@dataclass(eq=False)
class Imports:
    """Runs imports of an index into a SQLite file."""

    pages: Pages
    file: Path

    async def run(self, *options: str) -> tuple[int, str, str]:
        """Run an import, and return its exit code and output."""
        url = f"opensearch://{self.pages.host}/counters"
        arguments = ["store", "import", "--from-elasticsearch", url, f"--store=sqlite://{self.file}", *options]
        process = await asyncio.create_subprocess_exec(
            IDALLOC, *arguments, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def refused(self, *options: str) -> str:
        """Run an import that must write nothing, and return the line of its error."""
        code, out, err = await self.run(*options)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert not self.file.exists()
        return err


@pytest.fixture
async def imports(tmp_path: Path) -> AsyncIterator[Imports]:
    async with serve_pages() as pages:
        pages.pages = [page(hits={"total": {"value": 2, "relation": "eq"}, "hits": HITS}), page(total=2)]
        pages.last = page(total=2)
        yield Imports(pages, tmp_path / "ids.db")


async def test_a_part_of_an_index_imports_nothing(imports: Imports) -> None:
    """P1: a later page with a failed shard and no hits is no end: exit 1, and no store is made."""
    imports.pages.pages[1] = page(total=2, failed=1)
    error = await imports.refused("--partial")
    assert error.startswith("idalloc: OpenSearch returned a part of index counters only")
    assert error.endswith("nothing was imported; when GET /_cluster/health/counters says green, import again\n")


async def test_an_index_that_accepts_writes_needs_a_confirmation(imports: Imports) -> None:
    """P1: nothing is imported while clients still write; the message shows how to block writes."""
    imports.pages.settings = WRITABLE
    error = await imports.refused("--partial")
    assert 'run PUT /counters/_settings {"index.blocks.write": true}; or confirm with --clients-stopped' in error
    code, out, _ = await imports.run("--partial", "--clients-stopped")
    assert (code, out.partition(",")[0]) == (1, "created 1")


def test_an_option_without_its_index_is_refused(tmp_path: Path) -> None:
    """--clients-stopped is about counter documents."""
    arguments = ["store", "import", str(tmp_path / "export.jsonl"), "--clients-stopped"]
    done = subprocess.run([IDALLOC, *arguments], env=environment(), capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (2, "idalloc: --clients-stopped needs --from-elasticsearch\n")


def test_skipped_names_are_refused_by_a_server(tmp_path: Path) -> None:
    """P1: a skipped counter is refused with its reason until its sequence is advanced past it."""
    file, store = tmp_path / "hits.jsonl", f"sqlite://{tmp_path}/ids.db"
    file.write_text("".join(json.dumps(hit) + "\n" for hit in HITS))

    def run(*arguments: str, server: str = "") -> tuple[int, str]:
        environ = environment(server=server, store=store)
        done = subprocess.run([IDALLOC, *arguments], env=environ, capture_output=True, text=True, timeout=50)
        return done.returncode, done.stdout + done.stderr

    code, out = run("store", "import", "--from-elasticsearch", str(file), "--partial")
    assert code == 1
    assert "\nreserved 1: " in out
    with running(tmp_path) as server:
        run = partial(run, server=server.address)
        assert run("allocate", "cartons") == (0, "1042\n")
        for command in (["allocate", "tickets"], ["sequences", "show", "tickets"], ["sequences", "create", "tickets"]):
            code, out = run(*command)
            assert code == 1
            assert "reserved: the import skipped it: is negative (-5)" in out.replace("is reserved", "reserved")
        assert "reserved: the import skipped it: is negative (-5)" in run("sequences", "list", "--show-deleted")[1]
        assert run("sequences", "advance", "tickets", "--past", "700")[0] == 0
        assert run("allocate", "tickets") == (0, "701\n")
