"""What the identity of a session may do and see, and the audit of what it changes and of what is denied to it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from idalloc_server.auth.access import Identity
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.document_roles import has_role, may_see
from idalloc_server.auth.logins import Logins, Peer
from idalloc_server.domain.errors import PermissionDenied, Refusal, StoreOutcomeUnknown
from idalloc_server.xproto.errors import XError
from idalloc_server.xproto.operations import Operation


class SessionRights:
    """The ``Rights`` of a session.

    Args:
        identity: Returns the session's identity under the current policy.
        logins: Records what is denied.
        audit: Records what is changed.
        peer: The other end of the connection.
        host: Its host, for the error.
    """

    def __init__(self, identity: Callable[[], Identity], logins: Logins, audit: Audit, peer: Peer, host: str) -> None:
        self._identity = identity
        self._logins = logins
        self._audit = audit
        self._peer = peer
        self._host = host

    def require(self, operation: Operation, schema: str, collection: str = "") -> None:
        """See ``Rights``."""
        identity = self._identity()
        if not has_role(identity, operation.role, schema, collection):
            raise self._denied(identity, operation, schema, collection)

    def visible(self, names: Iterable[str], schema: str = "") -> list[str]:
        """See ``Rights``."""
        identity = self._identity()
        if schema:
            return [name for name in names if may_see(identity, schema, name)]
        return [name for name in names if may_see(identity, name)]

    @contextmanager
    def audited(self, operation: Operation, schema: str, collection: str = "") -> Iterator[dict[str, Any]]:
        """See ``Rights``."""
        self.require(operation, schema, collection)
        with self._audit.record_admin_call(
            identity=self._identity().name,
            peer=self._peer.address,
            method=operation.method,
            outcome_of=_outcome_of,
            **_target(schema, collection),
        ) as record:
            yield record

    def _denied(self, identity: Identity, operation: Operation, schema: str, collection: str) -> XError:
        """Record a denied operation, and return its error."""
        name, kind = (f"{schema}.{collection}", "collection") if collection else (schema, "schema")
        refusal = PermissionDenied(identity.name, operation.role, name, kind)
        self._logins.record_denied(operation.method, identity, refusal, self._peer, **_target(schema, collection))
        user, table = f"'{identity.name}'@'{self._host}'", collection or schema
        return XError(1142, f"{operation.command} command denied to user {user} for table '{table}'", "42000")


def _target(schema: str, collection: str) -> dict[str, str]:
    return {"schema": schema, "collection": collection} if collection else {"schema": schema}


def _outcome_of(error: Exception) -> dict[str, str]:
    """Return the outcome of a failed change, without its text: that may have values of documents."""
    match error:
        case StoreOutcomeUnknown():
            return {"code": error.status, "reason": error.reason, "outcome": "unknown"}
        case Refusal():
            return {"code": error.status, "reason": error.reason}
        case XError():
            return {"code": str(error.code)}
        case _:
            return {"code": "INTERNAL", "reason": "INTERNAL"}
