"""The errors of the domain: why a call (``Refusal``) or a start (``StartRefused``) is refused.

More subclasses are in store/name_holds.py and witness/chain.py.
"""

from pathlib import Path
from typing import ClassVar

# Longer rules are truncated: a status contains the rule three times and must fit into 8 kB.
MAX_RULE_BYTES = 500


class Refusal(Exception):
    """Base class of the errors that a call can fail with.

    Its reason, status, retry (see ``Retryable``) and next step are stated here only.
    error_reason.proto adds meaning, metadata and example; ``make docs-reference`` writes
    docs/reference/errors.md from both.
    """

    reason: ClassVar[str]  # the value of ``idalloc.v1.ErrorReason``, without its prefix
    status: ClassVar[str]  # the name of the gRPC status code
    # What the caller or the operator does, in Markdown with links as from docs/reference/.
    next_step: ClassVar[str]
    # How many seconds a caller that is refused too often must wait; else 0. It is answered late.
    wait = 0.0

    def __init_subclass__(cls, *, reason: str = "", status: str = "") -> None:
        """Set the reason and status of the class; by default it inherits them."""
        super().__init_subclass__()
        if reason:
            cls.reason = reason
            cls.status = status

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        # The dynamic values of the message, by name.
        self.metadata = {name: str(value) for name, value in metadata.items()}


class InvalidRequest(Refusal, reason="INVALID_REQUEST", status="INVALID_ARGUMENT"):
    """A field of the request is invalid."""

    next_step = "Correct the field that `BadRequest` names; its description states the rule."

    def __init__(self, field: str, rule: str) -> None:
        encoded = rule.encode(errors="replace")
        if len(encoded) > MAX_RULE_BYTES:
            rule = f"{encoded[:MAX_RULE_BYTES].decode(errors='ignore')}…"
        super().__init__(f"{field}: {rule}", field=field)
        self.field = field  # the field's name on the wire
        self.rule = rule  # the rule that it breaks, cut to ``MAX_RULE_BYTES``


class SequenceNotFound(Refusal, reason="SEQUENCE_NOT_FOUND", status="NOT_FOUND"):
    """The sequence does not exist. ``why`` follows "does not exist" in the message."""

    next_step = (
        "Create the sequence, or set `auto_create_sequences`. A deleted one then continues after its last id. "
        "If the message says `this store was retired`, use the new store "
        "([runbook](../operations/runbook.md#sequence_not_found))."
    )

    def __init__(self, sequence: str, why: str = "") -> None:
        super().__init__(f"sequence {sequence!r} does not exist{why}", sequence=sequence)


class SequenceDeleted(SequenceNotFound):
    """The sequence was deleted.

    Only ``CreateSequence`` creates it again; its first use does not.
    """

    def __init__(self, sequence: str) -> None:
        super().__init__(sequence, ": it was deleted; when created again, it continues after its last id")


class StoreRetired(SequenceDeleted):
    """The sequences were moved to another store; this one grants no ids and no start timestamps.

    Args:
        sequence: The sequence of the call; empty if the call was for none.
        at: When the store was retired, in ISO 8601.
        moved_to: The new store, for people.
    """

    def __init__(self, sequence: str, at: str, moved_to: str) -> None:
        about = {"sequence": sequence} if sequence else {}
        Refusal.__init__(self, f"this store was retired on {at}; use instead: {moved_to}", **about)


class SequenceExists(Refusal, reason="SEQUENCE_EXISTS", status="ALREADY_EXISTS"):
    """A sequence with this name already exists."""

    next_step = "Use the sequence that exists, or choose another name."

    def __init__(self, sequence: str) -> None:
        super().__init__(f"sequence {sequence!r} already exists; choose another name", sequence=sequence)


class SequenceChanged(Refusal, reason="SEQUENCE_CHANGED", status="ABORTED"):
    """The etag does not match: the sequence was changed since it was read. Nothing was changed."""

    next_step = "Read the sequence again, and repeat the change with its new `etag`."

    def __init__(self, sequence: str, etag: str) -> None:
        super().__init__(
            f"sequence {sequence!r} was changed since it was read; its etag is now {etag}: read it again",
            sequence=sequence,
            etag=etag,
        )


class SequenceExhausted(Refusal, reason="SEQUENCE_EXHAUSTED", status="OUT_OF_RANGE"):
    """The request is for more ids than the sequence has left.

    Args:
        sequence: The sequence's name.
        wanted: How many ids were requested.
        remaining: How many ids this node can still issue.
        largest_range: The most of them in one contiguous range.
    """

    next_step = (
        "Request at most `largest_range` ids in one call, or raise `max_value` "
        "([runbook](../operations/runbook.md#sequence_exhausted))."
    )

    def __init__(self, sequence: str, wanted: int, remaining: int, largest_range: int) -> None:
        fewer = f"request at most {largest_range} at once, or " if largest_range else ""
        super().__init__(
            f"sequence {sequence!r} has {remaining} ids left; {wanted} were requested: {fewer}extend its bounds",
            sequence=sequence,
            remaining=remaining,
            largest_range=largest_range,
        )


NULL_LAST_VALUE = "its last_value is NULL; set it in the table sequences to the highest id in use"


class SequenceInvalid(Refusal, reason="SEQUENCE_INVALID", status="FAILED_PRECONDITION"):
    """The stored row is corrupt."""

    next_step = "Repair the row in the store ([runbook](../operations/runbook.md#sequence_invalid))."

    def __init__(self, sequence: str, why: str) -> None:
        super().__init__(f"sequence {sequence!r} cannot be used: {why}", sequence=sequence)


class TooManySequences(Refusal, reason="TOO_MANY_SEQUENCES", status="RESOURCE_EXHAUSTED"):
    """The process has used ``max_sequences`` other sequences since it started.

    Nothing was issued.
    """

    next_step = (
        "Find out where the names come from; then raise `max_sequences` and restart the server "
        "([runbook](../operations/runbook.md#too_many_sequences))."
    )

    def __init__(self, sequence: str, max_sequences: int) -> None:
        super().__init__(
            f"cannot use sequence {sequence!r}: since it started, this process has used max_sequences = "
            f"{max_sequences} others; raise max_sequences and restart the server",
            sequence=sequence,
            max_sequences=max_sequences,
        )


class StoreWentBackwards(Refusal, reason="STORE_WENT_BACKWARDS", status="FAILED_PRECONDITION"):
    """The store is behind what this process saw before, such as after a restore (P3)."""

    next_step = "Advance it past the highest id in use ([runbook](../operations/runbook.md#store_went_backwards))."
    granted = 0  # ids that the store granted all the same; they must be burned

    def __init__(self, sequence: str, seen: str, found: str) -> None:
        super().__init__(
            f"the store went backwards for sequence {sequence!r}: this node saw {seen} before, and now found {found}; "
            "this node issues no ids of the sequence until it is advanced past the highest id in use "
            "(idalloc sequences advance)",
            sequence=sequence,
            seen=seen,
            found=found,
        )


class DocIdTimestampRefused(Refusal, reason="DOC_ID_TIMESTAMP_REFUSED", status="FAILED_PRECONDITION"):
    """No start timestamp is left below 2^32, the clock is wrong, or the store is retired."""

    next_step = (
        "The message states the cause. If no start timestamp is left, give the node another prefix. If the clocks "
        "differ, correct the wrong one. If the store is retired, use the store that the message names."
    )


class PrefixInUse(Refusal, reason="PREFIX_IN_USE", status="FAILED_PRECONDITION"):
    """Another live node holds the prefix, and ``prefix_conflict`` is ``refuse``."""

    next_step = "Choose another prefix, or stop the node in `holder`."

    def __init__(self, prefix: int, holder: str) -> None:
        super().__init__(f"prefix {prefix} is in use by {holder}; choose another prefix", prefix=prefix, holder=holder)


class RequestIdReused(Refusal, reason="REQUEST_ID_REUSED", status="ALREADY_EXISTS"):
    """The request id was already used for another request. Nothing was issued."""

    next_step = "Use a new `request_id` for a new request."

    def __init__(self, request_id: str, earlier: str) -> None:
        super().__init__(
            f"request_id {request_id} was already used for {earlier}; use a new request_id for a new request",
            request_id=request_id,
        )


class RequestIdBurned(Refusal, reason="REQUEST_ID_BURNED", status="ABORTED"):
    """The ids recorded for this request id are no longer valid: the sequence was changed."""

    next_step = "If you received the first reply, use its ids. Otherwise allocate others under a new `request_id`."

    def __init__(self, request_id: str, first_id: int, last_id: int) -> None:
        super().__init__(
            f"ids {first_id} to {last_id} of request_id {request_id} cannot be returned again: the sequence was "
            "changed since they were taken; if you did not receive them, use a new request_id",
            request_id=request_id,
            first_id=first_id,
            last_id=last_id,
        )


class Unauthenticated(Refusal, reason="UNAUTHENTICATED", status="UNAUTHENTICATED"):
    """The credentials are missing or unknown. The message never contains them."""

    next_step = (
        "Send one token, or use a client certificate, that is in the server's access file "
        "([runbook](../operations/runbook.md#unauthenticated))."
    )


class PermissionDenied(Refusal, reason="PERMISSION_DENIED", status="PERMISSION_DENIED"):
    """The caller's identity lacks the required role.

    The role is for the sequence, or other ``kind`` of object, with a name, or for all.
    """

    next_step = "Give `role` to `identity`, for this sequence, in the server's access file."

    def __init__(self, identity: str, role: str, name: str | None, kind: str = "sequence") -> None:
        where = "" if name is None else f" for {kind} {name!r}"
        about = {} if name is None else {kind: name}
        super().__init__(f"identity {identity!r} lacks role {role!r}{where}", identity=identity, role=role, **about)


class InternalError(Refusal, reason="INTERNAL", status="INTERNAL"):
    """A fault of the server. The log has the cause."""

    next_step = "Read the server's log ([runbook](../operations/runbook.md#calls_failed)), and report the defect."

    def __init__(self) -> None:
        super().__init__("internal error of the server; see its log")


class Retryable(Refusal):
    """A retry of the same call may succeed, after ``retry_after`` seconds."""

    retry_after: float = 1.0


class ServerDraining(Retryable, reason="SERVER_DRAINING", status="UNAVAILABLE"):
    """The server is stopping."""

    next_step = "[Retry](#retry): another node, or this one after its restart, serves the call."

    def __init__(self) -> None:
        super().__init__("the server is stopping; try again: another server, or this one after its restart, answers")


class SequenceAheadOfClock(Retryable, reason="SEQUENCE_AHEAD_OF_CLOCK", status="UNAVAILABLE"):
    """The request is for timestamps that lie too far ahead of the clock.

    Args:
        sequence: The sequence's name.
        ahead: How far ahead of the clock the last one would be, in seconds.
        max_clock_skew: The limit, in seconds.
    """

    next_step = "[Retry](#retry), and request ids of this sequence at a lower rate."

    def __init__(self, sequence: str, ahead: float, max_clock_skew: float) -> None:
        super().__init__(
            f"sequence {sequence!r} would be ahead of the clock by more than max_clock_skew = {max_clock_skew:g} s; "
            "try again later, or request fewer ids a second",
            sequence=sequence,
        )
        self.retry_after = max(ahead - max_clock_skew, 0.001)


class QuotaExceeded(Retryable, reason="QUOTA_EXCEEDED", status="RESOURCE_EXHAUSTED"):
    """The quota of an identity or a sequence is used up. Nothing was issued.

    Args:
        subject: The owner of the quota, such as ``identity:billing`` or ``sequence:orders``.
        quota: The name of the quota.
        limit: The limit, in the unit of the quota.
        retry_after: When the request fits again, in seconds.
    """

    next_step = "Retry after the delay, or make fewer or smaller calls. `QuotaFailure` names the owner of the quota."

    def __init__(self, subject: str, quota: str, limit: int, retry_after: float) -> None:
        super().__init__(
            f"{subject} has used up its quota {quota} = {limit}; try again later, or make fewer or smaller calls",
            subject=subject,
            quota=quota,
            limit=str(limit),
        )
        self.subject = subject
        self.quota = quota
        self.limit = limit
        self.retry_after = retry_after


class StoreFailure(Refusal):
    """The store did not execute the statement."""

    # Whether the store itself failed: it answered with an error, or did not answer in time.
    is_of_store: ClassVar[bool] = True

    def __init__(self, message: str, *, code: int | None = None, http_status: int | None = None) -> None:
        known = {"code": code, "http_status": http_status}
        super().__init__(message, **{name: value for name, value in known.items() if value is not None})
        self.code = code  # the store's own error code, if known (CrateDB: 4000 … 5035)
        self.http_status = http_status  # of the store's response, if there was one


class StoreRefused(StoreFailure, reason="STORE_REFUSED", status="FAILED_PRECONDITION"):
    """The store answered with an error that lasts until an operator acts; nothing was applied."""

    next_step = "The operator takes the step in the message ([runbook](../operations/runbook.md#store_refused))."


class StoreExchanged(StoreWentBackwards, StoreRefused):
    """Another place answers under the name that this process opened (P3).

    An alias was moved, or a table was swapped, for example.
    """

    def __init__(self, seen: str, found: str) -> None:
        StoreFailure.__init__(
            self,
            f"the store was exchanged: this process opened {seen}, and now found {found}; it issues no ids from there; "
            "stop all servers of the store, then put the opened one back, or restore as after a backup "
            "(docs/operations/backup-and-restore.md)",
        )
        self.metadata |= {"seen": seen, "found": found}
        self.seen = seen  # what this process opened
        self.found = found  # what answers now


class StoreUnavailable(StoreFailure, Retryable, reason="STORE_UNAVAILABLE", status="UNAVAILABLE"):
    """The store did not execute the statement; a retry may succeed.

    Its subclasses are errors of the store. The class itself is for a node that has no valid ids for
    another reason, such as a lease that expired before the reply, or a caller's deadline.
    """

    is_of_store = False
    next_step = "[Retry](#retry). If it lasts, use the [runbook](../operations/runbook.md#store_unavailable)."


class LeaseExpired(StoreUnavailable):
    """The process was paused after it took ids from a lease, which expired before the reply.

    The ids are burned.
    """

    def __init__(self, sequence: str) -> None:
        super().__init__(f"the lease of sequence {sequence!r} expired before the reply; try again")


class StoreUnreachable(StoreUnavailable):
    """No connection could be made; nothing was sent."""

    is_of_store = True


class StoreAnsweredError(StoreUnavailable):
    """The store answered with an error that may end by itself; nothing was applied."""

    is_of_store = True


class StoreOutcomeUnknown(StoreUnavailable):
    """The statement may have been applied, or may be applied later.

    The ids that it requested are burned.
    """

    is_of_store = True


class GrantLost(StoreOutcomeUnknown):
    """A write of several rows did not say what it did to this one. A repeat writes it alone."""

    def __init__(self, sequence: str, why: str) -> None:
        super().__init__(f"the outcome of a grant of sequence {sequence!r} is unknown: {why}; try again")


class StoreConnectionLost(StoreOutcomeUnknown):
    """The connection was closed in place of an answer: the store, or a proxy, has ended."""


class StartRefused(Exception):
    """The process must not start with these settings, files or store."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting  # the setting at fault, or the one to change


class FileUnreadable(StartRefused):
    """A file cannot be read; a retry may succeed."""


def unreadable(setting: str, path: Path, error: OSError) -> FileUnreadable:
    """Return the error for a file that cannot be read."""
    return FileUnreadable(setting, f"cannot read {shown_path(path)}: {error.strerror}")


def shown_path(path: Path) -> str:
    """Return an absolute path; hide any other text, which may be a secret in place of its file."""
    return str(path) if path.is_absolute() else "the file that it names"
