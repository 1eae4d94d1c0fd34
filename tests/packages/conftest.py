"""What the consumers of the packages share.

IDALLOC_TEST_DIST names a folder that `make packages` wrote: then they get those files. A release
tests with it what it publishes.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.languages.conftest import secrets
from tests.languages.programs import LANGUAGES
from tests.packages import java_package
from tests.packages.go_module import Consumer, missing, number, write_proxy
from tests.packages.node_package import CONSUMER, INSTALL, PACKAGE, pack, run
from tests.support.environments import locked_wheels
from tests.support.paths import ROOT

__all__ = ["secrets"]

DIST = Path(os.environ["IDALLOC_TEST_DIST"]) if "IDALLOC_TEST_DIST" in os.environ else None


@pytest.fixture(scope="session")
def go_consumer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consumer]:
    """The program in Go: of the module it sees the proxy on disk only."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("go")
    proxy = folder / "proxy" if DIST is None else DIST / "go"
    version = write_proxy(proxy, "-test")[1] if DIST is None else f"v{number()}"
    made = Consumer(folder, ROOT / "tests/packages/go", proxy, version)
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
    if DIST is not None:
        [package] = (DIST / "npm").iterdir()
        return package
    return pack(tmp_path_factory.mktemp("npm"), f"0.0.0-test.{time.time_ns()}")


@pytest.fixture(scope="session")
def node_consumer(node_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program in Node: of the package it sees the archive only."""
    folder = tmp_path_factory.mktemp("consumer") / "node"
    shutil.copytree(CONSUMER, folder)
    run(folder, "npm", "install", *INSTALL, f"file:{node_package}")
    run(folder, "npm", "run", "build")
    return folder


@pytest.fixture(scope="session")
def python_dist(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdist and the wheel, as `make dist` builds them."""
    folder = DIST / "python" if DIST is not None else tmp_path_factory.mktemp("dist")
    if DIST is None:
        program = str(Path(sys.executable).with_name("hatchling"))
        run(ROOT, program, "build", "--directory", str(folder))
    return sorted(folder.iterdir(), key=lambda path: path.suffix)


@pytest.fixture(scope="session", params=["server.txt", "floor.txt"], ids=["newest", "oldest"])
def python_consumer(
    request: pytest.FixtureRequest, python_dist: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The Python of an environment with the wheel: all packages come from a folder of wheels."""
    folder = tmp_path_factory.mktemp("python")
    locked_wheels("idalloc", request.param, folder)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    options = ["--isolated", "--quiet", "--disable-pip-version-check", "--no-index", "--find-links", str(folder)]
    run(folder, str(python), "-m", "pip", "install", *options, str(python_dist[1]))
    return python


@pytest.fixture(scope="session")
def java_sources(tmp_path_factory: pytest.TempPathFactory) -> java_package.Sources:
    """The built artifact for Java, in a version that no cache has."""
    if reason := LANGUAGES["java"].missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("java") / "sources"
    if DIST is not None:
        return java_package.Sources(folder, number(), DIST / "maven")
    made = java_package.Sources(folder, f"0.0.0-test.{time.time_ns()}")
    made.build()
    return made


@pytest.fixture(scope="session")
def java_consumer(
    java_sources: java_package.Sources, tmp_path_factory: pytest.TempPathFactory
) -> java_package.Consumer:
    """The compiled program in Java: of the artifact it sees the repository on disk only."""
    return java_package.Consumer(tmp_path_factory.mktemp("java-consumer"), java_sources)
