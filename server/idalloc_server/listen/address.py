"""The address that a server serves on: one server alone has it, also where its workers share the port."""

import errno
import os
import socket
import stat
import sys
from hashlib import sha256
from pathlib import Path

from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen_address import unix_path

# How many servers can be on one port, each on an address of its own.
_PLACES = 16
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here


class Address:
    """An address that was taken for this server, until ``close`` or the end of the process.

    A port that several processes share (SO_REUSEPORT) takes any further one of the same user, silently. So a server
    first sees that nobody listens there, and then keeps a name for the address that only one can have. A wildcard is
    all addresses of the port: it keeps all places that the port has, where any other address keeps one of them.

    Attributes:
        name: HOST:PORT, with the port that was found where port 0 was asked for; or unix:/PATH.

    Args:
        listen: HOST:PORT or unix:/PATH.
        shared: Whether workers will share the port. It is kept for them, also while none of them lives.

    Raises:
        StartRefused: The address is in use, or cannot be used.
    """

    def __init__(self, listen: str, *, shared: bool = False) -> None:
        host, _, port = listen.rpartition(":")
        self.name = listen
        self._kept: list[socket.socket] = []
        path = unix_path(listen)
        if path and shared:
            raise StartRefused("workers", f"several processes can share a port, not {listen}; set it to 1")
        try:
            if path:
                self._keep_path(path)
                return
            found = _addresses(host, int(port))
            _check_free(found)
            if shared:
                self.name = f"{host}:{self._keep_port(found)}"
            if not self.name.endswith(":0"):
                self._keep_name(_addresses(host, int(self.name.rpartition(":")[2])))
        except OSError as error:
            self.close()
            raise refused(listen, error) from None

    def close(self) -> None:
        """Leaves the address to others."""
        for each in self._kept:
            each.close()

    def _keep_path(self, path: str) -> None:
        if sys.platform == "linux":
            # Hashed, since a name of the kernel's may have no more than 107 bytes.
            self._keep(sha256(bytes(Path(path).resolve())).hexdigest())
        _check_path_free(path)

    def _keep_port(self, found: "list[_Found]") -> int:
        """Binds, and does not listen: the kernel then gives the port to those only who share it."""
        port = 0
        for family, kind, protocol, _, address in found:
            keeper = socket.socket(family, kind, protocol)
            self._kept.append(keeper)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                keeper.bind((address[0], port or address[1], *address[2:]))
            except OSError as error:
                # As in `_check_free`: an address that this machine has not may be left out, if another one is left.
                if error.errno == errno.EADDRINUSE or (not port and address is found[-1][4]):
                    raise
            else:
                port = keeper.getsockname()[1]
        return port

    def _keep_name(self, found: "list[_Found]") -> None:
        if sys.platform != "linux":  # nor are there workers that share a port
            return
        for *_, address in found:
            self._keep(f"{address[0]} {address[1]}")
        places = [f"port {found[0][4][1]}, place {each}" for each in range(_PLACES)]
        if any(address[0] in _WILDCARDS for *_, address in found):
            for place in places:
                self._keep(place)
        else:
            self._keep_one(places)

    def _keep(self, name: str) -> None:
        keeper = socket.socket(socket.AF_UNIX)
        self._kept.append(keeper)
        # An abstract name: it needs no file, belongs to the network that the port belongs to, and goes with us.
        keeper.bind(f"\0idalloc serves on {name}")

    def _keep_one(self, names: list[str]) -> None:
        """Keeps the first that is free."""
        for name in names:
            try:
                self._keep(name)
            except OSError:
                if name is names[-1]:
                    raise
            else:
                return


_Found = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


def refused(listen: str, error: OSError | RuntimeError) -> StartRefused:
    """Returns the refusal of a start whose address cannot be taken."""
    why = error.strerror if isinstance(error, OSError) else "no address can be bound"
    return StartRefused("listen", f"cannot serve on {listen}: {why}; choose another address or port")


def _addresses(host: str, port: int) -> list[_Found]:
    return socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)  # type: ignore[return-value]


def _check_free(found: list[_Found]) -> None:
    """Sees that the port is free on every address of a host: gRPC is content with one of them.

    Raises:
        OSError: It is in use on one, or the host has no address.
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
    """Sees that nobody listens on a path, and removes the socket of a server that was killed.

    gRPC takes the path of a server that runs, silently.

    Raises:
        OSError: It is in use, is something else, or its folder is missing.
    """
    file = Path(path)
    file.parent.stat()
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            file.unlink()
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
