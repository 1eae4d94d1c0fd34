"""The version before this one, and the stores that servers of both versions share."""

import asyncio
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cratedb.cluster import URL, CrateCluster
from tests.support.environments import idalloc_of
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.paths import ROOT
from tests.support.processes import start_module

# The version before, until there is a tag; and the last one whose stores had no name.
BEFORE_TAGS = "936ab99"
BEFORE_NAMES = "a0c2265b"
STORES = ["sqlite", "cratedb-stand-in", "opensearch-stand-in", "opensearch-3.8.0", *["cratedb"] * bool(URL)]
# `make test-upgrade` runs all tests of a store in one process.
EACH_STORE = [pytest.param(store, marks=pytest.mark.xdist_group(store)) for store in STORES]
# The first run installs the version before, and fetches OpenSearch.
INSTALLATION_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/upgrade/"):
            item.add_marker(pytest.mark.timeout(INSTALLATION_SECONDS))


@pytest.fixture(scope="session")
def python_before() -> Path:
    """A Python with the version before: the newest tag without this commit, or else a commit."""
    if shutil.which("git") is None:
        pytest.skip("no version before this one: git is not installed")
    tags = git("tag", "--list", "v*", "--no-contains", "HEAD", "--sort", "-version:refname").split()
    return python_of(tags[0] if tags else BEFORE_TAGS)


@pytest.fixture(scope="session")
def python_before_names() -> Path:
    """A Python with the last version whose stores had no name."""
    if shutil.which("git") is None:
        pytest.skip("no version before names: git is not installed")
    return python_of(BEFORE_NAMES)


def python_of(version: str) -> Path:
    """Return a Python with a version; skip the test if git does not know it."""
    commit = git("rev-parse", "--verify", "--quiet", f"{version}^{{commit}}").strip()
    if not commit:
        pytest.skip(f"no version before this one: git does not know {version}; run git fetch --unshallow --tags")
    return idalloc_of(commit)


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], stdout=subprocess.PIPE, text=True, check=False).stdout


@pytest.fixture(scope="module")
def first(request: pytest.FixtureRequest) -> str:
    """The version whose server starts first, and creates the store: ``before`` or ``this``."""
    return str(request.param)


@pytest.fixture(scope="module")
def store(
    first: str,  # each has a store of its own
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The URL of a new store of a kind."""
    kind = request.param
    with ExitStack() as stack:
        if kind == "sqlite":
            yield f"sqlite://{tmp_path_factory.mktemp('store')}/ids.db"
        elif kind == "cratedb-stand-in":
            yield start_module(stack, "tests.support.cratedb.emulator")
        elif kind == "opensearch-stand-in":
            yield start_module(stack, "tests.support.opensearch.stand_in")
        elif kind == "cratedb":
            cluster = CrateCluster.real()
            stack.callback(cluster.remove)
            yield cluster.store
        else:
            host = request.getfixturevalue("opensearch_host")(kind.removeprefix("opensearch-"))
            real = OpenSearchBackend(host, f"idalloc-test-{uuid.uuid4().hex[:12]}")
            stack.callback(lambda: asyncio.run(real.close()))
            yield real.url
