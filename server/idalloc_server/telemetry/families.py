"""The metrics of a server besides those of its calls: name, labels, help, and merge of processes.

A value has one key: its labels, separated by spaces. Only the last label may itself have spaces.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

IDS_ISSUED = "idalloc_ids_issued"
DOC_IDS_ISSUED = "idalloc_doc_ids_issued"
IDS_BURNED = "idalloc_ids_burned"
REFILL_DURATION = "idalloc_refill_duration_seconds"
STORE_CALLS = "idalloc_store_calls"
GENERATIONS_ENDED = "idalloc_generations_ended"
QUOTA_REJECTIONS = "idalloc_quota_rejections"
AUTH_REJECTIONS = "idalloc_auth_rejections"
LOG_LINES_LOST = "idalloc_log_lines_lost"
WORKER_EXITS = "idalloc_worker_exits"
STREAM_ANSWERS = "idalloc_stream_answers"
XPROTO_CALLS = "idalloc_xproto_calls"
XPROTO_DOCUMENTS = "idalloc_xproto_documents_added"

BUILD_INFO = "idalloc_build_info"
START_TIMESTAMP = "idalloc_doc_id_start_timestamp_seconds"
WORKERS = "idalloc_workers"
SEQUENCES_IN_MEMORY = "idalloc_sequences_in_memory"
LEASES = "idalloc_leases"
RESERVE = "idalloc_reserve_seconds"
RESERVE_LIMITED = "idalloc_reserve_limited"
STORE_UP = "idalloc_store_up"
WITNESS_UP = "idalloc_witness_up"
SEQUENCES_BEHIND = "idalloc_sequences_behind"
PREFIX_CONFLICT = "idalloc_prefix_conflict"
EXHAUSTS_IN = "idalloc_sequence_exhausts_in_seconds"
CERTIFICATE_EXPIRES = "idalloc_certificate_expires_timestamp_seconds"
XPROTO_CONNECTIONS = "idalloc_xproto_connections"

# Those for developers of idalloc, which only the setting ``debug_metrics`` shows.
DEBUG_METRICS = frozenset({GENERATIONS_ENDED, SEQUENCES_IN_MEMORY, START_TIMESTAMP})


def time_at_combined_rate(seconds: Iterable[float]) -> float:
    """Return the time in which processes use up a supply that each alone uses up in ``seconds``."""
    times = list(seconds)
    return 1 / sum(1 / each for each in times) if all(times) else 0.0


class Family(NamedTuple):
    """A metric with all its labels."""

    help: str  # what it counts, with its unit
    labels: tuple[str, ...] = ()  # the names of the labels
    # For a gauge, makes one value of those of several processes; counters are summed.
    merge: Callable[[Iterable[float]], float] = sum
    # Whether a metric without labels has no series, in place of 0, while no process reports it.
    is_optional: bool = False


COUNTERS = {
    IDS_ISSUED: Family(
        "Ids issued from sequences. A sequence has its own series once it is among the first 100 that issued 10,000 ids"
        " since the start; ids before that, and ids of all other sequences, count in the series with an empty label.",
        ("sequence",),
    ),
    DOC_IDS_ISSUED: Family("Document ids issued."),
    STORE_CALLS: Family(
        "Calls of the store, by call and outcome: ok, unavailable (no answer, or not in time), refused (an operator "
        "must act), or error.",
        ("call", "outcome"),
    ),
    IDS_BURNED: Family("Ids taken from the store and never issued, by cause.", ("cause",)),
    GENERATIONS_ENDED: Family("Generations of sequences that updates, deletes and advances at this server ended."),
    QUOTA_REJECTIONS: Family("Calls rejected because a quota was exceeded."),
    AUTH_REJECTIONS: Family("Calls rejected by authentication or authorization, by error reason.", ("reason",)),
    LOG_LINES_LOST: Family(
        "Log lines lost because their reader was too slow, by share of the log's queue.", ("share",)
    ),
    WORKER_EXITS: Family("Worker processes that exited while the server ran; each was replaced."),
    STREAM_ANSWERS: Family(
        "Answers to requests of AllocateStream, by status code: OK, or that of the error.", ("code",)
    ),
    XPROTO_CALLS: Family(
        "Calls of X DevAPI clients that ended, by kind (login, insert, find, update, delete, sql, command) and by "
        "MySQL's error code, 0 for none.",
        ("kind", "code"),
    ),
    XPROTO_DOCUMENTS: Family("Documents that X DevAPI clients added. A replaced document does not count."),
}
GAUGES = {
    BUILD_INFO: Family(
        "1, with the version of idalloc, the gRPC transport and the version of Python.",
        ("version", "transport", "python"),
        max,
    ),
    START_TIMESTAMP: Family(
        "Start timestamp of the document ids issued now, in seconds since 1970, by node prefix.", ("prefix",), max
    ),
    WORKERS: Family("Processes that serve calls."),
    SEQUENCES_IN_MEMORY: Family("Sequences in use: with a lease in memory, or with calls that wait for the store."),
    LEASES: Family("Live leases with ids in memory."),
    RESERVE: Family(
        "How long the ids in memory last at the present rate, in seconds: the shortest time of all processes. The "
        "series with an empty label has the shortest time of all sequences in use without an own series, except "
        "limited ones.",
        ("sequence",),
        min,
    ),
    RESERVE_LIMITED: Family(
        "1 if the ids in memory of a sequence with an own series last less than outage_reserve because of a limit, by "
        "reason: remaining_ids (1 % of the ids that the sequence has left), max_reserved_ids or max_lease_size. No "
        "series if no process is limited.",
        ("reason", "sequence"),
        max,
    ),
    STORE_UP: Family("1 if the last calls of the store succeeded, 0 if they failed.", merge=min),
    WITNESS_UP: Family(
        "1 if the last call of the witness succeeded, 0 if it failed; no series without one.",
        merge=min,
        is_optional=True,
    ),
    SEQUENCES_BEHIND: Family(
        "Sequences that the server refuses with STORE_WENT_BACKWARDS; the largest number of all processes.", merge=max
    ),
    PREFIX_CONFLICT: Family("1 if another live node held this node's prefix at the last claim, else 0.", merge=max),
    EXHAUSTS_IN: Family(
        "Seconds until a sequence has no ids left in the store, at the rate of this server; only the 20 sequences in "
        "use with the shortest time.",
        ("sequence",),
        time_at_combined_rate,
    ),
    CERTIFICATE_EXPIRES: Family(
        "When the first certificate in a file expires, in seconds since 1970, by setting.", ("file",), min
    ),
    XPROTO_CONNECTIONS: Family("Open connections of X DevAPI clients."),
}
HISTOGRAMS = {
    REFILL_DURATION: Family(
        "Duration of writes to the store that requested ids or renewed a lease, in seconds, by outcome: ok, failed, or "
        "exhausted, if the sequence has no ids left.",
        ("outcome",),
    ),
}


def count_rejections(counters: Mapping[str, Counter[str]], rejected: Mapping[str, int]) -> None:
    """Add calls that access control rejected, by error reason."""
    counters[QUOTA_REJECTIONS][""] += rejected.get("QUOTA_EXCEEDED", 0)
    for reason in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        counters[AUTH_REJECTIONS][reason] += rejected.get(reason, 0)
