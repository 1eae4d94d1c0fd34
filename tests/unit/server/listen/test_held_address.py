"""An address belongs to one server, with or without workers that share its port."""

import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from random import sample

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.held_address import HeldAddress

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux only")


def has_ipv6() -> bool:
    try:
        with closing(socket.create_server(("::", 0), family=socket.AF_INET6)):
            return True
    except OSError:
        return False


on_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def free_port() -> int:
    """Return a port that is free on all addresses, outside those that the kernel assigns."""
    for port in sample(range(20_000, 32_000), 100):
        with suppress(OSError), closing(socket.create_server(("0.0.0.0", port))):
            if not has_ipv6():
                return port
            with closing(socket.create_server(("::", port), family=socket.AF_INET6)):
                return port
    raise AssertionError("of 100 ports, none is free")


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextmanager
def reserved(listen: str, *, shared: bool = False) -> Iterator[HeldAddress]:
    with closing(HeldAddress(listen, shared=shared)) as address:
        yield address


@contextmanager
def worker(address: str) -> Iterator[socket.socket]:
    """Listen as a worker does."""
    host, _, port = address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, int(port)))
        listener.listen()
        yield listener


@on_linux
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_second_server_is_refused_before_the_first_listens(first: bool, second: bool) -> None:
    """An address is reserved before its server listens, with and without workers."""
    listen = free_address()
    error = pytest.raises(StartRefused, match=f"listen: cannot serve on {listen}: Address already in use")
    with reserved(listen, shared=first), error:
        HeldAddress(listen, shared=second)
    with reserved(listen, shared=second):
        pass


@on_linux
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        pytest.param("[::]", "127.0.0.1", marks=on_ipv6),
        pytest.param("0.0.0.0", "[::]", marks=on_ipv6),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_wildcard_reserves_all_addresses_of_its_port(first: str, second: str, shared: bool) -> None:
    """A wildcard address conflicts with every address of the same port."""
    port = free_port()
    with reserved(f"{first}:{port}", shared=True), pytest.raises(StartRefused, match="Address already in use"):
        HeldAddress(f"{second}:{port}", shared=shared)
    with reserved(f"{first}:{port}"), pytest.raises(StartRefused, match="Address already in use"):
        HeldAddress(f"{second}:{port}", shared=True)
    with reserved(f"{second}:{port}", shared=shared):
        pass


@on_linux
def test_wildcards_of_different_ports_do_not_conflict() -> None:
    """Wildcard addresses of different ports do not conflict."""
    with reserved("0.0.0.0:0", shared=True), reserved("0.0.0.0:0", shared=True), reserved("127.0.0.1:0", shared=True):
        pass


@on_linux
def test_server_is_refused_while_orphaned_workers_listen() -> None:
    """A server does not start while workers of a killed server still listen."""
    listen = free_address()
    with worker(listen):
        for shared in (False, True):
            with pytest.raises(StartRefused, match="in use"):
                HeldAddress(listen, shared=shared)


@on_linux
def test_workers_share_the_port_selected_for_port_0() -> None:
    """Workers listen on the port that was selected for port 0; another server cannot."""
    with reserved("127.0.0.1:0", shared=True) as address:
        assert address.name.startswith("127.0.0.1:")
        with worker(address.name), worker(address.name), pytest.raises(StartRefused):
            HeldAddress(address.name)


@on_linux
def test_reserving_a_port_accepts_no_connection() -> None:
    """All connections go to the worker, none to the socket that reserves the port."""
    with reserved("127.0.0.1:0", shared=True) as address, worker(address.name) as listener:
        host, _, port = address.name.rpartition(":")
        for _ in range(20):  # A connection to the reserving socket would not arrive here.
            with socket.create_connection((host, int(port)), timeout=10):
                listener.settimeout(10)
                listener.accept()[0].close()


@on_linux
def test_same_port_of_another_address_is_free() -> None:
    """Several addresses can use one port; a wildcard then cannot."""
    port = free_port()
    listen = f"127.0.0.1:{port}"
    others = f"127.0.0.2:{port}", f"127.0.0.3:{port}"
    error = pytest.raises(StartRefused, match="Address already in use")
    with reserved(listen), reserved(others[0]), reserved(others[1], shared=True), error:
        HeldAddress(f"0.0.0.0:{port}", shared=True)


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=on_linux)])
def test_unknown_host_is_refused(shared: bool) -> None:
    """An unknown host name is a start error that names it."""
    with pytest.raises(StartRefused, match=r"cannot serve on no-such-host\.invalid:1"):
        HeldAddress("no-such-host.invalid:1", shared=shared)


@on_linux
def test_address_of_another_machine_is_refused() -> None:
    """An address that this machine lacks is a start error."""
    with pytest.raises(StartRefused, match="Cannot assign requested address"):
        HeldAddress("192.0.2.1:50051", shared=True)  # TEST-NET-1 of RFC 5737
