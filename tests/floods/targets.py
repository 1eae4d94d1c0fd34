"""The servers that are flooded: each port, on each transport, and behind Envoy."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import trustme

from tests.floods import flooder
from tests.support.processes import IDALLOC, Server, running
from tests.support.proxy import Proxy, proxying, serving
from tests.xproto.floods import flooder as x_flooder

# All floods: this is the one import of the annex.
FLOODS = flooder.FLOODS | x_flooder.FLOODS
LOOPBACK = "127.0.0.1:0"
# Strangers have no certificate, so the limits behind TLS are reached.
NO_CLIENT_CERTIFICATES = {"require_client_certificate: true": "require_client_certificate: false"}


class Target(NamedTuple):
    """A running server, one port of which is flooded."""

    address: str
    callers: dict[str, Any]  # the options of ``tests/floods/callers.py``
    pids: list[int]  # the processes whose descriptors and memory count
    # The file with the authority of the flooded port's certificate; None if it has none.
    tls: Path | None
    guests: Mapping[str, str] = MappingProxyType({})  # the flooder's tokens, by the name of the identity


class Kind(NamedTuple):
    """A port of a server."""

    title: str  # its name in the document
    protocol: str  # a key of ``FLOODS``
    has_goal: bool  # whether strangers must not be noticed there
    about: str  # what it is and who calls
    package: str = "tests.floods"  # of the programs that flood and call


KINDS = {
    "grpcio": Kind(
        "gRPC, `grpcio`", "grpc", False, "The port of gRPC with TLS on the transport `grpcio`, without a proxy."
    ),
    "guests": Kind(
        "Guests of gRPC",
        "guests",
        False,
        "The port of gRPC on `grpcio`, without TLS; the flooder has a token. Besides the caller that uses a lease,\n"
        "one sends request ids at the same rate. The second in which the 500 streams open is included.",
    ),
    "native": Kind(
        "gRPC, `native`",
        "grpc",
        False,
        "The port of gRPC on the experimental transport `native`, without TLS and without a proxy.",
    ),
    "envoy": Kind(
        "gRPC behind Envoy",
        "grpc",
        True,
        "Envoy with TLS and the configuration of `deploy/envoy`, except that clients need no certificate; `native` on\n"
        "a Unix socket behind it. Descriptors and memory are those of both processes together.",
    ),
    "http": Kind(
        "HTTP port",
        "http",
        True,
        "The HTTP port with TLS. Besides the caller of gRPC, one reads the page at the same rate.",
    ),
    "x": Kind(
        "X Protocol port",
        "x",
        True,
        "The port of the X Protocol with TLS. Besides the caller of gRPC, one adds a document at the same rate.",
        "tests.xproto.floods",
    ),
}


def floods_of(name: str) -> list[str]:
    """Return the names of the floods of a kind of server."""
    floods = FLOODS[KINDS[name].protocol]
    return [each for each, flood in floods.items() if name != "native" or not flood.needs_tls]


@contextmanager
def running_target(name: str, folder: Path) -> Iterator[Target]:
    """Run a server of a kind, with an access file, until the end of the block.

    Args:
        name: A key of ``KINDS``.
        folder: A folder with a short path, for its files.
    """
    token = _write_access(folder)
    settings = {"access_file": folder / "access.toml", "http_listen": LOOPBACK}
    if name == "envoy":
        with proxying(folder, NO_CLIENT_CERTIFICATES) as proxy, serving(proxy, **settings) as server:
            yield _behind(proxy, server, token)
    elif name == "native":
        with running(folder, transport="native", **settings) as server:
            callers = {"token": token, "grpc": server.address, "http": _ports(server)["http"]}
            yield Target(server.address, callers, [server.process.pid], None)
    elif name == "guests":
        guests = {"guest": _add_guest(folder, "guest"), "metered": _add_guest(folder, "metered", 10)}
        with running(folder, **settings) as server:
            callers = {"token": token, "grpc": server.address, "http": _ports(server)["http"]}
            yield Target(server.address, callers | {"calls_rid": True}, [server.process.pid], None, guests)
    else:
        with running(folder, xproto_listen=LOOPBACK, **settings, **_write_certificate(folder)) as server:
            yield _target(name, server, folder, token)


def _target(name: str, server: Server, folder: Path, token: str) -> Target:
    ports, authority = _ports(server), folder / "ca.pem"
    address = {
        "grpcio": server.address,
        "http": ports["http"].removeprefix("https://").rstrip("/"),
        "x": ports["xproto"],
    }[name]
    callers = {
        "token": token,
        "grpc": server.address,
        "grpc_tls": True,
        "http": ports["http"],
        "tls": str(authority),
        "calls_http": name == "http",
    } | ({"x": address} if name == "x" else {})
    return Target(address, callers, [server.process.pid], authority)


def _behind(proxy: Proxy, server: Server, token: str) -> Target:
    authority = proxy.tls / "ca.pem"
    callers = {
        "token": token,
        "grpc": proxy.address,
        "grpc_tls": True,
        "tls": str(authority),
        "http": _ports(server)["http"],
    }
    return Target(proxy.address, callers, [server.process.pid, proxy.process.pid], authority)


def _ports(server: Server) -> dict[str, str]:
    found: dict[str, str] = json.loads(server.serving)
    return found


def _write_access(folder: Path) -> str:
    """Write an access file with the identity of the callers, and return its token."""
    roles = [part for role in ("allocate", "read", "admin") for part in (f"--{role}", "*")]
    made = subprocess.run([IDALLOC, "token", "new", "steady", *roles], capture_output=True, text=True, check=True)
    (folder / "access.toml").write_text(made.stderr)
    return made.stdout.strip()


def _add_guest(folder: Path, name: str, calls_per_second: int = 0) -> str:
    """Add an identity that may use few sequences to the access file, and return its token."""
    made = subprocess.run(
        [IDALLOC, "token", "new", name, "--allocate", "a*"], capture_output=True, text=True, check=True
    )
    with (folder / "access.toml").open("a") as file:
        file.write(made.stderr + f"calls_per_second = {calls_per_second}\n" * bool(calls_per_second))
    return made.stdout.strip()


def _write_certificate(folder: Path) -> dict[str, Path]:
    """Write a certificate with its key and its authority, and return the settings."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    return {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}
