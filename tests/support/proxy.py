"""A real Envoy with the configuration of deploy/envoy, on a free port, in front of Unix sockets."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import trustme

from tests.support import environments
from tests.support.manifests import DEPLOY
from tests.support.waiting import wait_until

# The options of docs/guides/envoy.md.
OPTIONS = ("--concurrency", "1", "--disable-hot-restart")
# What the configuration has as on a server, and its names in a test's folder.
PLACES = {"/etc/idalloc": "etc", "/run/idalloc": "run", "/run/envoy": "admin"}
FREE_PORT = {"address: 0.0.0.0, port_value: 50051": "address: 127.0.0.1, port_value: 0"}


@dataclass
class Proxy:
    """A running Envoy.

    Attributes:
        process: The process.
        folder: The folder of its files and sockets.
        authority: The authority of its certificate, and of clients.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    authority: trustme.CA
    address: str = ""

    @property
    def sockets(self) -> list[str]:
        """The listen addresses of the two servers."""
        return [f"unix:{self.folder}/run/{name}.sock" for name in ("one", "two")]

    @property
    def admin(self) -> Path:
        """The admin interface's socket."""
        return self.folder / "admin/admin.sock"

    def credentials(self) -> grpc.ChannelCredentials:
        """Return credentials of a client with a certificate."""
        leaf = self.authority.issue_cert("client.example")
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        return grpc.ssl_channel_credentials(self.authority.cert_pem.bytes(), leaf.private_key_pem.bytes(), chain)

    def channel(self, **options: Any) -> grpc.Channel:
        """Return a channel with a connection of its own."""
        own = [("grpc.use_local_subchannel_pool", 1), *options.pop("options", [])]
        return grpc.secure_channel(self.address, self.credentials(), own, **options)

    def tls(self, *, protocols: tuple[str, ...] = ("h2",), certificate: bool = True) -> ssl.SSLContext:
        """Return a client's context."""
        context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        context.set_alpn_protocols(list(protocols))
        if certificate:
            self.authority.issue_cert("client.example").configure_cert(context)
        return context

    def certify(self) -> None:
        """Put a new certificate in place as `mv` does."""
        leaf, tls = self.authority.issue_cert("127.0.0.1"), self.folder / "etc/tls"
        for name, blobs in (("server.key", [leaf.private_key_pem]), ("server.pem", leaf.cert_chain_pems)):
            (tls / f".{name}").write_bytes(b"".join(each.bytes() for each in blobs))
        self.authority.cert_pem.write_to_path(str(tls / ".ca.pem"))
        for name in ("server.key", "server.pem", "ca.pem"):
            (tls / f".{name}").rename(tls / name)

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

    def serves(self, servers: int) -> bool:
        """Return whether it knows that so many servers are healthy."""
        return self.stat("cluster.idalloc.membership_healthy") == servers


def render(folder: Path, changes: Mapping[str, str]) -> Path:
    """Write the configuration with the folder's paths and with changed values, and return its file."""
    for name in PLACES.values():
        (folder / name).mkdir(exist_ok=True)
    changes = {**FREE_PORT, **{place: f"{folder}/{name}" for place, name in PLACES.items()}, **changes}
    text = {each.name: each.read_text() for each in (DEPLOY / "envoy").glob("*.yaml")}
    for before, after in changes.items():
        assert any(before in each for each in text.values()), before
        text = {name: each.replace(before, after) for name, each in text.items()}
    for name, each in text.items():
        (folder / "etc" / name).write_text(each)
    (folder / "etc/tls").mkdir(exist_ok=True)
    return folder / "etc/envoy.yaml"


@contextmanager
def proxying(folder: Path, changes: Mapping[str, str] | None = None) -> Iterator[Proxy]:
    """Run Envoy until the end of the block.

    Args:
        folder: A folder with a short path, since those of Unix sockets are limited.
        changes: Values of the configuration, and what replaces them.
    """
    program, config = environments.envoy(), render(folder, changes or {})
    authority = trustme.CA()
    with (folder / "access.log").open("wb") as out, (folder / "envoy.log").open("wb") as errors:
        proxy = Proxy(None, folder, authority)  # type: ignore[arg-type]
        proxy.certify()
        command = [program, "-c", config, *OPTIONS]
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
