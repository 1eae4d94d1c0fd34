"""Reservation of the listen address: one server has it, even if its workers share the port."""

import errno
import os
import socket
import stat
import sys
from hashlib import sha256
from pathlib import Path

from idalloc_server.domain.errors import StartRefused
from idalloc_server.settings.address import unix_path

# How many servers can use one port, each on its own address.
_SLOTS = 16
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here


class HeldAddress:
    """A listen address reserved for this server until ``close`` or the end of the process.

    With SO_REUSEPORT any process of the same user can bind the port. So a server first checks that
    nobody listens there, and then holds an abstract socket name for the address. A wildcard address
    holds all slots of its port, any other address holds one of them.

    Args:
        listen: HOST:PORT or unix:/PATH.
        shared: Whether workers share the port. The port stays reserved even while no worker runs.
        setting: The setting of the address, for errors.

    Raises:
        StartRefused: The address is in use, or cannot be bound.
    """

    def __init__(self, listen: str, *, shared: bool = False, setting: str = "listen") -> None:
        host, _, port = listen.rpartition(":")
        self.name = listen  # with the port in use if port 0 was requested
        self._sockets: list[socket.socket] = []
        path = unix_path(listen)
        if path and shared:
            raise StartRefused("workers", f"several processes can share a port, not {listen}; set it to 1")
        try:
            if path:
                if sys.platform == "linux":
                    # Hashed, since the kernel limits a name to 107 bytes.
                    self._hold(sha256(bytes(Path(path).resolve())).hexdigest())
                _check_path_free(path)
                return
            found = _addresses(host, int(port))
            _check_free(found)
            if shared:
                self.name = f"{host}:{self._reserve_port(found)}"
            if not self.name.endswith(":0"):
                self._reserve_address(_addresses(host, int(self.name.rpartition(":")[2])))
        except OSError as error:
            self.close()
            raise cannot_bind(listen, error, setting) from None

    def close(self) -> None:
        """Release the address."""
        for each in self._sockets:
            each.close()

    def _reserve_port(self, found: "list[_Found]") -> int:
        """Bind without listening, and return the port.

        Only processes that share the port can then bind it.
        """
        port = 0
        for family, kind, protocol, _, address in found:
            reserved = socket.socket(family, kind, protocol)
            self._sockets.append(reserved)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                reserved.bind((address[0], port or address[1], *address[2:]))
            except OSError as error:
                # As in `_check_free`: skip an address that this machine lacks, unless it is the
                # only one.
                if error.errno == errno.EADDRINUSE or (not port and address is found[-1][4]):
                    raise
            else:
                port = reserved.getsockname()[1]
        return port

    def _reserve_address(self, found: "list[_Found]") -> None:
        if sys.platform != "linux":  # Workers cannot share a port there.
            return
        for *_, address in found:
            self._hold(f"{address[0]} {address[1]}")
        takes_all = any(address[0] in _WILDCARDS for *_, address in found)
        for slot in range(_SLOTS):
            try:
                self._hold(f"port {found[0][4][1]}, place {slot}")
            except OSError:
                if takes_all or slot == _SLOTS - 1:
                    raise
            else:
                if not takes_all:
                    return

    def _hold(self, name: str) -> None:
        reserved = socket.socket(socket.AF_UNIX)
        self._sockets.append(reserved)
        # An abstract name needs no file, is local to the port's network namespace, and ends with
        # the process.
        reserved.bind(f"\0idalloc serves on {name}")


_Found = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


def cannot_bind(listen: str, error: OSError | RuntimeError, setting: str = "listen") -> StartRefused:
    """Return the error of a listen address that cannot be bound."""
    why = "no address can be bound"
    if isinstance(error, OSError):
        why = error.strerror or why
        if why.startswith("error while attempting to bind"):  # by asyncio, which adds the address
            why = os.strerror(error.errno or 0)
    return StartRefused(setting, f"cannot serve on {listen}: {why}; choose another address or port")


def _addresses(host: str, port: int) -> list[_Found]:
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(found))  # type: ignore[arg-type] # a name may lead to one address twice


def _check_free(found: list[_Found]) -> None:
    """Check that the port is free on every address of a host: gRPC requires only one of them.

    Raises:
        OSError: The port is in use on an address.
    """
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise


def _check_path_free(path: str) -> None:
    """Check that nobody listens on a path, and remove the socket of a killed server.

    gRPC silently takes over the path of a running server.

    Raises:
        OSError: The path is in use or not a socket, or its folder is missing.
    """
    file = Path(path)
    file.parent.stat()
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "a file exists there that is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            file.unlink()
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
