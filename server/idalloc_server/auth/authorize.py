"""Authorization: which role each method requires, and on which sequence."""

from typing import NamedTuple

from idalloc_server.auth.access import ADMIN, ALLOCATE, READ, Role


class Rule(NamedTuple):
    """What a method requires of its caller."""

    role: Role  # methods that require ``ALLOCATE`` issue ids
    # The path of the request's field that names the sequence; empty if there is none.
    sequence_field: str = ""
    all_sequences: bool = False  # whether the role is required on every sequence
    audited_fields: tuple[str, ...] = ()  # further fields of the request in the audit log
    # Whether the role is also required on the sequence of each of the request's requests.
    is_batch: bool = False
    # Whether the reply has only the sequences on which the caller has the role.
    lists_sequences: bool = False


# The server does not start if a method of its services has no rule.
RULES = {
    "/idalloc.v1.IdAllocatorService/AllocateRange": Rule(ALLOCATE, "sequence"),
    "/idalloc.v1.IdAllocatorService/BatchAllocateRanges": Rule(ALLOCATE, is_batch=True),
    "/idalloc.v1.IdAllocatorService/StreamRanges": Rule(ALLOCATE, "sequence"),
    "/idalloc.v1.IdAllocatorService/AllocateStream": Rule(ALLOCATE, is_batch=True),
    "/idalloc.v1.IdAllocatorService/GenerateDocId": Rule(ALLOCATE),
    "/idalloc.v1.IdAllocatorService/StreamDocIds": Rule(ALLOCATE),
    "/idalloc.v1.IdAllocatorService/GenerateUuid": Rule(ALLOCATE),
    "/idalloc.v1.SequenceService/CreateSequence": Rule(ADMIN, "sequence.name"),
    "/idalloc.v1.SequenceService/GetSequence": Rule(READ, "name"),
    "/idalloc.v1.SequenceService/ListSequences": Rule(READ, lists_sequences=True),
    "/idalloc.v1.SequenceService/UpdateSequence": Rule(ADMIN, "sequence.name"),
    "/idalloc.v1.SequenceService/DeleteSequence": Rule(ADMIN, "name"),
    "/idalloc.v1.SequenceService/AdvanceSequence": Rule(ADMIN, "name", audited_fields=("past", "period")),
    "/idalloc.v1.SequenceService/ParseId": Rule(READ, "sequence"),
    "/idalloc.v1.NodeService/GetNode": Rule(READ),
    "/idalloc.v1.NodeService/UpdateNode": Rule(ADMIN, all_sequences=True, audited_fields=("persist",)),
}
