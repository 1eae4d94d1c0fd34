"""The fragments in the READMEs of the examples compile with the code that they name."""

from pathlib import Path

import pytest

from tests.languages.conftest import Builds
from tests.languages.programs import EXAMPLES
from tests.languages.test_languages_guide import run
from tests.support.documents import blocks

# With cold caches a build downloads its compiler and its packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

JAVA = """package io.idalloc.examples;
import io.grpc.ManagedChannel;
import io.idalloc.examples.pool.*;
import java.time.Duration;
class Take {{ static long take() throws Exception {{ {body} return id; }} }}
"""
TYPESCRIPT = """{body}
export const taken: bigint[] = [id, fast];
"""


def fragment(language: str, folder: str) -> str:
    """Return the block of a language in the README of an example."""
    page = (EXAMPLES / folder / "README.md").read_text()
    [block] = [each for each in blocks(page) if each.language == language]
    return block.text


def test_the_fragment_in_java_compiles(builds: Builds, tmp_path: Path) -> None:
    """The compiler accepts the lines that make a pool, in the package of the example."""
    target = builds.language("java").folder / "target"
    (tmp_path / "Take.java").write_text(JAVA.format(body=fragment("java", "java")))
    run(tmp_path, "javac", "-d", "classes", "-cp", f"{target}/classes:{target}/lib/*", "Take.java")


def test_the_fragment_in_typescript_compiles(builds: Builds, tmp_path: Path) -> None:
    """The compiler accepts the lines that make a pool, with the types of the package."""
    folder = builds.language("node").folder
    (tmp_path / "take.mts").write_text(TYPESCRIPT.format(body=fragment("ts", "node")))
    packages = folder / "node_modules"
    (tmp_path / "node_modules").symlink_to(packages)
    options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext"]
    types = ["--types", "node", "--typeRoots", str(packages / "@types")]
    run(tmp_path, str(packages / ".bin/tsc"), *options, *types, "take.mts")
