"""What the client imports: gRPC and protobuf alone; its command also the extra `cli`."""

import subprocess
import sys

import pytest

from tests.support.fake_server import FakeServer

# Rejects all packages except the standard library's and those that the client depends on.
_ONLY_DEPENDENCIES = """
import sys

class OnlyDependencies:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] not in {*sys.stdlib_module_names, 'google', 'grpc', 'idalloc', 'typing_extensions'}:
            raise ModuleNotFoundError(f'{name} is not a dependency of the client', name=name)

sys.meta_path.insert(0, OnlyDependencies())
"""


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


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement loads in a new interpreter."""
    script = f"import sys\nbefore = {{*sys.modules}}\n{statement}\nprint(*({{*sys.modules}} - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50)
    return {*done.stdout.split()}


def test_import_idalloc_loads_neither_grpc_nor_protobuf() -> None:
    """A program that imports idalloc, and does not use it, loads a few small standard modules."""
    loaded = loaded_by("import idalloc")
    assert {name.partition(".")[0] for name in loaded} - {*sys.stdlib_module_names} == {"idalloc"}
    assert [name for name in loaded if name.startswith("idalloc.")] == []
    assert loaded & {"asyncio", "dataclasses", "email", "importlib.metadata", "socket", "ssl", "uuid"} == set()


@pytest.mark.parametrize(
    ("client", "other"),
    [("idalloc.Client", "idalloc.aio"), ("idalloc.aio.Client", "idalloc._sync")],
    ids=["threads", "asyncio"],
)
def test_a_client_loads_its_own_half_alone(client: str, other: str) -> None:
    """A client loads neither the other client, nor the command, nor a package of an extra."""
    loaded = loaded_by(f"import idalloc\n{client}")
    packages = {name.partition(".")[0] for name in loaded} - {*sys.stdlib_module_names}
    # gRPC also imports its packages for health checks and reflection, if they are installed.
    assert {name for name in packages if not name.startswith(("grpc", "cython_runtime", "_cython_"))} == {
        "google",
        "idalloc",
        "typing_extensions",
    }
    parts = {".".join(name.split(".")[:2]) for name in loaded}
    unused = {other, "idalloc.bench", "idalloc.cli", "idalloc.ext", "idalloc.verify"}
    assert parts & unused == set()
    assert "google.protobuf.json_format" not in loaded
