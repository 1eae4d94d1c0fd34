"""Names of the server in requests.

A stranger's web page can let its own name lead to 127.0.0.1 (DNS rebinding). A browser that shows
it sends that name, so the server answers only under its own names.
"""

import re
import socket
from collections.abc import Iterable
from http import HTTPStatus
from ipaddress import ip_address

from aiohttp import web

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.http.server import Handler

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@]+)(:[0-9]{1,5})?")


class OwnNames:
    """The names under which the server answers: of loopback and this machine, IP addresses, others.

    Args:
        listen: The listen address, HOST:PORT.
        names: Further names, without a port.
    """

    def __init__(self, listen: str, names: Iterable[str]) -> None:
        machine = socket.gethostname()
        own = ("localhost", machine, machine.partition(".")[0], listen.rpartition(":")[0])
        self._names = {name.lower() for name in (*own, *names)}

    def has(self, host: str) -> bool:
        """Return whether the value of a Host header has one of the names."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().removesuffix(".")
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return name in self._names or name.endswith(".localhost")
        return True

    def require(self, handler: Handler, access_control: AccessControl) -> Handler:
        """Return a handler that answers only under these names, unless callers authenticate.

        A request of HTTP/1.0 may have no name; no browser sends it.
        """

        async def check(request: web.BaseRequest) -> web.StreamResponse:
            if access_control.requires_authentication or all(map(self.has, request.headers.getall("Host", ()))):
                return await handler(request)
            text = "the header Host has no name of this server: add it to the setting http_hosts\n"
            return web.Response(status=HTTPStatus.MISDIRECTED_REQUEST, text=f"421 Misdirected Request: {text}")

        return check
