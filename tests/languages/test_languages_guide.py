"""The blocks of docs/guides/languages.md that need Java, Node or Rust."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.languages.programs import LANGUAGES
from tests.support.documents import FILE_NAME, Block, blocks, commands, matches
from tests.support.paths import ROOT
from tests.support.processes import IDALLOC, environment, running

# With cold caches a build downloads its compiler and its packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

BLOCKS = blocks((ROOT / "docs/guides/languages.md").read_text())


def under(heading: str) -> list[Block]:
    """Return the blocks under a heading of the page."""
    found = [each for each in BLOCKS if each.heading == heading]
    assert found
    return found


def run(folder: Path, *command: str, **variables: str) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, cwd=folder, env=environment() | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def protos(tmp_path: Path) -> Path:
    """A folder with what `idalloc protos protos` writes."""
    run(tmp_path, IDALLOC, "protos", "protos")
    return tmp_path


def test_maven_compiles_no_class_of_google(protos: Path) -> None:
    """The page's excludes keep classes out of com.google: all are in io.idalloc.v1."""
    java = LANGUAGES["java"]
    if missing := java.missing():
        pytest.skip(missing)
    [block] = under("Java: leave out `google/`")
    pom = (ROOT / "client/java/pom.xml").read_text().replace("../../protos", "protos")
    changed, count = re.subn(r"(?s)<sourceDirectories>.*</sourceDirectories>\n", lambda _: block.text, pom)
    assert count == 1
    found = {}
    for name, text in {"as-shown": changed, "without": re.sub(r"(?s)<excludes>.*?</excludes>", "", changed)}.items():
        (protos / f"{name}.xml").write_text(text)
        run(protos, "mvn", "-B", "-q", "-f", f"{name}.xml", "clean", "compile")
        classes = protos / "target" / "classes"
        found[name] = {str(each.relative_to(classes)) for each in classes.rglob("*.class")}
    assert "io/idalloc/v1/IdAllocatorServiceGrpc.class" in found["as-shown"]
    assert {each for each in found["as-shown"] if each.startswith("com/google/")} == set()
    assert "com/google/rpc/Status.class" in found["without"]


def test_proto_loader_reads_the_descriptor_set(protos: Path) -> None:
    """The lines for @grpc/proto-loader find the service."""
    node = LANGUAGES["node"]
    if missing := node.missing():
        pytest.skip(missing)
    package = ROOT / "client/node"
    if not (packages := package / "node_modules").exists():
        run(package, "npm", "ci", "--prefer-offline", "--no-audit", "--no-fund")
    [block] = [each for each in BLOCKS if each.language == "js"]
    (protos / "node_modules").symlink_to(packages)
    imports = (
        "const { readFileSync } = require('node:fs');\n"
        "const grpc = require('@grpc/grpc-js');\n"
        "const protoLoader = require('@grpc/proto-loader');\n"
    )
    (protos / "load.js").write_text(f"{imports}{block.text}console.log(IdAllocatorService.service.AllocateRange.path)")
    assert run(protos, "node", "load.js") == "/idalloc.v1.IdAllocatorService/AllocateRange\n"


def test_the_program_in_rust_gets_ids(protos: Path) -> None:
    """The page's files compile from the descriptor set; the program prints what the page shows."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed: the Rust of docs/guides/languages.md is not tested")
    *files, console = under("Rust")
    with running(protos) as server:
        for block in files:
            name = FILE_NAME.match(block.text)
            assert name, block
            file = protos / name[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text.replace("127.0.0.1:50051", server.address))
        [(command, shown)] = commands(console.text)
        target = str(ROOT / ".build" / "languages" / "cargo")  # compiled packages are kept
        assert matches(shown, run(protos, *command.split(), CARGO_TARGET_DIR=target))
