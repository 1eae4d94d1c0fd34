"""The example programs in all languages: what they need, and how they are built and started."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import issued_log
from tests.support.paths import ROOT
from tests.support.processes import environment

EXAMPLES = ROOT / "examples"
BINARY = ROOT / ".build" / "languages" / "orders"
WAYS = ("pool", "unary", "allocate-stream", "request-id", "stream", "doc-ids")
RANGE_SIZE = 100  # of unary and request-id
REQUESTED_IDS = 10  # of allocate-stream: two ranges, and document ids


def minimum(file: str, pattern: str) -> str:
    """Return the version that a manifest requires."""
    found = re.search(pattern, (EXAMPLES / file).read_text(), re.MULTILINE)
    assert found, f"{file} has no {pattern}"
    return found[1]


@dataclass(frozen=True)
class Language:
    """A language and its example."""

    name: str  # the folder in examples/
    program: tuple[str, ...]  # its command
    # The commands that build the example and run its own tests, in its folder.
    steps: Callable[[], list[list[str]]] = list
    # The commands that must be installed, with the version that the example needs.
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the example."""
        return EXAMPLES / self.name

    def missing(self) -> str:
        """Return why the example cannot be built here, or an empty text."""
        for tool, needed in self.tools.items():
            if shutil.which(tool) is None:
                return f"{tool} is not installed: examples/{self.name} is not tested"
            # In the folder, as Go selects its toolchain by go.mod.
            asked = [tool, "version" if tool == "go" else "--version"]
            done = subprocess.run(asked, cwd=self.folder, env=environment(), capture_output=True, text=True)
            found = re.search(r"(?:^|[ vo])(\d+(?:\.\d+)*)", done.stdout)
            if found is None or numbers(found[1]) < numbers(needed):
                version = found[1] if found else done.stderr.strip()
                return f"{tool} {needed} is not installed, but {version}: examples/{self.name} is not tested"
        return ""

    def build(self) -> None:
        """Compile the example, and run its own tests."""
        for step in self.steps():
            done = subprocess.run(
                step, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert done.returncode == 0, f"{' '.join(step)} in examples/{self.name}:\n{done.stdout}"


def numbers(version: str) -> list[int]:
    """Return the numbers of a version."""
    return [int(each) for each in version.split(".")]


def go_steps() -> list[list[str]]:
    """Return Go's commands. The race detector needs a C compiler."""
    has_cgo = subprocess.run(["go", "env", "CGO_ENABLED"], capture_output=True, text=True).stdout.strip() == "1"
    return [
        ["go", "build", "-o", str(BINARY), "."],
        ["go", "vet", "./..."],
        ["go", "test", *(["-race"] if has_cgo else []), "./..."],
    ]


def java_steps() -> list[list[str]]:
    """Return Maven's commands: for the package, without its tests, then for the program.

    They need no network once Maven's local repository has all packages.
    """
    mvn = ["mvn", "-B", "-q"]  # tests/xproto/languages/test_mysql_clients.py runs the steps in another folder
    return [[*mvn, "-f", str(ROOT / "client" / "java"), "-DskipTests", "install"], [*mvn, "package"]]


def node_steps() -> list[list[str]]:
    """Return npm's commands: for the package, with its tests, then for the program that uses it."""
    npm = ["npm", "--prefix", str(ROOT / "client" / "node")]
    install = ["ci", "--prefer-offline", "--no-audit", "--no-fund"]
    package = [[*npm, *install], [*npm, "run", "build"], [*npm, "test"]]
    return [*package, ["npm", *install], ["npm", "run", "build"]]


LANGUAGES = {
    language.name: language
    for language in (
        Language("go", (str(BINARY),), go_steps, {"go": minimum("go/go.mod", r"^go (\S+)")}),
        Language(
            "java",
            ("java", "-jar", str(EXAMPLES / "java" / "target" / "idalloc-example.jar")),
            java_steps,
            {"javac": minimum("java/pom.xml", "<maven.compiler.release>(.+)<"), "mvn": "3.8.7"},
        ),
        Language(
            "node",
            ("node", str(EXAMPLES / "node" / "dist" / "main.js")),
            node_steps,
            {"node": minimum("node/package.json", r'"node": "\^([0-9.]+)'), "npm": "9"},
        ),
        Language("python", (sys.executable, str(EXAMPLES / "python" / "six_ways.py"))),
    )
}


@dataclass
class Way:
    """What a program printed about one of its ways to get ids."""

    name: str
    count: int
    first: str
    last: str

    @property
    def ids(self) -> tuple[int, int]:
        """The first and the last id, if they are numbers."""
        return int(self.first), int(self.last)


class Program:
    """A running example program."""

    def __init__(self, language: Language, folder: Path, *arguments: str) -> None:
        self.language = language
        self.log = folder / f"{language.name}.jsonl"  # of issued ids
        self._out, self._err = folder / f"{language.name}.out", folder / f"{language.name}.err"
        command = [*language.program, *arguments, "--log", str(self.log)]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command, cwd=language.folder, env=environment(), stdout=out, stderr=err, stdin=subprocess.DEVNULL
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """What it wrote to stdout."""
        return self._out.read_text()

    @property
    def ways(self) -> list[Way]:
        """The ways that are complete."""
        lines = self.output.splitlines(keepends=True)
        found = (re.fullmatch(r"(.+): (\d+) ids, (.+)\.\.(.+)\n", line) for line in lines)
        return [Way(each[1], int(each[2]), each[3], each[4]) for each in found if each]

    @property
    def records(self) -> list[issued_log.Record]:
        """The records of its log so far."""
        text = self.log.read_bytes() if self.log.exists() else b""
        return issued_log.parse(text).records if b"\n" in text else []

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._err.read_text()

    def stop(self) -> None:
        """Kill it, if it has not ended."""
        if self.is_running:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
