"""The refusals of OpenSearch, in the form in which it answers them."""

from typing import Any


class UnknownRequest(Exception):
    """The stand-in does not know this form of a request, or this script."""


class Refusal(Exception):
    """A refused request.

    Args:
        kind: The ``type`` of the error.
        reason: Its text.
        caused_by: The cause, if OpenSearch names one.
        fields: More fields of the error, as ``index``.
    """

    def __init__(
        self, status: int, kind: str, reason: str | None, caused_by: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        super().__init__(f"{status} {kind}: {reason}")
        self.status = status
        self.root = {"type": kind, "reason": reason, **fields}
        self.error = self.root | ({"caused_by": caused_by} if caused_by else {})

    def body(self) -> dict[str, Any]:
        """Return the answer's body."""
        return {"error": {"root_cause": [self.root], **self.error}, "status": self.status}


def missing_index(name: str, **fields: Any) -> Refusal:
    """Return the refusal of a read of a missing index."""
    more = {"resource.id": name, **fields} if fields else {}
    return Refusal(404, "index_not_found_exception", f"no such index [{name}]", index=name, index_uuid="_na_", **more)


def missing_scroll(scroll: str) -> Refusal:
    """Return the refusal of a page of a scroll that ended."""
    cause = {"type": "search_context_missing_exception", "reason": f"No search context found for id [{scroll}]"}
    refusal = Refusal(404, "search_phase_execution_exception", "all shards failed", cause, phase="query", grouped=True)
    refusal.root = cause
    return refusal


def not_an_alias(name: str) -> Refusal:
    """Return the refusal of a write that requires an alias."""
    reason = f"no such index [{name}] and [require_alias] request flag is [true] and [{name}] is not an alias"
    return Refusal(404, "index_not_found_exception", reason, index=name, index_uuid="_na_")


def invalid(reason: str) -> Refusal:
    """Return the refusal of parameters that contradict each other."""
    return Refusal(400, "action_request_validation_exception", f"Validation Failed: 1: {reason};")


def failed_script(kind: str, reason: str | None) -> Refusal:
    """Return the refusal of a write whose script failed."""
    cause = {"type": "script_exception", "reason": "runtime error", "caused_by": {"type": kind, "reason": reason}}
    return Refusal(400, "illegal_argument_exception", "failed to execute script", cause)
