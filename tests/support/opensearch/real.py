"""Real OpenSearch nodes for tests, from pinned jars whose SHA-256 is checked before every start."""

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.paths import ROOT
from tests.support.waiting import wait_until

SOURCES = Path(__file__).parent
CACHE = ROOT / ".build" / "opensearch"
SYSTEM_JAVA = Path("/usr/lib/jvm")
# Little memory, and little CPU for a start: the JIT's second tier costs more than it saves here.
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_SECONDS = 240
SECURITY_PLUGIN = "org.opensearch.security.OpenSearchSecurityPlugin"


@dataclass(frozen=True)
class Release:
    """A version of OpenSearch, its log4j, the major versions of Java that run it, and its security
    plugin if any.
    """

    version: str
    log4j: str
    min_java: int
    max_java: int
    security: str = ""


# The newest with a security plugin in Maven Central.
SECURED = Release("3.4.0", "2.21.0", 21, 99, security="3.4.0.0")
RELEASES = {each.version: each for each in (Release("3.8.0", "2.25.4", 21, 99), Release("2.19.1", "2.21.0", 11, 23))}


def missing(release: Release) -> str:
    """Return why a release cannot be started here, or an empty text."""
    if _java_home(release) is None:
        return (
            f"no JDK {release.min_java} to {release.max_java} is installed: OpenSearch {release.version} is not tested"
        )
    if shutil.which("mvn") is None:
        return f"Maven is not installed: OpenSearch {release.version} is not tested"
    return ""


def prepared(release: Release) -> Path:
    """Return the folder with the jars, plugin and launcher of a release; fetch and compile them
    the first time.
    """
    inputs = [SOURCES / "pom.xml", SOURCES / "OsNode.java", _hashes(release)]
    key = hashlib.sha256(b"".join(each.read_bytes() for each in inputs)).hexdigest()[:12]
    folder = CACHE / f"{release.version}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = CACHE / "making"
            shutil.rmtree(making, ignore_errors=True)
            _fetch(release, making / "jars")
            _check_jars(release, making / "jars")
            for plugin in (making / "jars").glob("*.zip"):
                shutil.unpack_archive(plugin, making / "plugin")
            _compile(release, making)
            making.rename(folder)
    _check_jars(release, folder / "jars")
    return folder


class OpenSearchNode:
    """A running node, as a context manager that stops it.

    Args:
        release: The release.
        home: A folder for its data and its log.
        settings: More settings, as ``node.name``.
    """

    def __init__(self, release: Release, home: Path, **settings: str) -> None:
        self._release = release
        self._home = home
        # For the next start.
        self.settings = {
            "network.host": "127.0.0.1",
            "http.port": "0",
            "transport.port": "0",
            "path.data": str(home / "data"),
            # Without this a full disk of the machine blocks writes.
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **(settings or {"discovery.type": "single-node"}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.host = ""  # HOST:PORT of HTTP
        self.transport = ""  # HOST:PORT for other nodes

    def __enter__(self) -> Self:
        self.start()
        self.wait_for_ports()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process."""
        folder, java = prepared(self._release), _java_home(self._release)
        self._home.mkdir(parents=True, exist_ok=True)
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        classes = os.pathsep.join(map(str, (folder / "classes", folder / "jars" / "*", folder / "plugin" / "*")))
        command = [f"{java}/bin/java", *JVM_OPTIONS, "-cp", classes, "OsNode", str(self._home)]
        command += [SECURITY_PLUGIN] * bool(self._release.security) + settings
        with self._log.open("wb") as log:
            # It ends with its standard input, so also when the tests are killed.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def wait_for_ports(self) -> None:
        """Wait until the node serves; its ports stay the same when it is started again."""
        ports: list[tuple[str, str]] = []

        def is_serving() -> bool:
            assert self._process
            assert self._process.poll() is None, f"OpenSearch ended:\n{self._log.read_text()[-4000:]}"
            ports[:] = re.findall(r"^PORTS (\d+) (\d+)$", self._log.read_text(), re.MULTILINE)
            return bool(ports)

        wait_until(is_serving, f"OpenSearch {self._release.version} starts", START_SECONDS)
        http, transport = ports[0]
        self.settings |= {"http.port": http, "transport.port": transport}
        self.host, self.transport = f"127.0.0.1:{http}", f"127.0.0.1:{transport}"

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self._process
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop the process; kill it if that takes too long."""
        if self._process is None:
            return
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def _log(self) -> Path:
        return self._home / "log"


def _hashes(release: Release) -> Path:
    return SOURCES / f"sha256-{release.version}.txt"


def _fetch(release: Release, folder: Path) -> None:
    versions = [f"-Dopensearch.version={release.version}", f"-Dlog4j.version={release.log4j}"]
    if release.security:
        versions.append(f"-Dsecurity.version={release.security}")
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    command = ["mvn", "-B", "-q", "-f", str(SOURCES / "pom.xml"), *versions, *copy]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"


def _check_jars(release: Release, folder: Path) -> None:
    """Compare all jars with the committed list, which sha256sum wrote: Maven itself checks no more
    than SHA-1.
    """
    expected = {name: known for known, name in map(str.split, _hashes(release).read_text().splitlines())}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.iterdir()}
    wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    assert not wrong, f"other jars than in {_hashes(release).name}: {', '.join(wrong)}"


def _compile(release: Release, folder: Path) -> None:
    javac = f"{_java_home(release)}/bin/javac"
    command = [javac, "-cp", f"{folder / 'jars'}/*", "-d", str(folder / "classes"), str(SOURCES / "OsNode.java")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"


def _java_home(release: Release) -> Path | None:
    """Return the folder of a JDK that runs the release: of JAVA_HOME, of the PATH, or of the
    system.
    """
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if on_path := shutil.which("javac"):
        homes.append(Path(on_path).resolve().parents[1])
    if SYSTEM_JAVA.is_dir():
        homes.extend(sorted(SYSTEM_JAVA.iterdir()))
    for home in homes:
        with suppress(OSError):
            found = re.search(r'^JAVA_VERSION="(\d+)', (home / "release").read_text(), re.MULTILINE)
            if found and release.min_java <= int(found[1]) <= release.max_java and (home / "bin" / "javac").exists():
                return home
    return None
