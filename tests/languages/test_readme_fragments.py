"""The fragments of README.md in each language compile with the client that they name."""

from pathlib import Path

import pytest

from tests.languages.conftest import Builds
from tests.languages.test_languages_guide import run
from tests.support.documents import blocks
from tests.support.paths import ROOT

# With cold caches a build downloads its compiler and its packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

GO = """package main

import (
	"context"

	idalloc "example.com/idalloc/client/go"
)

func main() {{}}

func take(ctx context.Context) (int64, error) {{
{body}return id, err
}}
"""
JAVA = """import io.idalloc.client.*;
class Take {{ static long take() {{ {body} return id; }} }}
"""
TYPESCRIPT = """{body}
export const taken: bigint = id;
"""


def fragment(language: str) -> str:
    """Return the block of a language."""
    [block] = [each for each in blocks((ROOT / "README.md").read_text()) if each.language == language]
    assert len(block.text.splitlines()) == 3
    return block.text


def test_the_fragment_in_go_compiles(builds: Builds, tmp_path: Path) -> None:
    """`go vet` accepts the lines that get the first id."""
    for file in ("go.mod", "go.sum"):
        text = (builds.language("go").folder / file).read_text()
        (tmp_path / file).write_text(text.replace("../../client/go", str(ROOT / "client/go")))
    (tmp_path / "main.go").write_text(GO.format(body=fragment("go")))
    run(tmp_path, "go", "vet", ".", GOWORK="off")


def test_the_fragment_in_java_compiles(builds: Builds, tmp_path: Path) -> None:
    """The compiler accepts the lines that get the first id."""
    target = builds.language("java").folder / "target"
    (tmp_path / "Take.java").write_text(JAVA.format(body=fragment("java")))
    run(tmp_path, "javac", "-d", "classes", "-cp", f"{target}/lib/*", "Take.java")


def test_the_fragment_in_typescript_compiles(builds: Builds, tmp_path: Path) -> None:
    """The compiler accepts the lines that get the first id, with the types of the package."""
    folder = builds.language("node").folder
    (tmp_path / "take.mts").write_text(TYPESCRIPT.format(body=fragment("ts")))
    packages = folder / "node_modules"
    (tmp_path / "node_modules").symlink_to(packages)
    options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext"]
    types = ["--types", "node", "--typeRoots", str(packages / "@types")]
    run(tmp_path, str(packages / ".bin/tsc"), *options, *types, "take.mts")


def test_the_fragment_in_rust_is_of_a_program_that_runs() -> None:
    """The lines are those of the program of languages.md."""
    guide = (ROOT / "docs/guides/languages.md").read_text()
    comment, *lines = fragment("rust").splitlines()
    assert comment.startswith("//")
    assert [line for line in lines if line not in guide] == []
