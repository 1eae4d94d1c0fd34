"""The errors of the domain: why a call, or the start of the process, is refused.

* Refusal                     a call is refused; ``reason`` is a value of ``idalloc.v1.ErrorReason``
    x InvalidRequest
    * SequenceNotFound
        * SequenceDeleted
            x StoreRetired
    x SequenceExists
    x SequenceChanged
    x SequenceExhausted
    x SequenceInvalid
    x TooManySequences
    x StoreWentBackwards
    x DocIdTimestampRefused
    x PrefixInUse
    x RequestIdReused
    x RequestIdBurned
    x Unauthenticated
    x PermissionDenied
    * StoreFailure            the store did not execute the statement
        x StoreRefused          permanent until an operator acts
        * StoreUnavailable      transient; also Retryable
    * Retryable               the same call may succeed later
        x ServerDraining
        x SequenceAheadOfClock
        x QuotaExceeded
        x ChangePending         some workers have not applied a change yet
        * StoreUnavailable
            x StoreUnreachable      nothing was sent
            x StoreRejected         the store answered with an error; nothing was applied
            x StoreOutcomeUnknown   the statement may have been applied, or may yet be
* StartRefused                the process must not start; names the setting to change
    x FileUnreadable            a retry may succeed
"""

from pathlib import Path
from typing import ClassVar

# Longer rules are truncated: a status contains the rule three times and must fit into 8 kB.
MAX_RULE_BYTES = 500


class Refusal(Exception):
    """Base class of the errors that a call can fail with.

    Attributes:
        reason: The value of ``idalloc.v1.ErrorReason``, without its prefix.
        metadata: The dynamic values of the message, by name.
    """

    reason: ClassVar[str]

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.metadata = {name: str(value) for name, value in metadata.items()}


class InvalidRequest(Refusal):
    """A field of the request is invalid.

    Attributes:
        field: The field's name on the wire.
        rule: The rule that it breaks, cut to ``MAX_RULE_BYTES``.
    """

    reason = "INVALID_REQUEST"

    def __init__(self, field: str, rule: str) -> None:
        encoded = rule.encode(errors="replace")
        if len(encoded) > MAX_RULE_BYTES:
            rule = f"{encoded[:MAX_RULE_BYTES].decode(errors='ignore')}…"
        super().__init__(f"{field}: {rule}", field=field)
        self.field = field
        self.rule = rule


class SequenceNotFound(Refusal):
    """The sequence does not exist. ``why`` follows "does not exist" in the message."""

    reason = "SEQUENCE_NOT_FOUND"

    def __init__(self, sequence: str, why: str = "") -> None:
        super().__init__(f"sequence {sequence!r} does not exist{why}", sequence=sequence)


class SequenceDeleted(SequenceNotFound):
    """The sequence was deleted. Only ``CreateSequence`` creates it again; its first use does not."""

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


class SequenceExists(Refusal):
    """A sequence with this name already exists."""

    reason = "SEQUENCE_EXISTS"

    def __init__(self, sequence: str) -> None:
        super().__init__(f"sequence {sequence!r} already exists", sequence=sequence)


class SequenceChanged(Refusal):
    """The etag does not match: the sequence was changed since it was read. Nothing was changed."""

    reason = "SEQUENCE_CHANGED"

    def __init__(self, sequence: str, etag: str) -> None:
        super().__init__(
            f"sequence {sequence!r} was changed since it was read; its etag is now {etag}: read it again",
            sequence=sequence,
            etag=etag,
        )


class SequenceExhausted(Refusal):
    """The request is for more ids than the sequence has left.

    Args:
        sequence: The sequence's name.
        wanted: How many ids were requested.
        remaining: How many ids this node can still issue.
        largest_range: The most of them in one contiguous range.
    """

    reason = "SEQUENCE_EXHAUSTED"

    def __init__(self, sequence: str, wanted: int, remaining: int, largest_range: int) -> None:
        in_one = f", at most {largest_range} in one range" if largest_range < remaining else ""
        super().__init__(
            f"sequence {sequence!r} has {remaining} ids left{in_one}; {wanted} were requested",
            sequence=sequence,
            remaining=remaining,
            largest_range=largest_range,
        )


NULL_LAST_VALUE = "its last_value is NULL; set it in the table sequences to the highest id in use"


class SequenceInvalid(Refusal):
    """The stored row is corrupt."""

    reason = "SEQUENCE_INVALID"

    def __init__(self, sequence: str, why: str) -> None:
        super().__init__(f"sequence {sequence!r} cannot be used: {why}", sequence=sequence)


class TooManySequences(Refusal):
    """The process has used ``max_sequences`` other sequences since it started. Nothing was issued."""

    reason = "TOO_MANY_SEQUENCES"

    def __init__(self, sequence: str, max_sequences: int) -> None:
        super().__init__(
            f"sequence {sequence!r} exceeds the limit max_sequences = {max_sequences} of sequences that this process "
            "has used since it started; raise max_sequences and restart the server",
            sequence=sequence,
            max_sequences=max_sequences,
        )


class StoreWentBackwards(Refusal):
    """The store is behind what this process saw before, such as after a restore from a backup (P3)."""

    reason = "STORE_WENT_BACKWARDS"

    def __init__(self, sequence: str, seen: str, found: str) -> None:
        super().__init__(
            f"the store went backwards: of sequence {sequence!r} this node saw {seen}, but found {found}; "
            "this node issues no ids of the sequence until it is advanced past the highest id in use "
            "(idalloc sequences advance)",
            sequence=sequence,
            seen=seen,
            found=found,
        )


class DocIdTimestampRefused(Refusal):
    """No start timestamp is left below 2^32, the clock is wrong, or the store is retired."""

    reason = "DOC_ID_TIMESTAMP_REFUSED"


class PrefixInUse(Refusal):
    """Another live node holds the prefix, and ``prefix_conflict`` is ``refuse``."""

    reason = "PREFIX_IN_USE"

    def __init__(self, prefix: int, holder: str) -> None:
        super().__init__(f"prefix {prefix} is in use by {holder}; choose another prefix", prefix=prefix, holder=holder)


class RequestIdReused(Refusal):
    """The request id was already used for another request. Nothing was issued."""

    reason = "REQUEST_ID_REUSED"

    def __init__(self, request_id: str, earlier: str) -> None:
        super().__init__(
            f"request_id {request_id} was already used for {earlier}; use a new request_id for a new request",
            request_id=request_id,
        )


class RequestIdBurned(Refusal):
    """The ids recorded for this request id are no longer valid, because the sequence was changed."""

    reason = "REQUEST_ID_BURNED"

    def __init__(self, request_id: str, first_id: int, last_id: int) -> None:
        super().__init__(
            f"ids {first_id} to {last_id} of request_id {request_id} cannot be returned again: the sequence was "
            "changed since they were taken; if you did not receive them, use a new request_id",
            request_id=request_id,
            first_id=first_id,
            last_id=last_id,
        )


class Unauthenticated(Refusal):
    """The credentials are missing or unknown. The message never contains them."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(Refusal):
    """The caller's identity lacks the required role, on ``sequence`` unless that is None."""

    reason = "PERMISSION_DENIED"

    def __init__(self, identity: str, role: str, sequence: str | None) -> None:
        where = "" if sequence is None else f" for sequence {sequence!r}"
        about = {} if sequence is None else {"sequence": sequence}
        super().__init__(f"identity {identity!r} lacks role {role!r}{where}", identity=identity, role=role, **about)


class Retryable(Refusal):
    """A retry of the same call may succeed, after ``retry_after`` seconds."""

    retry_after: float = 1.0


class ServerDraining(Retryable):
    """The server is stopping."""

    reason = "SERVER_DRAINING"

    def __init__(self) -> None:
        super().__init__("the server is stopping")


class SequenceAheadOfClock(Retryable):
    """The request is for timestamps that lie too far ahead of the clock.

    Args:
        sequence: The sequence's name.
        ahead: How far ahead of the clock the last one would be, in seconds.
        max_clock_skew: The limit, in seconds.
    """

    reason = "SEQUENCE_AHEAD_OF_CLOCK"

    def __init__(self, sequence: str, ahead: float, max_clock_skew: float) -> None:
        super().__init__(
            f"sequence {sequence!r} would be {ahead:.3f} s ahead of the clock; max_clock_skew is {max_clock_skew:g} s",
            sequence=sequence,
        )
        self.retry_after = max(ahead - max_clock_skew, 0.001)


class QuotaExceeded(Retryable):
    """The quota of an identity or a sequence is used up. Nothing was issued.

    Args:
        subject: The owner of the quota, such as ``identity:billing`` or ``sequence:orders``.
        quota: The name of the quota.
        limit: The limit, in the unit of the quota.
        retry_after: When the request fits again, in seconds.
    """

    reason = "QUOTA_EXCEEDED"

    def __init__(self, subject: str, quota: str, limit: float, retry_after: float) -> None:
        super().__init__(
            f"{subject} has used up its quota {quota} = {limit:g}; try again in {retry_after:.3f} s",
            subject=subject,
            quota=quota,
            limit=f"{limit:g}",
        )
        self.subject = subject
        self.quota = quota
        self.limit = limit
        self.retry_after = retry_after


class ChangePending(Retryable):
    """Not all workers of the server have applied a change of the node yet; the others go on until they have."""

    reason = "STORE_UNAVAILABLE"

    def __init__(self, applied: int, workers: int) -> None:
        super().__init__(f"{applied} of {workers} workers have applied the change; the others try until they have")


class StoreFailure(Refusal):
    """The store did not execute the statement.

    Attributes:
        code: The store's own error code, if known (CrateDB: 4000 … 5035).
        http_status: The HTTP status of its response, if there was one.
    """

    def __init__(self, message: str, *, code: int | None = None, http_status: int | None = None) -> None:
        known = {"code": code, "http_status": http_status}
        super().__init__(message, **{name: value for name, value in known.items() if value is not None})
        self.code = code
        self.http_status = http_status


class StoreRefused(StoreFailure):
    """The store rejects the statement until an operator acts; the message names the next step. Nothing was applied."""

    reason = "STORE_REFUSED"


class StoreUnavailable(StoreFailure, Retryable):
    """The store did not execute the statement; a retry may succeed."""

    reason = "STORE_UNAVAILABLE"


class StoreUnreachable(StoreUnavailable):
    """No connection could be made; nothing was sent."""


class StoreRejected(StoreUnavailable):
    """The store answered with an error; nothing was applied."""


class StoreOutcomeUnknown(StoreUnavailable):
    """The statement may have been applied, or may be applied later. The ids that it requested are burned."""


class StartRefused(Exception):
    """The process must not start with these settings, files or store.

    Attributes:
        setting: The setting at fault, or the one to change.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class FileUnreadable(StartRefused):
    """A file cannot be read; a retry may succeed."""


def unreadable(setting: str, path: Path, error: OSError) -> FileUnreadable:
    """Returns the error for a file that cannot be read."""
    return FileUnreadable(setting, f"cannot read {shown_path(path)}: {error.strerror}")


def shown_path(path: Path) -> str:
    """Returns an absolute path; hides any other text, which may be a secret given in place of its file."""
    return str(path) if path.is_absolute() else "the file that it names"
