"""An address belongs to one server, whether its port is shared among workers or not."""

import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.address import Address

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux only")


def has_ipv6() -> bool:
    try:
        with closing(socket.create_server(("::", 0), family=socket.AF_INET6)):
            return True
    except OSError:
        return False


on_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def free() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


@contextmanager
def taken(listen: str, *, shared: bool = False) -> Iterator[Address]:
    with closing(Address(listen, shared=shared)) as address:
        yield address


@contextmanager
def worker(address: str) -> Iterator[socket.socket]:
    """Listens as a worker does."""
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
def test_a_second_server_is_refused_also_before_the_first_one_listens(first: bool, second: bool) -> None:
    listen = free()
    refused = pytest.raises(StartRefused, match=f"listen: cannot serve on {listen}: Address already in use")
    with taken(listen, shared=first), refused:
        Address(listen, shared=second)
    with taken(listen, shared=second):
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
def test_a_wildcard_is_all_addresses_of_its_port(first: str, second: str, shared: bool) -> None:
    port = free().rpartition(":")[2]
    with taken(f"{first}:{port}", shared=True), pytest.raises(StartRefused, match="Address already in use"):
        Address(f"{second}:{port}", shared=shared)
    with taken(f"{first}:{port}"), pytest.raises(StartRefused, match="Address already in use"):
        Address(f"{second}:{port}", shared=True)
    with taken(f"{second}:{port}", shared=shared):
        pass


@on_linux
def test_a_wildcard_of_another_port_is_free() -> None:
    with taken("0.0.0.0:0", shared=True), taken("0.0.0.0:0", shared=True), taken("127.0.0.1:0", shared=True):
        pass


@on_linux
def test_a_server_is_refused_where_workers_are_left_of_one_that_was_killed() -> None:
    listen = free()
    with worker(listen):
        for shared in (False, True):
            with pytest.raises(StartRefused, match="in use"):
                Address(listen, shared=shared)


@on_linux
def test_workers_share_the_port_that_was_found_for_port_0() -> None:
    with taken("127.0.0.1:0", shared=True) as address:
        assert address.name.startswith("127.0.0.1:")
        with worker(address.name), worker(address.name), pytest.raises(StartRefused):
            Address(address.name)


@on_linux
def test_a_port_that_is_kept_takes_no_connection() -> None:
    with taken("127.0.0.1:0", shared=True) as address, worker(address.name) as listener:
        host, _, port = address.name.rpartition(":")
        for _ in range(20):  # any that the kernel gave to another socket would not come here
            with socket.create_connection((host, int(port)), timeout=10):
                listener.settimeout(10)
                listener.accept()[0].close()


@on_linux
def test_the_same_port_of_another_address_is_free() -> None:
    listen = free()
    port = listen.rpartition(":")[2]
    others = f"127.0.0.2:{port}", f"127.0.0.3:{port}"
    refused = pytest.raises(StartRefused, match="Address already in use")
    with taken(listen), taken(others[0]), taken(others[1], shared=True), refused:
        Address(f"0.0.0.0:{port}", shared=True)


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=on_linux)])
def test_a_host_that_does_not_exist(shared: bool) -> None:
    with pytest.raises(StartRefused, match=r"cannot serve on no-such-host\.invalid:1"):
        Address("no-such-host.invalid:1", shared=shared)


@on_linux
def test_an_address_that_this_machine_has_not() -> None:
    with pytest.raises(StartRefused, match="Cannot assign requested address"):
        Address("192.0.2.1:50051", shared=True)  # of the range for documentation
