"""A real Envoy with the configuration of deploy/envoy, on a free port, in front of Unix sockets."""

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import trustme

import idalloc
from tests.support import environments
from tests.support.manifests import DEPLOY
from tests.support.processes import Server, running
from tests.support.waiting import wait_until

# The options of docs/guides/envoy.md.
OPTIONS = ("--concurrency", "1", "--disable-hot-restart")
# What the configuration has as on a server, and its names in a test's folder.
PLACES = {"/etc/idalloc": "etc", "/run/idalloc": "run", "/run/envoy": "admin"}
HEALTHY = "cluster.idalloc.membership_healthy"
FREE_PORT = {"address: 0.0.0.0, port_value: 50051": "address: 127.0.0.1, port_value: 0"}


@dataclass
class Proxy:
    """A running Envoy."""

    process: subprocess.Popen[bytes]
    folder: Path  # the folder of its files and sockets
    authority: trustme.CA  # the authority of its certificate, and of clients
    address: str = ""

    @property
    def sockets(self) -> list[str]:
        """The listen addresses of the two servers."""
        return [f"unix:{self.folder}/run/{name}.sock" for name in ("one", "two")]

    @property
    def admin(self) -> Path:
        """The admin interface's socket."""
        return self.folder / "admin/admin.sock"

    @property
    def tls(self) -> Path:
        """The folder with the files of its certificate, and with a client's."""
        return self.folder / "etc/tls"

    def channel(self, **options: Any) -> grpc.Channel:
        """Return a channel with a connection of its own."""
        return secure_channel(self.address, self.tls, **options)

    def certify(self) -> None:
        """Put a new certificate in place as `mv` does."""
        write_certificate(self.authority, "127.0.0.1", self.tls / ".server")
        self.authority.cert_pem.write_to_path(str(self.tls / ".ca.pem"))
        for name in ("server.key", "server.pem", "ca.pem"):
            (self.tls / f".{name}").rename(self.tls / name)

    def ask(self, path: str) -> str:
        """Return an answer of the admin interface."""
        connection = http.client.HTTPConnection("localhost", timeout=10)
        with socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.settimeout(10)
            connection.sock.connect(str(self.admin))
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def stat(self, name: str) -> int:
        """Return a counter or gauge; 0 for one that does not exist yet."""
        return sum(int(line.rpartition(" ")[2]) for line in self.ask(f"/stats?filter=^{name}$").splitlines())

    @property
    def log(self) -> list[dict[str, Any]]:
        """The access log."""
        lines = (self.folder / "access.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def secure_channel(address: str, tls: Path, **options: Any) -> grpc.Channel:
    """Return a channel with a connection of its own, and a client's certificate from a folder."""
    own = [("grpc.use_local_subchannel_pool", 1), *options.pop("options", [])]
    return grpc.secure_channel(address, client_credentials(tls), own, **options)


def sdk(proxy: Proxy) -> idalloc.Client:
    """Return a client of the SDK that calls through a proxy."""
    return idalloc.Client(proxy.address, credentials=client_credentials(proxy.tls))


def client_credentials(tls: Path) -> grpc.ChannelCredentials:
    """Return a client's credentials from a folder."""
    return grpc.ssl_channel_credentials(*((tls / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem")))


def write_certificate(authority: trustme.CA, name: str, file: Path) -> None:
    """Write a certificate and its key to ``file`` with the endings .pem and .key."""
    leaf = authority.issue_cert(name)
    leaf.private_key_pem.write_to_path(f"{file}.key")
    Path(f"{file}.pem").write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))


@contextmanager
def serving(proxy: Proxy, **settings: object) -> Iterator[Server]:
    """Run a native server behind a proxy during the block; by default the first of two."""
    settings = {"transport": "native", "listen": proxy.sockets[0], "trust_proxy": "true"} | settings
    known = proxy.stat(HEALTHY)
    with running(proxy.folder, **settings) as server:
        wait_until(lambda: proxy.stat(HEALTHY) > known, "Envoy knows the server")
        yield server


def render(folder: Path, changes: Mapping[str, str], source: Path = DEPLOY / "envoy") -> Path:
    """Write the configuration with the folder's paths and with changed values, and return its file.

    Args:
        folder: A folder with a short path.
        changes: Values of the configuration, and what replaces them.
        source: The folder of the configuration.
    """
    for name in PLACES.values():
        (folder / name).mkdir(exist_ok=True)
    text = {each.name: each.read_text() for each in source.glob("envoy*.yaml")}
    places = {
        place: f"{folder}/{name}" for place, name in PLACES.items() if any(place in each for each in text.values())
    }
    changes = {**FREE_PORT, **places, **changes}
    for before, after in changes.items():
        assert any(before in each for each in text.values()), before
        text = {name: each.replace(before, after) for name, each in text.items()}
    for name, each in text.items():
        (folder / "etc" / name).write_text(each)
    (folder / "etc/tls").mkdir(exist_ok=True)
    return folder / "etc/envoy.yaml"


@contextmanager
def proxying(
    folder: Path, changes: Mapping[str, str] | None = None, source: Path = DEPLOY / "envoy", options: Iterable[str] = ()
) -> Iterator[Proxy]:
    """Run Envoy until the end of the block.

    Args:
        folder: A folder with a short path, since those of Unix sockets are limited.
        changes: Values of the configuration, and what replaces them.
        source: The folder of the configuration.
    """
    program, config = environments.envoy(), render(folder, changes or {}, source)
    authority = trustme.CA()
    with (folder / "access.log").open("wb") as out, (folder / "envoy.log").open("wb") as errors:
        proxy = Proxy(None, folder, authority)  # type: ignore[arg-type]
        proxy.certify()
        write_certificate(authority, "client.example", proxy.tls / "client")
        command = [str(program), "-c", str(config), *OPTIONS, *options, "--file-flush-interval-msec", "100"]
        proxy.process = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)

    def is_listening() -> bool:
        assert proxy.process.poll() is None, (folder / "envoy.log").read_text()[-3000:]
        with suppress(OSError):
            found = proxy.ask("/listeners").strip().partition("::")[2]
            proxy.address = found
        return bool(proxy.address)

    try:
        wait_until(is_listening, "Envoy listens")
        yield proxy
    finally:
        if proxy.process.poll() is None:
            os.killpg(proxy.process.pid, signal.SIGTERM)
        try:
            proxy.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(proxy.process.pid, signal.SIGKILL)
            proxy.process.wait()
