"""What the client imports: gRPC and protobuf alone; its command also the extra `cli`."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.fake_server import FakeServer, serving

# Rejects all packages except the standard library's and those that the client depends on.
_ONLY_DEPENDENCIES = """
import sys

class OnlyDependencies:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] not in {*sys.stdlib_module_names, 'google', 'grpc', 'idalloc', 'typing_extensions'}:
            raise ModuleNotFoundError(f'{name} is not a dependency of the client', name=name)

sys.meta_path.insert(0, OnlyDependencies())
"""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _ONLY_DEPENDENCIES + script, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def test_the_client_needs_grpc_and_protobuf_alone(server: FakeServer) -> None:
    """All public names, and both clients, need only the client's own dependencies."""
    done = run(
        """
import asyncio, idalloc
for name in idalloc.__all__:
    getattr(idalloc, name)

async def node():
    async with idalloc.aio.Client(sys.argv[1]) as client:
        return (await client.node()).prefix

with idalloc.Client(sys.argv[1]) as client:
    print(list(client.allocate_range('orders', 3)), client.node().to_dict()['prefix'], asyncio.run(node()))
""",
        server.target,
    )
    assert (done.stdout, done.stderr) == ("[1, 2, 3] 7 7\n", "")


def test_the_command_without_its_extra_says_how_to_install_it() -> None:
    """Without the extra, the command prints one line with the next step, and exits with 2."""
    done = run("from idalloc.__main__ import main\nsys.exit(main())")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "the command idalloc needs the package typer: pip install 'idalloc[cli]'\n"
