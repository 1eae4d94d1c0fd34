"""What the identity of a session may do and see, with an audit of its changes and denials."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from idalloc_server.auth.sessions import Audit, Identity, Limits
from idalloc_server.domain.errors import PermissionDenied, Refusal, StoreOutcomeUnknown
from idalloc_xproto.document_roles import has_role, may_see
from idalloc_xproto.mysql_errors import XError
from idalloc_xproto.operations import Operation


@dataclass(eq=False)
class SessionRights:
    """What the caller of a statement, a session, may do and see."""

    identity: Callable[[], Identity]  # returns the session's identity under the current policy
    limits: Limits  # records what is denied
    audit: Audit  # records what is changed
    peer: str  # the client's address
    host: str  # the client's host, for the error

    def require(self, operation: Operation, schema: str, collection: str = "") -> None:
        """Check that the caller has the role of an operation on a collection, or on a schema.

        Raises:
            XError: 1142, the caller lacks the role; the audit records it.
        """
        identity = self.identity()
        if has_role(identity, operation.role, schema, collection):
            return
        name, kind = (f"{schema}.{collection}", "collection") if collection else (schema, "schema")
        refusal = PermissionDenied(identity.name, operation.role, name, kind)
        self.limits.record_denied(operation.method, identity, refusal, self.peer, **_target(schema, collection))
        denied = f"denied to user '{identity.name}'@'{self.host}' for table '{collection or schema}'"
        raise XError(1142, f"{operation.command} command {denied}", "42000")

    def visible(self, names: Iterable[str], schema: str = "") -> list[str]:
        """Return those collections of a schema on which the caller has any role.

        Without ``schema`` the names are schemas: it returns those on which, or on anything in
        which, the caller has a role. Statements answer any other name as one that does not exist.
        """
        identity = self.identity()
        if schema:
            return [name for name in names if may_see(identity, schema, name)]
        return [name for name in names if may_see(identity, name)]

    @contextmanager
    def audited(self, operation: Operation, schema: str, collection: str = "") -> Iterator[dict[str, Any]]:
        """Check the role of an administrative operation, and audit what this block does.

        The block may add fields to the record: how much it changed, and nothing of a document.

        Raises:
            XError: See ``require``.
        """
        self.require(operation, schema, collection)
        with self.audit.record_admin_call(
            identity=self.identity().name,
            peer=self.peer,
            method=operation.method,
            outcome_of=_outcome_of,
            **_target(schema, collection),
        ) as record:
            yield record


def _target(schema: str, collection: str) -> dict[str, str]:
    return {"schema": schema, "collection": collection} if collection else {"schema": schema}


def _outcome_of(error: Exception) -> dict[str, str]:
    """Return the outcome of a failed change, without its text, which may have document values."""
    match error:
        case StoreOutcomeUnknown():
            return {"code": error.status, "reason": error.reason, "outcome": "unknown"}
        case Refusal():
            return {"code": error.status, "reason": error.reason}
        case XError():
            return {"code": str(error.code)}
        case _:
            return {"code": "INTERNAL", "reason": "INTERNAL"}
