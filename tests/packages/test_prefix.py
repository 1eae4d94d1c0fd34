"""`make prefix` writes the names of another owner into all files."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.go_module import go, missing
from tests.support.paths import ROOT
from tests.support.processes import environment

# Where caches are cold, Go downloads and compiles its tools.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

NAMES = {
    "GO_MODULE": "example.org/you/ids/client/go",
    "MAVEN_GROUP": "org.example.you",
    "NPM_SCOPE": "@you",
    "REPOSITORY": "https://example.org/you/ids",
}


def run(folder: Path, *command: str, fails: bool = False) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=800)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the working tree's files, in a repository of its own."""
    folder = tmp_path / "clone"
    folder.mkdir()
    listed = run(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    for file in filter(None, listed.split("\0")):
        if (ROOT / file).exists():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file, follow_symlinks=False)
    run(folder, "git", "init", "--quiet")
    run(folder, "git", "add", "--all")
    for venv in (".venv", ".venv-gen"):
        (folder / venv).symlink_to(ROOT / venv)
    return folder


def test_all_names_are_replaced_everywhere(clone: Path) -> None:
    """No file keeps a former name; Go compiles, and generated code and baselines match."""
    if reason := missing():
        pytest.skip(reason)
    generator = ["make", "--silent", ".venv-gen/ready", f"PYTHON={sys.executable}"]
    if (done := subprocess.run(generator, cwd=ROOT, stderr=subprocess.PIPE, text=True)).returncode:
        pytest.skip(done.stderr)
    made = [f"{name}={value}" for name, value in NAMES.items()]
    planned = run(clone, "make", "--dry-run", "-o", ".venv/ready", "-o", ".venv-gen/ready", "prefix", *made)
    assert f"scripts/prefix.py {' '.join(made)}\n" in planned
    old_go, old_repository = "example.com/idalloc/client/go", "https://example.com/idalloc"
    assert run(clone, "git", "grep", "--count", old_go)
    run(clone, "python3", "scripts/prefix.py", *made)
    # As `make prefix` does, but without an installation of the copy into the shared environment.
    run(clone, "make", "-o", ".venv/ready", "-o", ".venv-gen/ready", "gen", "baseline")
    for old in (
        old_go,
        old_repository,
        "<groupId>io.idalloc</groupId>",
        "io.idalloc:idalloc-client",
        "@idalloc/client",
    ):
        assert run(clone, "git", "grep", "--name-only", "--fixed-strings", old, fails=True) == "", old
    go(clone / "client/go", "vet", "./...")
    go(clone / "examples/go", "build", "./...")
    run(clone, "make", "-o", ".venv/ready", "-o", ".venv-gen/ready", "gen-check")
    run(clone, ".venv/bin/buf", "breaking", "protos", "--against", "protos/baseline.binpb")
    assert json.loads((clone / "client/node/package.json").read_text())["name"] == "@you/client"
    assert re.search(r"^module example\.org/you/ids/client/go$", (clone / "client/go/go.mod").read_text(), re.MULTILINE)


@pytest.mark.parametrize("wrong", ["GO_MODULE=ids", "MAVEN_GROUP=root", "NPM_SCOPE=you", "REPOSITORY=example.org/you"])
def test_a_name_of_another_form_changes_nothing(wrong: str) -> None:
    """A name without its form is an error that shows the present one."""
    before = run(ROOT, "git", "status", "--porcelain")
    name, _, value = wrong.partition("=")
    message = run(ROOT, "python3", "scripts/prefix.py", wrong, fails=True)
    assert message.startswith(f"{name}: {value!r} does not have the form of ")
    assert run(ROOT, "git", "status", "--porcelain") == before
