"""Builds of the examples, each once, and what the servers and programs of these tests share."""

import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import idalloc
from tests.languages.programs import LANGUAGES, Language
from tests.support.certificates import Certificates
from tests.support.processes import IDALLOC, Server

SUMMARY = pytest.StashKey[list[str]]()


class Builds:
    """The builds of all examples, which run side by side."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._missing = {name: language.missing() for name, language in LANGUAGES.items()}
        # The slowest first.
        self._done: dict[str, Future[None]] = {
            name: executor.submit(LANGUAGES[name].build)
            for name in ("java", "node", "go", "python")
            if not self._missing[name]
        }

    def language(self, name: str) -> Language:
        """Return a language when its example is built; skip the test if that is impossible here."""
        if self._missing[name]:
            pytest.skip(self._missing[name])
        self._done[name].result()
        return LANGUAGES[name]

    def all(self) -> list[Language]:
        """Return all languages that can be built here."""
        return [self.language(name) for name in self._done]


@pytest.fixture(scope="session")
def builds() -> Iterator[Builds]:
    with ThreadPoolExecutor(2) as executor:
        yield Builds(executor)


@pytest.fixture(params=list(LANGUAGES))
def language(request: pytest.FixtureRequest, builds: Builds) -> Language:
    return builds.language(request.param)


class Secrets:
    """A certificate and a token for servers with TLS and access control, and for their clients."""

    def __init__(self, folder: Path) -> None:
        certificates = Certificates(folder)
        shown = certificates.client("127.0.0.1")
        self.ca = certificates.ca
        self.token_file = folder / "token"
        access = folder / "access.toml"
        roles = ["--allocate", "*", "--read", "*", "--admin", "*"]
        made = subprocess.run([IDALLOC, "token", "new", "tests", *roles], capture_output=True, text=True, check=True)
        access.write_text(made.stderr)
        self.token_file.write_text(made.stdout)
        self.settings = {"tls_cert": shown.cert, "tls_key": shown.key, "access_file": access}

    def arguments(self, server: Server, ca: Path | None = None, token_file: Path | None = None) -> list[str]:
        """Return a program's options for a server."""
        files = ["--ca", str(ca or self.ca), "--token-file", str(token_file or self.token_file)]
        return ["--server", server.address, *files]

    def client(self, server: Server) -> idalloc.Client:
        """Return a client of a server."""
        return self.client_of(server.address)

    def client_of(self, address: str) -> idalloc.Client:
        """Return a client of the server at an address."""
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())
        return idalloc.Client(address, credentials=credentials, token=self.token_file.read_text().strip())


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets(tmp_path_factory.mktemp("secrets"))


@pytest.fixture
def summary(pytestconfig: pytest.Config) -> list[str]:
    """Lines to print at the end of the run."""
    return pytestconfig.stash.setdefault(SUMMARY, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(SUMMARY, []):
        terminalreporter.write_line(line)
