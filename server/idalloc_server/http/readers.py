"""Access control of HTTP requests, by the same identities, limits and audit log as gRPC calls."""

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Any

from aiohttp import web

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.client_certificates import auth_context_of
from idalloc_server.domain.errors import PermissionDenied, QuotaExceeded, Refusal, Unauthenticated
from idalloc_server.http.server import Handler

_STATUS = {
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    PermissionDenied: HTTPStatus.FORBIDDEN,
    QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
}


def require_reader(access_control: AccessControl, handler: Handler) -> Handler:
    """Return a handler that requires the role read on all sequences, if callers authenticate."""

    async def check(request: web.BaseRequest) -> web.StreamResponse:
        try:
            context: Any = _Caller(request)
            access_control.authorize_reader(f"{request.method} {request.path}", context)
        except Refusal as refusal:
            headers = {}
            if isinstance(refusal, Unauthenticated):
                headers["WWW-Authenticate"] = 'Bearer realm="idalloc"'
            if isinstance(refusal, QuotaExceeded):
                headers["Retry-After"] = str(ceil(refusal.retry_after))
            status = _STATUS.get(type(refusal), HTTPStatus.SERVICE_UNAVAILABLE)
            return web.Response(status=status, text=f"{refusal}\n", headers=headers)
        return await handler(request)

    return check


@dataclass(eq=False)
class _Caller:
    """An HTTP request as the parts of a gRPC call's context that access control reads."""

    request: web.BaseRequest

    def peer(self) -> str:
        """Return the address of the client as gRPC names it."""
        transport = self.request.transport
        address = transport.get_extra_info("peername") if transport else None
        if not address:
            return "http"
        host, port = address[:2]
        return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def invocation_metadata(self) -> Iterable[tuple[str, Any]]:
        """Return the headers that authenticate the request."""
        return [("authorization", value) for value in self.request.headers.getall("Authorization", ())]

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the client certificate in gRPC's form; nothing without one."""
        transport = self.request.transport
        return auth_context_of(transport.get_extra_info("ssl_object") if transport else None)
