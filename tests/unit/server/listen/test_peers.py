"""The caller's address behind a proxy on a Unix socket."""

from types import SimpleNamespace
from typing import Any

import pytest

from idalloc_server.auth.call_types import invocation_metadata
from idalloc_server.listen.peers import proxied_peer


def peer(connection: str, *forwarded: str) -> str:
    metadata = [("x-other", "192.0.2.1"), *(("x-forwarded-for", each) for each in forwarded)]
    context: Any = SimpleNamespace(peer=lambda: connection, invocation_metadata=lambda: metadata)
    return proxied_peer(invocation_metadata, context)


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        (["10.0.0.7"], "ipv4:10.0.0.7"),
        (["9.9.9.9,10.0.0.7"], "ipv4:10.0.0.7"),
        (["9.9.9.9, 10.0.0.7"], "ipv4:10.0.0.7"),
        (["9.9.9.9", "10.0.0.7"], "ipv4:10.0.0.7"),
        (["2001:db8::7"], "ipv6:[2001:db8::7]"),
    ],
)
def test_the_proxy_names_the_peer(forwarded: list[str], expected: str) -> None:
    """On a Unix socket the last address, which the proxy appended, is the peer's."""
    assert peer("unix:", *forwarded) == expected


@pytest.mark.parametrize("forwarded", [[], [""], ["unknown"], ["10.0.0.7,"], ["10.0.0.7:80"]])
def test_a_peer_without_a_valid_address_is_the_socket(forwarded: list[str]) -> None:
    """Without a valid last address the peer is the Unix socket; no earlier address counts."""
    assert peer("unix:/run/ids.sock", *forwarded) == "unix:/run/ids.sock"


@pytest.mark.parametrize("connection", ["ipv4:10.0.0.7:51234", "ipv6:[::1]:51234"])
def test_the_header_counts_on_unix_sockets_only(connection: str) -> None:
    """A caller over TCP, such as of the HTTP port, cannot name another address."""
    assert peer(connection, "9.9.9.9") == connection
