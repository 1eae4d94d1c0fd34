"""What the consumers of the packages share."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.languages.conftest import secrets
from tests.languages.programs import LANGUAGES
from tests.packages.go_module import Consumer, missing
from tests.packages.node_package import CONSUMER, INSTALL, PACKAGE, pack, run
from tests.support.paths import ROOT

__all__ = ["secrets"]


@pytest.fixture(scope="session")
def go_consumer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consumer]:
    """The program in Go: of the module it sees the proxy on disk only."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("go")
    made = Consumer(folder, ROOT / "tests/packages/go", folder / "proxy")
    yield made
    made.forget()


@pytest.fixture(scope="session")
def go_program(go_consumer: Consumer) -> Path:
    """The built program in Go."""
    return go_consumer.build()


@pytest.fixture(scope="session")
def node_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the npm package, in a version that no cache has."""
    if reason := LANGUAGES["node"].missing():
        pytest.skip(reason)
    run(PACKAGE, "npm", "ci", *INSTALL)
    run(PACKAGE, "npm", "run", "build")
    return pack(tmp_path_factory.mktemp("npm"), f"0.0.0-test.{time.time_ns()}")


@pytest.fixture(scope="session")
def node_consumer(node_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program in Node: of the package it sees the archive only."""
    folder = tmp_path_factory.mktemp("consumer") / "node"
    shutil.copytree(CONSUMER, folder)
    run(folder, "npm", "install", *INSTALL, f"file:{node_package}", "@grpc/grpc-js@^1.14.7")
    run(folder, "npm", "run", "build")
    return folder
