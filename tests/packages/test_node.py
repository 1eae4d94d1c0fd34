"""A program that installs the npm package, on real servers; and the gates of the package."""

import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.languages.conftest import Secrets
from tests.languages.programs import LANGUAGES
from tests.support.paths import ROOT
from tests.support.processes import environment, running
from tests.support.waiting import wait_until

# With cold caches it downloads packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

PACKAGE = ROOT / "client/node"
CONSUMER = ROOT / "tests/packages/node"
INSTALL = ["--prefer-offline", "--no-audit", "--no-fund"]
TOTAL = 500_000


def run(folder: Path, *command: str, fails: bool = False) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")


def pack(folder: Path, version: str) -> Path:
    """Pack the build of the package."""
    run(PACKAGE, "node", "scripts/pack.js", str(folder), version)
    return folder / f"idalloc-client-{version}.tgz"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the package, in a version that no cache has."""
    if missing := LANGUAGES["node"].missing():
        pytest.skip(missing)
    run(PACKAGE, "npm", "ci", *INSTALL)
    run(PACKAGE, "npm", "run", "build")
    return pack(tmp_path_factory.mktemp("npm"), f"0.0.0-test.{time.time_ns()}")


@pytest.fixture(scope="module")
def consumer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built consumer: of the package it sees the archive only."""
    folder = tmp_path_factory.mktemp("consumer") / "node"
    shutil.copytree(CONSUMER, folder)
    run(folder, "npm", "install", *INSTALL, f"file:{package}", "@grpc/grpc-js@^1.14.7")
    run(folder, "npm", "run", "build")
    return folder


def unpack(package: Path, folder: Path) -> Path:
    """Unpack the archive; return its folder, which a test may damage."""
    with tarfile.open(package) as file:
        file.extractall(folder, filter="data")
    return folder / "package"


def replace(file: Path, old: str, new: str) -> None:
    """Replace a text that must be in a file."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_two_builds_are_the_same_bytes(package: Path, tmp_path: Path) -> None:
    """The archive depends on its sources only, not on when or where it is packed."""
    version = package.name.removeprefix("idalloc-client-").removesuffix(".tgz")
    shutil.rmtree(PACKAGE / "dist")
    run(PACKAGE, "npm", "run", "build")
    assert pack(tmp_path, version).read_bytes() == package.read_bytes()


def test_the_archive_has_code_types_licence_and_readme(package: Path) -> None:
    """The archive has a .d.ts for each module, no test, and a manifest without scripts."""
    with tarfile.open(package) as file:
        names = {name.removeprefix("package/") for name in file.getnames()}
        manifest = json.load(file.extractfile("package/package.json"))  # type: ignore[arg-type]
    modules = {name for name in names if name.endswith(".js")}
    assert {f"dist/src/{name}.js" for name in ("index", "v1", "pool", "client")} <= modules
    assert names - modules == {name.replace(".js", ".d.ts") for name in modules} | {
        "LICENSE",
        "README.md",
        "package.json",
    }
    assert all(name.startswith("dist/src/") for name in modules)
    assert not {"scripts", "devDependencies"} & set(manifest)
    assert manifest["engines"] == {"node": ">=20.19"}


def test_every_call_works_with_tls_and_a_token(consumer: Path, secrets: Secrets, tmp_path: Path) -> None:
    """Each method returns ids that no other call got; each error has its reason and details."""
    with running(tmp_path, **secrets.settings) as server:
        with secrets.client(server) as client:
            client.sequences.create("invoices", format="INV-{value:06d}")
        token_file = str(secrets.token_file)
        out = run(consumer, "node", "dist/every-call.js", server.address, str(secrets.ca), token_file)
    found = json.loads(out)
    assert found["first"] == found["repeated"]
    numbers = [*found["range"], *found["batch"][0], *found["first"], *found["streamed"], *found["overStream"]]
    numbers += found["pooled"]
    assert len({*numbers}) == len(numbers) == 3 + 2 + 1 + 25 + 2 + 2
    assert found["batch"][1] == "INVALID_REQUEST"
    assert max(map(int, numbers)) <= int(found["lastValue"])
    assert (found["texts"], found["parsed"]) == (["INV-000001"], "1")
    doc_ids = [*found["docIds"], *found["streamedDocIds"], *found["docIdsOverStream"]]
    assert len({*doc_ids}) == 2 + 25 + 1
    assert all(re.fullmatch("[0-9a-f]{28}", each) for each in doc_ids)
    assert [each[14] for each in found["uuids"]] == ["7", "7", "4"]
    too_many, unknown, empty, wrong, unreachable = found["errors"]
    assert (too_many["reason"], too_many["code"], too_many["field"]) == ("INVALID_REQUEST", 3, "id_count")
    assert (unknown["reason"], unknown["metadata"]) == ("SEQUENCE_NOT_FOUND", {"sequence": "nowhere"})
    assert (empty["reason"], empty["metadata"]) == ("INVALID_REQUEST", {"field": "sequence"})
    assert (wrong["reason"], wrong["code"]) == ("UNAUTHENTICATED", 16)
    assert (unreachable["reason"], unreachable["code"]) == ("UNAVAILABLE", 14)
    assert found["methods"] == sorted(
        ["AllocateRange", "BatchAllocateRanges", "GenerateDocId", "GenerateUuid", "ParseId"]
        + ["StreamDocIds", "StreamRanges"]
    )


class Taker:
    """A consumer that takes ids until its input ends."""

    def __init__(self, consumer: Path, file: Path, *arguments: str) -> None:
        self.file = file
        self.process = subprocess.Popen(
            ["node", "dist/take.js", *arguments, str(TOTAL), str(file)],
            cwd=consumer,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def size(self) -> int:
        """How many ids it has written."""
        assert self.process.poll() is None, self.process.communicate()
        return self.file.stat().st_size // 8 if self.file.exists() else 0

    def end(self) -> dict[str, object]:
        """Let it end; return what it printed."""
        out, err = self.process.communicate("", timeout=100)
        assert self.process.returncode == 0, err
        return dict(json.loads(out))


@pytest.fixture
def ids(tmp_path: Path) -> Iterator[list[Path]]:
    """The files of taken ids."""
    yield [tmp_path / f"{name}.ids" for name in ("one", "other")]


def test_no_id_twice_while_one_of_two_servers_restarts(
    consumer: Path, secrets: Secrets, tmp_path: Path, ids: list[Path]
) -> None:
    """P1: two programs take a million ids while a server is killed and started: none is twice."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(running(tmp_path, **secrets.settings)) for _ in range(2))
        at, others = f"{first.address},{second.address}", f"{second.address},{first.address}"
        files = (str(secrets.ca), str(secrets.token_file))
        takers = [Taker(consumer, file, each, *files) for file, each in zip(ids, (at, others), strict=True)]
        for taker in takers:
            stack.callback(taker.process.kill)
        for server in (first, second):
            sizes = [taker.size for taker in takers]
            wait_until(lambda: all(t.size > s for t, s in zip(takers, sizes, strict=True)), "both get ids")  # noqa: B023
            server.stop(signal.SIGKILL)
            sizes = [taker.size for taker in takers]
            wait_until(lambda: all(t.size > s for t, s in zip(takers, sizes, strict=True)), "both get ids")  # noqa: B023
            stack.enter_context(running(tmp_path, **secrets.settings | {"listen": server.address}))
        results = [taker.end() for taker in takers]
    taken = sum(os.stat(file).st_size // 8 for file in ids)
    assert taken == sum(int(str(each["count"])) for each in results) >= 2 * TOTAL
    numbers = memoryview(b"".join(file.read_bytes() for file in ids)).cast("q")
    assert len(set(numbers)) == taken
    print(taken, [each["errors"] for each in results])
