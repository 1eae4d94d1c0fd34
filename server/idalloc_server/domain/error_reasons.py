"""The reasons of errors: the gRPC status and the next step of each value of ``idalloc.v1.ErrorReason``.

A retry helps if the class of the refusal in ``errors`` is ``Retryable``. The meaning, the metadata and an example of
each reason are in error_reason.proto. ``scripts/errors_reference.py`` writes docs/reference/errors.md from all of them.
"""

from typing import NamedTuple


class ErrorReason(NamedTuple):
    """A reason.

    Attributes:
        status: The name of the gRPC status code.
        next_step: What the caller or the operator does, in Markdown, with links as from docs/reference/.
    """

    status: str
    next_step: str


ERROR_REASONS = {
    "INVALID_REQUEST": ErrorReason(
        "INVALID_ARGUMENT", "Correct the field that `BadRequest` names, by the rule that it states."
    ),
    "SEQUENCE_NOT_FOUND": ErrorReason(
        "NOT_FOUND",
        "Create the sequence, or set `auto_create_sequences`. A deleted sequence continues after its last id when it "
        "is created again. If the message says `this store was retired`, use the store that it names "
        "([runbook](../runbook.md#move-to-another-store)).",
    ),
    "SEQUENCE_EXHAUSTED": ErrorReason(
        "OUT_OF_RANGE",
        "Request at most `largest_range` ids in one call; `remaining` ids are left in all. For more, raise `max_value` "
        "([runbook](../runbook.md#the-end-of-a-sequence)).",
    ),
    "SEQUENCE_INVALID": ErrorReason(
        "FAILED_PRECONDITION", "Repair the row in the store ([runbook](../runbook.md#sequence_invalid))."
    ),
    "STORE_UNAVAILABLE": ErrorReason(
        "UNAVAILABLE",
        "Retry. If it lasts, look up the message in the [runbook](../runbook.md#store_unavailable).",
    ),
    "STORE_WENT_BACKWARDS": ErrorReason(
        "FAILED_PRECONDITION",
        "Advance the sequence past the highest id in use ([runbook](../runbook.md#store_went_backwards)).",
    ),
    "SERVER_DRAINING": ErrorReason(
        "UNAVAILABLE", "Retry: another node, or this one after its restart, serves the call."
    ),
    "DOC_ID_TIMESTAMP_REFUSED": ErrorReason(
        "FAILED_PRECONDITION",
        "The message names the cause. If no start timestamp is left, give the node another prefix. If the clocks "
        "differ, correct the clock that is wrong. If the store is retired, use the store that the message names.",
    ),
    "INTERNAL": ErrorReason(
        "INTERNAL", "Read the server's log of that time ([runbook](../runbook.md#calls-fail)), and report the defect."
    ),
    "SEQUENCE_EXISTS": ErrorReason("ALREADY_EXISTS", "Use the sequence that exists, or choose another name."),
    "SEQUENCE_CHANGED": ErrorReason("ABORTED", "Read the sequence again, and repeat the change with its new `etag`."),
    "REQUEST_ID_REUSED": ErrorReason("ALREADY_EXISTS", "Use a new `request_id` for a new request."),
    "REQUEST_ID_BURNED": ErrorReason(
        "ABORTED",
        "If the first reply arrived, its ids belong to you. If it was lost, allocate others under a new `request_id`.",
    ),
    "SEQUENCE_AHEAD_OF_CLOCK": ErrorReason("UNAVAILABLE", "Retry, and request ids of this sequence at a lower rate."),
    "PREFIX_IN_USE": ErrorReason("FAILED_PRECONDITION", "Choose another prefix, or stop the node in `holder`."),
    "UNAUTHENTICATED": ErrorReason(
        "UNAUTHENTICATED",
        "Send one token, or use a client certificate, that is in the server's access file "
        "([runbook](../runbook.md#nobody-is-let-in)).",
    ),
    "PERMISSION_DENIED": ErrorReason(
        "PERMISSION_DENIED", "Give `role` to `identity`, for this sequence, in the server's access file."
    ),
    "QUOTA_EXCEEDED": ErrorReason(
        "RESOURCE_EXHAUSTED", "Retry, or make fewer or smaller calls. `QuotaFailure` names the owner of the quota."
    ),
    "STORE_REFUSED": ErrorReason(
        "FAILED_PRECONDITION", "The operator takes the step in the message ([runbook](../runbook.md#store_refused))."
    ),
    "TOO_MANY_SEQUENCES": ErrorReason(
        "RESOURCE_EXHAUSTED",
        "Find out where the names come from; then raise `max_sequences` and restart the server "
        "([runbook](../runbook.md#many_sequences-in-the-log-too_many_sequences)).",
    ),
}
