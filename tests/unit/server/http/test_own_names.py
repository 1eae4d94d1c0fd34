"""The names under which the HTTP port answers while nobody authenticates."""

import socket

import pytest

from idalloc_server.http.own_names import OwnNames

NAMES = OwnNames("ids.example.org:50080", ["idalloc-1", "Metrics.Example.ORG"])


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:50080", "a.localhost:1", "localhost.", "127.0.0.1", "10.1.2.3:50080", "[::1]:50080"),
        *("[fe80::1]", "ids.example.org", "IDS.example.org:443", "idalloc-1:50080", "metrics.example.org."),
    ],
)
def test_own_names_are_answered(host: str) -> None:
    """Loopback names, IP addresses, the listen address and http_hosts; any port, any case."""
    assert NAMES.has(host)


def test_the_name_of_this_machine_is_answered() -> None:
    """Prometheus scrapes a machine by its name, which no stranger owns."""
    assert NAMES.has(f"{socket.gethostname()}:50080")


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:50080", "notlocalhost", ".", ":50080"),
        *("localhost@evil.example", "evil.example#localhost", "localhost:x", "[::1", "::1", "0x7f.1", "idalloc-1/x"),
        *("localhost evil.example", "idalloc-10", "1.2.3", "[localhost]"),
    ],
)
def test_other_names_are_not(host: str) -> None:
    """A name that a stranger can own is refused, and so is a value that is not a host."""
    assert not NAMES.has(host)
