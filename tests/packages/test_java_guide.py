"""The Java of docs/guides/java.md compiles in a program that gets the artifact, and runs."""

import json
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.languages.conftest import Secrets
from tests.packages.java_package import Consumer, jdk
from tests.support.documents import blocks
from tests.support.paths import ROOT
from tests.support.processes import environment, running

# With cold caches Maven downloads its plugins and the packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

PAGE = blocks((ROOT / "docs/guides/java.md").read_text())
PROGRAM = """package example;

import io.idalloc.client.*;
import io.idalloc.v1.CreateSequenceRequest;
import io.idalloc.v1.Sequence;
import io.idalloc.v1.SequenceServiceGrpc;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;

public final class Guide {
  public static void main(String[] arguments) {
%s
  }
}
"""


def test_the_guide_prints_what_it_shows(java_consumer: Consumer, secrets: Secrets, tmp_path: Path) -> None:
    """The blocks of the page are one program, whose output is that of its comments."""
    text = "".join(each.text for each in PAGE if each.language == "java")
    shown = re.findall(r"System\.out\.println\(.*\); // (.+)$", text, re.MULTILINE)
    assert len(shown) > 12
    folders = [tmp_path / "plain", tmp_path / "secure"]
    with ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
        plain = stack.enter_context(running(folders[0]))
        secure = stack.enter_context(running(folders[1], **secrets.settings))
        places = {
            "127.0.0.1:50051": plain.address,
            "idalloc.example:50051": secure.address,
            '"ca.pem"': json.dumps(str(secrets.ca)),
            '"token"': json.dumps(str(secrets.token_file)),
        }
        for name, place in places.items():
            assert name in text
            text = text.replace(name, place)
        (java_consumer.folder / "src/main/java/example/Guide.java").write_text(PROGRAM % text)
        java_consumer.build()
        command = java_consumer.command(jdk(17), "Guide")
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == shown


def test_the_page_names_the_artifact(java_consumer: Consumer) -> None:
    """The dependency of the page is the one of the program, in the version of the project."""
    [block] = [each.text for each in PAGE if each.language == "xml"]
    program = (java_consumer.folder / "pom.xml").read_text()
    for name in ("groupId", "artifactId"):
        [value] = re.findall(f"<{name}>(.+)</{name}>", block)
        assert f"<{name}>{value}</{name}>" in program
    assert f"<version>{re.findall('<version>(.+?)</version>', (ROOT / 'client/java/pom.xml').read_text())[0]}<" in block
