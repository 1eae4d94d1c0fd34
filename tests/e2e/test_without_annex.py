"""A server whose folder of the annex (MySQL's documents) is gone."""

import subprocess
from pathlib import Path

import grpc
import pytest

from tests.rpc.test_deadlines import CALLS_OF, Stubs
from tests.support.processes import environment, running, serve_command, start_error

# Python cannot find the package, as if its folder were removed; its entry points stay listed.
REMOVED = """
import sys

class Removed:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "idalloc_xproto":
            raise ModuleNotFoundError(f"No module named {name!r}", name="idalloc_xproto")

sys.meta_path.insert(0, Removed())
"""
LISTEN = "127.0.0.1:0"


@pytest.fixture
def without_annex(tmp_path: Path) -> dict[str, str]:
    """The environment of a server without the annex."""
    (tmp_path / "sitecustomize.py").write_text(REMOVED)
    return environment() | {"PYTHONPATH": str(tmp_path)}


@pytest.mark.test_long
@pytest.mark.parametrize("workers", [1, 2])
async def test_it_serves_every_rpc(without_annex: dict[str, str], tmp_path: Path, workers: int) -> None:
    """The id server needs nothing of the annex."""
    with running(tmp_path, without_annex, workers=workers, http_listen=LISTEN) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stubs = Stubs(channel)
            await CALLS_OF["AllocateRange"](stubs, "orders", 30)
            for name in [each for each in CALLS_OF if each != "DeleteSequence"]:
                await CALLS_OF[name](stubs, "orders", 30)
            await CALLS_OF["DeleteSequence"](stubs, "orders", 30)
        assert server.stop() == 0
        assert '"level": "error"' not in server.log.read_text()


@pytest.mark.parametrize(
    "place", ["environment", *(pytest.param(each, marks=pytest.mark.test_long) for each in ("flag", "file"))]
)
def test_its_settings_are_refused_with_the_next_step(without_annex: dict[str, str], tmp_path: Path, place: str) -> None:
    """xproto_listen is an error that says what to install, wherever it is set."""
    (tmp_path / "idalloc.toml").write_text(f'xproto_listen = "{LISTEN}"\n')
    by_place: dict[str, dict[str, object]] = {
        "flag": {"xproto_listen": LISTEN},
        "environment": {},
        "file": {"config": tmp_path / "idalloc.toml"},
    }
    variables = {"IDALLOC_XPROTO_LISTEN": LISTEN} if place == "environment" else {}
    command = serve_command(store=f"sqlite://{tmp_path}/ids.db", **by_place[place])
    done = subprocess.run(command, env=without_annex | variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    error = start_error(done.stderr)
    assert "this installation has no port xproto: pip install --force-reinstall 'idalloc[server]'" in error
