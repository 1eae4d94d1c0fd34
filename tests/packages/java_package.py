"""The Java client as a Maven repository on disk, and programs that get it from there."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.waiting import wait_until

CONSUMER = ROOT / "tests/packages/java"
# Another local repository reads from this one what is not of idalloc, without the network.
WARM = Path.home() / ".m2/repository"
SETTINGS = """<settings><profiles><profile><id>warm</id>
<activation><activeByDefault>true</activeByDefault></activation>
<repositories><repository><id>warm</id><url>file://{warm}</url></repository></repositories>
<pluginRepositories><pluginRepository><id>warm</id><url>file://{warm}</url></pluginRepository></pluginRepositories>
</profile></profiles></settings>
"""


def jdks() -> dict[int, Path]:
    """Return the JDKs of this machine by their version."""
    named = [Path(home) for name, home in os.environ.items() if name.startswith("JAVA_HOME")]
    found = {}
    for home in (*Path("/opt").glob("*jdk*"), *Path("/usr/lib/jvm").glob("*"), *named):
        if (home / "bin/javac").exists() and (home / "release").exists():
            version = re.search(r'^JAVA_VERSION="(\d+)', (home / "release").read_text(), re.MULTILINE)
            if version:
                found[int(version[1])] = home
    return found


def jdk(version: int) -> Path:
    """Return the JDK of a version; skip the test if this machine has none."""
    if version not in (found := jdks()):
        pytest.skip(f"JDK {version} is not installed, only {sorted(found)}: client/java is not tested with it")
    return found[version]


def run(folder: Path, *command: str, fails: bool = False) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=800)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout


class Sources:
    """A copy of what the artifact is built from, in a version that no cache has.

    Args:
        folder: Where to copy it.
        version: The version of the copy.
        repository: The repository on disk, if it was built before.
    """

    def __init__(self, folder: Path, version: str, repository: Path | None = None) -> None:
        self.folder = folder
        self.version = version
        self.project = folder / "client/java"
        self.repository = repository or folder / "dist/maven"
        shutil.copytree(ROOT / "client/java", self.project, ignore=shutil.ignore_patterns("target"))
        shutil.copytree(ROOT / "protos", folder / "protos")
        shutil.copy(ROOT / "Makefile", folder)
        (folder / "tests/support").mkdir(parents=True)
        for table in ("wrong_replies.json", "broken_transports.json"):
            shutil.copy(ROOT / "tests/support" / table, folder / "tests/support")
        pom = self.project / "pom.xml"
        pom.write_text(re.sub("<version>.*</version>", f"<version>{version}</version>", pom.read_text(), count=1))

    def build(self) -> None:
        """Write the repository on disk, as a release does."""
        run(self.folder, "make", "packages-maven")

    def archive(self, kind: str) -> Path:
        """Return the jar of the classes, or with ``-sources`` or ``-javadoc`` of these."""
        [found] = self.repository.glob(f"**/idalloc-client-{self.version}{kind}.jar")
        return found

    def forget_installed(self) -> None:
        """Remove this version from the local repository, where an example may have installed it."""
        group = re.findall("<groupId>(.+?)</groupId>", (self.project / "pom.xml").read_text())[0]
        shutil.rmtree(WARM / group.replace(".", "/") / "idalloc-client" / self.version, ignore_errors=True)

    def maven(self, *arguments: str, fails: bool = False) -> str:
        """Run Maven in the project."""
        return run(self.project, "mvn", "-B", *arguments, fails=fails)

    def change(self, file: str, old: str, new: str) -> None:
        """Replace a text that a source of the package has once, compared with the repository."""
        path = Path("client/java/src/main/java/io/idalloc/client") / file
        text = (ROOT / path).read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} of {old!r}"
        (self.folder / path).write_text(text.replace(old, new))


class Consumer:
    """A program that gets the artifact from a repository on disk alone.

    Args:
        folder: Where to copy the program.
        sources: What the artifact was built from.
    """

    def __init__(self, folder: Path, sources: Sources) -> None:
        self.folder = folder / "consumer"
        self.local = folder / "local"
        shutil.copytree(CONSUMER, self.folder)
        (folder / "settings.xml").write_text(SETTINGS.format(warm=WARM))
        self._maven = (
            *("mvn", "-B", "-q", "-s", str(folder / "settings.xml"), f"-Dmaven.repo.local={self.local}"),
            *(f"-Didalloc.repository=file://{sources.repository}", f"-Didalloc.version={sources.version}"),
        )
        sources.forget_installed()
        self.build("dependency:build-classpath", "-Dmdep.outputFile=classpath", "-Dmdep.includeScope=runtime")
        [origin] = self.local.glob(f"**/idalloc-client/{sources.version}/_remote.repositories")
        assert f"idalloc-client-{sources.version}.jar>built=" in origin.read_text()
        self.class_path = f"{self.folder}/target/classes:{(self.folder / 'classpath').read_text()}"

    def build(self, *goals: str) -> None:
        """Compile the program."""
        run(self.folder, *self._maven, "compile", *goals)

    def command(self, jdk: Path, program: str, *arguments: str) -> list[str]:
        """Return the command of a class of the program."""
        # Netty loads a library of its own, of which newer versions of Java warn.
        options = ["--enable-native-access=ALL-UNNAMED", "-cp", self.class_path]
        return [str(jdk / "bin/java"), *options, f"example.{program}", *arguments]


class Taker:
    """A program that takes ids of a pool until its input ends.

    Args:
        folder: Where it writes the ids.
        command: The program, without its last argument, the file.
        variables: The environment of the program.
    """

    def __init__(self, folder: Path, command: list[str], variables: dict[str, str]) -> None:
        self.file = folder / "java.ids"
        self._out = folder / "java.out"
        with self._out.open("w") as out:
            self.process = subprocess.Popen(
                [*command, str(self.file)],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
            )

    @property
    def size(self) -> int:
        """How many ids it has written."""
        assert self.process.poll() is None, self.process.communicate()
        return self.file.stat().st_size // 8 if self.file.exists() else 0

    def wait_for_more(self) -> None:
        """Wait until it has written more ids."""
        size = self.size
        wait_until(lambda: self.size > size + 10_000, "more ids", seconds=100)

    def end(self) -> tuple[list[int], set[str]]:
        """Let it end; return the ids and the reasons of its errors."""
        _, errors = self.process.communicate("", timeout=300)
        assert (self.process.returncode, errors) == (0, "")
        numbers = memoryview(self.file.read_bytes()[::-1]).cast("q")  # they are big endian
        return [*numbers], {*self._out.read_text().split()}
