"""The catalogue of everything that a call, or a start, can be refused for.

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
    x WorkerFailed              a fault of the server itself
    * StoreFailure            the store did not do what it was asked
        x StoreRefused          it does not recover by itself: an operator must act
        * StoreUnavailable      it may recover by itself; also Retryable
    * Retryable               the same call may succeed later
        x ServerDraining
        x SequenceAheadOfClock
        x QuotaExceeded
        * StoreUnavailable
            x StoreUnreachable      nothing was sent
            x StoreRejected         the store answered with an error; nothing was applied
            x StoreOutcomeUnknown   the statement may have been applied, or may yet be
* StartRefused                the process must not start; names the setting and the mend
"""

from pathlib import Path
from typing import ClassVar

# The most bytes that are said of a field.
MAX_RULE_BYTES = 500


class Refusal(Exception):
    """A call that is refused.

    Attributes:
        reason: The name that the wire carries (``idalloc.v1.ErrorReason`` without its prefix).
        metadata: The dynamic values of the message, each under its own name.
    """

    reason: ClassVar[str]

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.metadata = {name: str(value) for name, value in metadata.items()}


class InvalidRequest(Refusal):
    """A field of the request breaks its rule.

    Attributes:
        field: The field's name on the wire.
        rule: The rule that it breaks.
    """

    reason = "INVALID_REQUEST"

    def __init__(self, field: str, rule: str) -> None:
        # What a caller sent may stand in it, at any length; a status, which has it three times, has to fit into 8 kB.
        said = rule.encode(errors="replace")
        if len(said) > MAX_RULE_BYTES:
            rule = f"{said[:MAX_RULE_BYTES].decode(errors='ignore')}…"
        super().__init__(f"{field}: {rule}", field=field)
        self.field = field
        self.rule = rule


class SequenceNotFound(Refusal):
    """The sequence does not exist.

    Args:
        sequence: The sequence's name.
        why: What follows "does not exist" in the message.
    """

    reason = "SEQUENCE_NOT_FOUND"

    def __init__(self, sequence: str, why: str = "") -> None:
        super().__init__(f"sequence {sequence!r} does not exist{why}", sequence=sequence)


class SequenceDeleted(SequenceNotFound):
    """The sequence was deleted. It is not created by its first use, but on purpose only."""

    def __init__(self, sequence: str) -> None:
        super().__init__(sequence, ": it was deleted, and goes on where it ended when it is created again")


class StoreRetired(SequenceDeleted):
    """The store's sequences have moved to another store: this one creates none, and claims no start timestamp.

    Args:
        sequence: Which sequence the call was for; empty for none.
        at: When it was retired, in ISO 8601.
        moved_to: Where to go on, for people.
    """

    def __init__(self, sequence: str, at: str, moved_to: str) -> None:
        about = {"sequence": sequence} if sequence else {}
        Refusal.__init__(self, f"this store was retired on {at}; go on at: {moved_to}", **about)


class SequenceExists(Refusal):
    """A sequence of that name exists."""

    reason = "SEQUENCE_EXISTS"

    def __init__(self, sequence: str) -> None:
        super().__init__(f"sequence {sequence!r} exists already", sequence=sequence)


class SequenceChanged(Refusal):
    """The sequence is not the one that was to be changed any more. Nothing was changed.

    Args:
        sequence: The sequence's name.
        etag: The present etag.
    """

    reason = "SEQUENCE_CHANGED"

    def __init__(self, sequence: str, etag: str) -> None:
        super().__init__(
            f"sequence {sequence!r} was changed in the meantime, its etag is {etag} now: read it again",
            sequence=sequence,
            etag=etag,
        )


class SequenceExhausted(Refusal):
    """More ids are asked for than the sequence has left.

    Args:
        sequence: The sequence's name.
        wanted: How many ids were asked for.
        remaining: How many ids can still be had here.
        largest_range: How many of them in one range.
    """

    reason = "SEQUENCE_EXHAUSTED"

    def __init__(self, sequence: str, wanted: int, remaining: int, largest_range: int) -> None:
        in_one = f", at most {largest_range} in one range" if largest_range < remaining else ""
        super().__init__(
            f"sequence {sequence!r} has {remaining} ids left{in_one}; {wanted} were asked for",
            sequence=sequence,
            remaining=remaining,
            largest_range=largest_range,
        )


class SequenceInvalid(Refusal):
    """The sequence's row in the store cannot be counted on."""

    reason = "SEQUENCE_INVALID"

    def __init__(self, sequence: str, why: str) -> None:
        super().__init__(f"sequence {sequence!r} cannot be used: {why}", sequence=sequence)


class TooManySequences(Refusal):
    """The process keeps marks of as many sequences as it may, and this is another one. Nothing was done.

    Args:
        sequence: The sequence's name.
        most: The setting max_sequences.
    """

    reason = "TOO_MANY_SEQUENCES"

    def __init__(self, sequence: str, most: int) -> None:
        super().__init__(
            f"sequence {sequence!r} is refused: since its start this process has served {most} others, "
            f"as many as max_sequences = {most} allows; raise max_sequences and restart the server",
            sequence=sequence,
            max_sequences=most,
        )


class StoreWentBackwards(Refusal):
    """The store is behind what this process saw before."""

    reason = "STORE_WENT_BACKWARDS"

    def __init__(self, sequence: str, seen: str, found: str) -> None:
        super().__init__(
            f"the store went backwards: of sequence {sequence!r} this node saw {seen}, and found {found}; "
            "this node issues no more of its ids until the sequence is advanced past the highest id in use "
            "(idalloc sequences advance)",
            sequence=sequence,
            seen=seen,
            found=found,
        )


class DocIdTimestampRefused(Refusal):
    """The next start timestamp would not fit in a document id."""

    reason = "DOC_ID_TIMESTAMP_REFUSED"


class PrefixInUse(Refusal):
    """Another live node holds the prefix, and that is refused."""

    reason = "PREFIX_IN_USE"

    def __init__(self, prefix: int, holder: str) -> None:
        super().__init__(f"prefix {prefix} is in use by {holder}: choose another one", prefix=prefix, holder=holder)


class RequestIdReused(Refusal):
    """The request id was used before, for another request. Nothing was done."""

    reason = "REQUEST_ID_REUSED"

    def __init__(self, request_id: str, earlier: str) -> None:
        super().__init__(
            f"request_id {request_id} was used before, for {earlier}: a new request needs a new one",
            request_id=request_id,
        )


class RequestIdBurned(Refusal):
    """The ids that an earlier call with this request id took may not be given any more."""

    reason = "REQUEST_ID_BURNED"

    def __init__(self, request_id: str, first_id: int, last_id: int) -> None:
        super().__init__(
            f"the ids {first_id} to {last_id}, which an earlier call with request_id {request_id} took, are not given "
            "any more, since the sequence was changed since: unless its answer came, take others under a new one",
            request_id=request_id,
            first_id=first_id,
            last_id=last_id,
        )


class Unauthenticated(Refusal):
    """The caller did not say who it is, or nobody knows it. The message never says what it showed."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(Refusal):
    """The caller is known, and has not the role that the call is for.

    Args:
        identity: Who calls.
        role: The role.
        sequence: For which sequence; None where the call is about none.
    """

    reason = "PERMISSION_DENIED"

    def __init__(self, identity: str, role: str, sequence: str | None) -> None:
        where = "" if sequence is None else f" for sequence {sequence!r}"
        about = {} if sequence is None else {"sequence": sequence}
        super().__init__(f"identity {identity!r} lacks role {role!r}{where}", identity=identity, role=role, **about)


class WorkerFailed(Refusal):
    """One of the server's processes did not do its part, and another takes its place or the log says more."""

    reason = "INTERNAL"


class Retryable(Refusal):
    """The same call may succeed later.

    Attributes:
        retry_after: How long to wait before it, in seconds.
    """

    retry_after: float = 1.0


class ServerDraining(Retryable):
    """The server is stopping."""

    reason = "SERVER_DRAINING"

    def __init__(self) -> None:
        super().__init__("the server is stopping")


class SequenceAheadOfClock(Retryable):
    """More timestamps were asked for than the clock allows.

    Args:
        sequence: The sequence's name.
        ahead: By how many seconds it would be ahead of the clock.
        most: How many are allowed.
    """

    reason = "SEQUENCE_AHEAD_OF_CLOCK"

    def __init__(self, sequence: str, ahead: float, most: float) -> None:
        super().__init__(
            f"sequence {sequence!r} would be {ahead:.3f} s ahead of the clock, more than max_clock_skew, {most:g} s",
            sequence=sequence,
        )
        self.retry_after = max(ahead - most, 0.001)


class QuotaExceeded(Retryable):
    """The caller, or all callers of a sequence, took as much as they may for now. Nothing was done.

    Args:
        subject: Whose quota it is, such as ``identity:billing`` or ``sequence:orders``.
        quota: Which one.
        limit: How much it allows.
        retry_after: When there is some again, in seconds.
    """

    reason = "QUOTA_EXCEEDED"

    def __init__(self, subject: str, quota: str, limit: float, retry_after: float) -> None:
        super().__init__(
            f"{subject} is at its quota {quota} = {limit:g}: try again in {retry_after:.3f} s",
            subject=subject,
            quota=quota,
            limit=f"{limit:g}",
        )
        self.subject = subject
        self.quota = quota
        self.limit = limit
        self.retry_after = retry_after


class StoreFailure(Refusal):
    """The store did not do what it was asked.

    Attributes:
        code: The store's own error code, if it gave one (CrateDB: 4000 … 5035).
        http_status: The status of its HTTP answer, if there was one.
    """

    def __init__(self, message: str, *, code: int | None = None, http_status: int | None = None) -> None:
        known = {"code": code, "http_status": http_status}
        super().__init__(message, **{name: value for name, value in known.items() if value is not None})
        self.code = code
        self.http_status = http_status


class StoreRefused(StoreFailure):
    """The store refused the statement, and refuses it again until an operator acts. The message names the next step.

    The statement itself was not applied.
    """

    reason = "STORE_REFUSED"


class StoreUnavailable(StoreFailure, Retryable):
    """The store did not do what it was asked, and may recover by itself."""

    reason = "STORE_UNAVAILABLE"


class StoreUnreachable(StoreUnavailable):
    """Nothing was sent: no connection could be made."""


class StoreRejected(StoreUnavailable):
    """The store answered with an error; nothing was applied."""


class StoreOutcomeUnknown(StoreUnavailable):
    """The statement may have been applied, or may yet be: what it would have taken is burned."""


class StartRefused(Exception):
    """The process must not start like this.

    Attributes:
        setting: The setting that is to blame, or the one that mends it.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class FileUnreadable(StartRefused):
    """A file cannot be read, which another try may do."""


def unreadable(setting: str, path: Path, error: OSError) -> FileUnreadable:
    """Returns the refusal of a start that needs a file which cannot be read.

    A path is told only where it is a whole one: what is none may be a secret that was given in place of its file.
    """
    return FileUnreadable(setting, f"cannot read {shown_path(path)}: {error.strerror}")


def shown_path(path: Path) -> str:
    """Returns how a file is named that may not be one, see ``unreadable``."""
    return str(path) if path.is_absolute() else "the file that it names"
