"""The checks of the Go client: go vet, staticcheck, and the compatibility of its API."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packages.go_module import MODULE, TOOLS, go, missing
from tests.support.paths import ROOT
from tests.support.processes import environment

# With cold caches a build downloads its compiler and its packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

BUILT = ROOT / ".build" / "go"


def run(folder: Path, *command: str | Path) -> str:
    """Run a check in a module; return what it finds. apidiff exits with 0 also after a break."""
    done = subprocess.run(command, cwd=folder, env=environment() | {"GOWORK": "off"}, capture_output=True, text=True)
    if "apidiff" in str(command[0]):
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert (done.returncode != 0) == bool(done.stdout + done.stderr), done
    return done.stdout + done.stderr


def vet(module: Path) -> str:
    return run(module, "go", "vet", "./...")


def staticcheck(module: Path) -> str:
    return run(module, BUILT / "staticcheck", "./...")


def apidiff(module: Path) -> str:
    path = go(module, "list", "-m").strip()
    return run(module, BUILT / "apidiff", "-m", "-incompatible", TOOLS / "client.api", path)


CHECKS = {check.__name__: check for check in (vet, staticcheck, apidiff)}
# What makes each check fail: a text of a file, its replacement, and what the check then prints.
BREAKS = {
    "vet": ('return fmt.Sprintf("%x-', 'return fmt.Sprintf("%z-', "unknown verb z"),
    "staticcheck": ("len(reply.GetResults()) != len(requests)", "len(requests) != len(requests)", "SA4000"),
    "apidiff": ("func (c *Client) Stubs() Stubs { return", "func (c *Client) Stubs() *Stubs { return &", "Stubs"),
}


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    if reason := missing():
        pytest.skip(reason)
    BUILT.mkdir(parents=True, exist_ok=True)
    go(TOOLS, "build", "-o", f"{BUILT}/", "golang.org/x/exp/cmd/apidiff", "honnef.co/go/tools/cmd/staticcheck")


def test_the_clients_own_tests_pass() -> None:
    """Its tests pass with the oldest grpc and protobuf that go.mod allows, without data races."""
    race = ["-race"] if go(MODULE, "env", "CGO_ENABLED").strip() == "1" else []  # it needs a C compiler
    go(MODULE, "test", *race, "./...")


def test_the_client_compiles_with_its_oldest_go() -> None:
    """The Go version of go.mod is enough."""
    floor = re.search(r"^go (\S+)$", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert floor
    oldest = {"GOTOOLCHAIN": f"go{floor[1]}"}
    done = subprocess.run(["go", "version"], cwd=MODULE, env=environment() | oldest, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"go {floor[1]} is not here and cannot be downloaded: {done.stderr}")
    assert f"go{floor[1]} " in done.stdout
    go(MODULE, "vet", "./...", **oldest)


@pytest.mark.parametrize("name", CHECKS)
def test_the_client_passes(name: str) -> None:
    """The check finds nothing; `make baseline` accepts a change of the API."""
    assert CHECKS[name](MODULE) == ""


@pytest.mark.parametrize("name", CHECKS)
def test_a_planted_break_fails(name: str, tmp_path: Path) -> None:
    """The check finds what was broken on purpose in a copy."""
    module = tmp_path / "client"
    shutil.copytree(MODULE, module)
    old, new, found = BREAKS[name]
    source = (module / "client.go").read_text()
    assert source.count(old) == 1
    (module / "client.go").write_text(source.replace(old, new))
    assert found in CHECKS[name](module)
