"""limits.md: the limits that users meet, with the numbers of the code."""

from typing import NamedTuple

from idalloc._core import pipeline, pool, resumption
from idalloc._core.calls import MAX_UUIDS_PER_CALL
from idalloc._core.defaults import DEFAULT_TIMEOUT
from idalloc._transport.channel import MAX_CONNECTIONS
from idalloc_server.auth import audit, limits, quotas, rejected_callers, turns
from idalloc_server.backup.command import MAX_MOVED_TO_LENGTH
from idalloc_server.domain import errors, generations
from idalloc_server.domain.administration import index, paging
from idalloc_server.domain.allocation import burned, high_water_marks, reserve, survey
from idalloc_server.domain.document_ids import generator, start_timestamps
from idalloc_server.domain.idempotency import idempotent_allocator as idempotency
from idalloc_server.domain.sequences import formats, sequence, validation
from idalloc_server.files import descriptors
from idalloc_server.http import server as http
from idalloc_server.http.status_page import page as status_page
from idalloc_server.listen import connections, native, open_files, transport
from idalloc_server.node import issuers
from idalloc_server.rpc import batches, health, id_allocator, items, request_stream, sequences, status
from idalloc_server.settings.installed import installed
from idalloc_server.store.cluster import http_connections as store_connections
from idalloc_server.telemetry import log_queue, metrics, recent, series
from idalloc_server.workers import supervisor
from idalloc_xproto import (
    capabilities,
    expect,
    listener,
    login,
    names,
    session,
    sql,
    variables,
)
from idalloc_xproto.documents import cost, json_text, like
from idalloc_xproto.stores import cratedb as crate_documents
from idalloc_xproto.stores import sqlite as sqlite_documents
from scripts.reference import links
from scripts.reference.markdown import document, prose, table
from scripts.reference.settings import shown_number

_HEAD = """\
# Limits

Find any limit, whether a setting changes it, and what happens beyond it. The numbers are those of the code.

Each process counts by itself: each node, and each of several [workers](settings.md#workers). A limit without a setting
is fixed.
"""


class Limit(NamedTuple):
    """A row of the page."""

    what: str  # what is limited
    limit: str  # the limit, with its unit
    beyond: str  # what happens beyond it: the error's reason, or else what the server does
    why: str = ""  # why it is so high or low, or what it is for; empty if that is obvious


def _setting(name: str, unit: str = "") -> str:
    """Return a setting and its default."""
    return f"{name}, {number(installed().settings.model_fields[name].default)}{unit}"


def number(value: float) -> str:
    """Return a number with separators."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _kib(size: int) -> str:
    return f"{size // 1024} kB"


def _mib(size: int) -> str:
    return f"{size // 2**20} MiB"


_INVALID = "INVALID_REQUEST"

# Constants of the code that limit nothing that users meet.
INTERNAL = (
    "LARGEST_CALLS",
    *("LONGEST_RETRY_SECONDS", "MAX_BATCH_ROWS", "MAX_CALLERS", "MAX_CERTIFICATES", "MAX_COUNT"),
    *(
        "MAX_EFFECTIVE_DELAY_SECONDS",
        "MAX_EMPTY_PAGES",
        "MAX_HITS",
        "MAX_IDS",
        "MAX_INT64",
        "MAX_JOINED",
        "MAX_JOINED_ADDS",
        "MAX_JOINED_TEXT",
        "MAX_JOINED_WRITES",
        "MAX_LATE_RANGES",
    ),
    *("MAX_STORE_WAITS", "MAX_TURNS", "MAX_TURN_SECONDS"),
    *("MAX_PRUNE_INTERVAL", "MAX_QUIET_WAIT_SECONDS", "MAX_SHOWN", "MAX_TIME", "MAX_TIMEOUT"),
    "MAX_TTL_SECONDS",
)

LIMITS = {
    "Requests and connections": [
        Limit(
            "size of a request",
            _kib(transport.MAX_REQUEST_BYTES),
            "status RESOURCE_EXHAUSTED, from gRPC, without a reason",
            "names, labels and a format take some kB; `native` reads a request whole before it checks its size",
        ),
        Limit(
            "metadata of a call",
            f"{_kib(transport.MAX_METADATA_BYTES)}; `native`: {_kib(transport.LARGEST_METADATA_BYTES)}",
            f"`grpcio` rejects some calls at random, and all above {_kib(transport.LARGEST_METADATA_BYTES)}: status "
            "RESOURCE_EXHAUSTED, from gRPC. `native`: UNKNOWN, seldom INTERNAL",
            "gRPC itself takes about 600 bytes, a token 58",
        ),
        Limit(
            "running calls of a connection",
            number(transport.MAX_STREAMS_PER_CONNECTION),
            "the client waits. Open several connections",
            "all calls wait in one queue: this many of one connection can be ahead of another's",
        ),
        Limit(
            "calls of a connection that `grpcio` has not freed, such as those that the client has reset",
            number(transport.MAX_STREAMS_PER_CONNECTION + transport.MAX_ENDED_STREAMS),
            "status UNAVAILABLE, from gRPC",
            "a reset call still waits in the queue",
        ),
        Limit(
            "calls of a connection that the client resets before `native` begins them",
            "20",
            "the server closes the connection: status UNAVAILABLE for all its calls, which a retry policy repeats",
            "a burst of them is an attack (CVE-2023-44487). Callers that leave after milliseconds need `grpcio`, or "
            "several connections",
        ),
        Limit(
            "TLS handshake and first frame of a connection",
            f"{connections.HANDSHAKE_SECONDS:g} s; `native`: 120 s",
            "the server closes the connection",
        ),
        Limit("calls of a process that wait", number(transport.MAX_WAITING_CALLS), "gRPC rejects more"),
        Limit(
            "interval of a client's keepalive pings",
            f"{transport.MIN_PING_SECONDS} s, and only during calls",
            "the server closes the connection; `native` answers all pings",
            "idalloc's clients send one a minute",
        ),
        Limit(
            "age of a connection",
            f"{_setting('max_connection_age')} for no limit",
            f"the client reconnects; running calls have another {transport.MAX_CONNECTION_GRACE_SECONDS} s",
        ),
        Limit(
            "connections",
            f"the open files of the process, without {open_files.OWN + descriptors.SPARE} reserved ones and the "
            "connections of its other ports; at least half of them",
            "`grpcio` closes a new one; `native` accepts it when another ends. Raise the hard limit, or use a proxy",
            "the store, the access file and probes have a reserve",
        ),
        Limit(
            "open health watches",
            f"{number(health.MAX_WATCHES)}; of one host {health.MAX_WATCHES_OF_HOST}",
            "status RESOURCE_EXHAUSTED; `Check` still answers",
            "health needs no authentication, and a watch takes memory as long as it is open",
        ),
        Limit(
            "size of a request to watch health", f"{number(health.MAX_REQUEST_BYTES)} bytes", "status INVALID_ARGUMENT"
        ),
        Limit(
            "replies of `native` that wait for slow clients",
            number(native.MAX_BLOCKED_WRITES),
            "more streams wait",
            "each takes a thread",
        ),
    ],
    "HTTP port": [
        Limit(
            "open connections",
            f"{connections.MAX_HTTP_CONNECTIONS}; on `probe_listen` {connections.MAX_PROBE_CONNECTIONS}",
            "the connection that waits longest for its client ends; if none waits, the server closes the new one",
            "probes and metrics need few, and anyone may call `/livez`",
        ),
        Limit(
            "open connections of an address",
            "a quarter of these",
            "the same, among those of the address",
            "of IPv6, a /64 is one address",
        ),
        Limit(
            "TLS handshake; headers of a request",
            f"{connections.HANDSHAKE_SECONDS:g} s; {connections.HEADER_SECONDS:g} s",
            "the server closes the connection",
        ),
        Limit(
            "time between two requests of a connection",
            f"{http.KEEPALIVE_SECONDS:g} s",
            "the server closes the connection",
        ),
        Limit(
            "request line; a header",
            f"{_kib(http.MAX_LINE_BYTES)} each",
            "HTTP status 400",
        ),
        Limit(
            "time of a connection",
            f"{http.CONNECTION_SECONDS:g} s; its last answer may take another {http.LAST_ANSWER_SECONDS:g} s",
            "the server closes the connection, also of a client that reads too slowly",
        ),
        Limit(
            "sequences with their own series on `/metrics`",
            f"{series.MAX_SERIES}, the first that issue {number(series.MIN_IDS)} ids",
            "ids count in the series with an empty label",
            "a million series would fill the memory of Prometheus",
        ),
        Limit(
            "sequences without a series whose ids a process counts",
            number(series.MAX_COUNTED),
            "the process drops the oldest one, which gets its series later",
        ),
        Limit("sequences with a forecast on `/metrics`", str(survey.NEAREST), "only those exhausted first are shown"),
        Limit("sequences on the status page", number(index.MAX_KEPT), "it shows the first ones by name, and a note"),
        Limit(
            "sequences with burned ids on the status page",
            number(burned.MAX_BURNED_SEQUENCES),
            "those that burned ids last are shown",
        ),
        Limit("failed calls and events on the status page", f"{recent.MAX_KEPT} each", "the last ones are shown"),
        Limit("a text of these", f"{recent.MAX_TEXT} characters", "the rest is cut"),
        Limit("`limit` of `/api/sequences`", str(status_page.MAX_LIMIT), "status 400"),
        Limit("`offset` of `/api/sequences`", number(status_page.MAX_OFFSET), "status 400"),
    ],
    "X Protocol port": [
        Limit(
            "connections to a process",
            f"a quarter of the open files, at most {number(open_files.MAX_PORT_CONNECTIONS)}",
            "the connection that waits longest for its login ends; if none waits, the new one gets error 1040",
            "each may hold a message in memory",
        ),
        Limit(
            "connections of an address without a login to a process",
            "a quarter of these",
            "the same, among those of the address",
            "of IPv6, a /64 is one address",
        ),
        Limit(
            "size of a message",
            f"{_mib(cost.MAX_SIZE)}; before the login {_kib(session.MAX_CONTROL_MESSAGE)}",
            "the server closes the connection",
            "MySQL's default of `mysqlx_max_allowed_packet`, which clients read",
        ),
        Limit(
            "messages of a connection before its login",
            f"{session.MAX_MESSAGES_BEFORE_LOGIN}",
            "error 5000, and the server closes the connection",
        ),
        Limit(
            "size of a message that is not a statement on a collection",
            _kib(session.MAX_CONTROL_MESSAGE),
            "error 1153",
            "a long message of many short items would delay other callers",
        ),
        Limit(
            "time of a login",
            f"{listener.LOGIN_SECONDS:g} s; its TLS handshake {connections.HANDSHAKE_SECONDS:g} s, "
            f"and each wait for the client {connections.HEADER_SECONDS:g} s",
            "the server closes the connection",
            "it starts again when a session ends and its connection stays open",
        ),
        Limit(
            "time of a session without a message",
            f"{variables.IDLE_SECONDS / 3600:g} h",
            "the server closes the connection",
        ),
        Limit(
            "age of a connection",
            f"{_setting('max_connection_age')} for no limit",
            "error 3169, and the connection ends; a running statement has another "
            f"{transport.MAX_CONNECTION_GRACE_SECONDS} s",
        ),
        Limit(
            "session with a client certificate",
            "until the certificate expires",
            "error 1045, and the connection ends, also during a reply",
        ),
        Limit("failed logins of a connection", str(login.MAX_FAILURES), "the last one closes the connection"),
        Limit(
            "time of a client to read a reply",
            f"{listener.WRITE_SECONDS:g} s for each {_kib(listener.WRITE_BYTES)}",
            "the server closes the connection",
        ),
        Limit(
            "statements and resets of an identity, also failing ones, and its documents with an `_id`",
            "each is a call of its [quota](settings.md#the-access-file); none by default",
            "error 1226",
        ),
        Limit("documents of an insert", number(cost.MAX_INSERTED_DOCUMENTS), "error 1105; nothing is stored"),
        Limit("`_id`", f"{json_text.MAX_KEY_BYTES} bytes of UTF-8", "error 1406"),
        Limit("nesting of a document", f"{json_text.MAX_DEPTH} levels", "error 3157"),
        Limit(
            "values of a document: of its objects, of its arrays and itself",
            f"{number(json_text.MAX_VALUES)}, with {number(json_text.MAX_CONTAINERS)} arrays and objects",
            "error 3150",
            "each takes much memory besides its text",
        ),
        Limit(
            "arguments of a statement",
            f"{number(cost.MAX_ARGUMENTS)}; each use counts with its bytes, all together {_mib(cost.MAX_SIZE)}",
            "error 1390; error 1153",
            "MySQL copies an argument to each place of use",
        ),
        Limit(
            "items of a document or of criteria, as a client encodes them",
            number(cost.MAX_ITEMS),
            "error 1153",
            "protobuf blocks the process while it reads one of them",
        ),
        Limit(
            "parts of the expressions of a statement for one document",
            f"{number(cost.MAX_STEPS_A_DOCUMENT)}; the texts and numbers of an `in` do not count",
            "error 1104",
            "a part takes about a microsecond for each document",
        ),
        Limit(
            "steps of a statement: its parts and 10 for each document that they read, and one for each 64 characters",
            number(cost.MAX_STEPS),
            "error 1104; nothing is changed",
        ),
        Limit(
            "time of a statement, without the time in which the client reads the reply",
            f"{cost.MAX_SECONDS:g} s",
            "error 3024; nothing is changed",
            "SQLite blocks other writers while it changes documents",
        ),
        Limit(
            "row of a find; document that a change writes",
            _mib(cost.MAX_SIZE),
            "error 1301; error 3150",
            "they may contain a field many times",
        ),
        Limit(
            "documents that a statement sorts",
            f"{number(cost.MAX_SORTED_DOCUMENTS)}, with {number(cost.MAX_SORTED_TEXT)} characters and"
            f" {number(cost.MAX_SORTED_KEYS)} values to sort by",
            "error 1038",
            "they are in memory",
        ),
        Limit(
            "documents that a statement changes or removes",
            f"{number(sqlite_documents.MAX_CHANGED_DOCUMENTS)}; on CrateDB "
            f"{number(crate_documents.MAX_CHANGED_DOCUMENTS)}",
            "error 1105; nothing is changed",
            "their keys are in memory. CrateDB has no transactions: the server first tries the change on all of them",
        ),
        Limit(
            "texts between two `%` of a LIKE that have `_`",
            f"{like.MAX_TEXTS} texts with {like.MAX_CHARACTERS} characters",
            "error 1235",
            "the server may compare each at each place of a text",
        ),
        Limit("name of a schema or a collection", f"{names.MAX_NAME} characters", "error 1059"),
        Limit(
            "SQL, names and texts",
            "UTF-8",
            "error 1300; a user 1045; a name in a statement on a collection 5000, and the connection ends",
        ),
        Limit("SQL statement", f"{number(sql.MAX_STATEMENT)} characters", "error 1235"),
        Limit("open Expect blocks", str(expect.MAX_BLOCKS), "error 5000, and the server closes the connection"),
        Limit("name of a connection attribute", f"{capabilities.MAX_ATTRIBUTE_NAME} bytes", "error 5005"),
    ],
    "Ids of a call": [
        Limit(
            "ids of a range, or of a chunk", _setting("max_ids_per_call"), _INVALID, "it bounds what one mistake burns"
        ),
        Limit(
            "requests of `BatchAllocateRanges`",
            f"{number(batches.MAX_BATCH_REQUESTS)}, and as many as fit into {_kib(transport.MAX_REQUEST_BYTES)}",
            f"{_INVALID}; nothing is allocated",
            "one call must not delay all others for long; with the longest names, some 990 fit",
        ),
        Limit(
            "requests of an `AllocateStream` without an answer",
            f"{number(request_stream.MAX_REQUESTS)}, {request_stream.MAX_BYTES // 1024} kB of them, and "
            f"{request_stream.MAX_IDS_FACTOR} times max_ids_per_call ids",
            "more requests end the stream, more ids get `QUOTA_EXCEEDED`; "
            f"the Python client sends {pipeline.MAX_IN_FLIGHT}",
            "a stream that breaks burns no more",
        ),
        Limit("document ids as runs", _setting("max_ids_per_call"), _INVALID),
        Limit(
            "ids or document ids as texts in a message",
            f"{number(items.MAX_TEXTS_PER_MESSAGE)}, or max_ids_per_call if that is less",
            _INVALID,
            "some 300 kB",
        ),
        Limit(
            "UUIDs of a call",
            f"{number(MAX_UUIDS_PER_CALL)}, or max_ids_per_call if that is less",
            f"{_INVALID}; the Python client makes calls of {number(MAX_UUIDS_PER_CALL)}",
        ),
        Limit("chunk of a stream, by default", number(id_allocator.DEFAULT_CHUNK), "the client sets `chunk_id_count`"),
        Limit(
            "an id",
            f"{shown_number(sequence.MAX_ID)}, at least -{shown_number(-sequence.MIN_ID)}",
            "SEQUENCE_EXHAUSTED; a bound beyond it is INVALID_REQUEST",
        ),
        Limit(
            "an id with `json_safe`",
            shown_number(validation.MAX_JSON_SAFE),
            "SEQUENCE_EXHAUSTED",
            "exact in JavaScript",
        ),
    ],
    "Sequences": [
        Limit(
            "sequences that a process serves since its start",
            _setting("max_sequences"),
            f"TOO_MANY_SEQUENCES; at {high_water_marks.WARN_SHARE * 100:g} % the log has one line "
            "[`many_sequences`](log-events.md#many_sequences)",
            "each takes about 0.5 kB until the process ends, and 2 kB while in use. A sequence with a reset counts "
            "once; one without ids, or that is only read or changed, does not count",
        ),
        Limit(
            "ids in reserve for a sequence",
            f"{_setting('max_reserved_ids')}, or 1/{reserve.PREFETCH_SHARE} of what is left",
            "calls wait for the store",
        ),
        Limit("min_lease_size, max_lease_size", number(validation.MAX_LEASE_SIZE), _INVALID),
        Limit("name", f"{sequence.MAX_NAME_BYTES} bytes of UTF-8", _INVALID),
        Limit("step", f"2^{sequence.MAX_STEP.bit_length() - 1}, up or down", _INVALID),
        Limit("format", f"{formats.MAX_TEMPLATE} characters; a width of {formats.MAX_WIDTH}", _INVALID),
        Limit("description", f"{number(validation.MAX_DESCRIPTION)} characters", _INVALID),
        Limit("labels", f"{validation.MAX_LABELS}, each key and value {validation.MAX_LABEL} characters", _INVALID),
        Limit(
            "page of ListSequences",
            f"{number(sequences.MAX_PAGE_SIZE)}, by default {sequences.DEFAULT_PAGE_SIZE}; "
            f"{number(sequences.MAX_PAGE_BYTES)} bytes",
            "the page is shorter; `next_page_token` continues",
        ),
        Limit(
            "names that ListSequences examines for a page",
            f"{number(paging.MAX_SCANNED_ROWS)}, for a caller who may read some only",
            f"the page is shorter; {_INVALID} (`name_prefix`) if the caller may read none of them",
        ),
    ],
    "Document ids": [
        Limit("prefix", str(formats.MAX_PREFIX), _INVALID),
        Limit("offset and increment", str(generator.MAX_STEP), _INVALID),
        Limit(
            "serials of a start timestamp",
            f"2^{generator.MAX_SERIAL.bit_length()}",
            "the process claims another start timestamp",
        ),
        Limit(
            "start timestamp",
            f"2^{start_timestamps.TIMESTAMP_END.bit_length() - 1} seconds since 1970",
            "DOC_ID_TIMESTAMP_REFUSED",
        ),
    ],
    "Time": [
        Limit("call, in the Python client and the command", f"{DEFAULT_TIMEOUT:g} s by default", "DEADLINE_EXCEEDED"),
        Limit("lease", _setting("lease_ttl", " s"), "its ids are burned, unless it was renewed"),
        Limit(
            "until a change of a sequence takes effect",
            f"lease_ttl and {generations.MARGIN_SECONDS:g} s",
            "no node issues older ids",
        ),
        Limit("call of the store", _setting("store_timeout", " s"), "STORE_UNAVAILABLE"),
        Limit(
            "answer of CrateDB or OpenSearch", f"{store_connections.MAX_ANSWER_BYTES // 2**20} MiB", "STORE_UNAVAILABLE"
        ),
        Limit(
            "informational answers before one of these",
            str(store_connections.MAX_INFORMATIONAL),
            "STORE_UNAVAILABLE",
        ),
        Limit("clocks of node and store at startup", _setting("max_clock_skew", " s"), "the server does not start"),
        Limit("timestamps ahead of the clock", _setting("max_clock_skew", " s"), "SEQUENCE_AHEAD_OF_CLOCK"),
        Limit(
            "answers under a request_id",
            _setting("request_id_window", " s"),
            "a repeated call gets other ids",
            f"{number(idempotency.WARNING_ROWS)} kept answers cause the log line "
            "[`request_ids_piling_up`](log-events.md#request_ids_piling_up)",
        ),
        Limit(
            "pause before the restart of a worker that ends at once",
            f"{supervisor.LONGEST_PAUSE_SECONDS:g} s",
            "the supervisor retries",
        ),
        Limit("prefix of a killed node", f"{start_timestamps.STALE_AFTER:g} s", "it is free"),
        Limit("running calls after SIGTERM", _setting("drain_timeout", " s"), "they are cancelled, status UNAVAILABLE"),
        Limit(
            "return of unused ids at a stop",
            f"{issuers.RELEASE_SECONDS:g} s",
            "they are burned; the log has [`cleanup_failed`](log-events.md#cleanup_failed)",
        ),
        Limit(
            "delay of the trailer `grpc-retry-pushback-ms`",
            f"{status.LONGEST_PUSHBACK_SECONDS:g} s",
            "the trailer is -1: gRPC's retry policy does not retry",
        ),
    ],
    "Access control": [
        Limit(
            "ids, calls and streams of an identity or a sequence",
            "[quotas](settings.md#the-access-file); none by default",
            "QUOTA_EXCEEDED; an open stream waits",
            f"{quotas.BURST_SECONDS:g} s of a quota may be used at once",
        ),
        Limit(
            "sequences that the first uses by one identity create",
            f"{limits.CREATIONS_PER_SECOND} a second, {number(limits.CREATIONS_AT_ONCE)} at once",
            "QUOTA_EXCEEDED",
            "callers without an identity are not limited",
        ),
        Limit(
            "refusals of an identity that calls again before `RetryInfo` says",
            f"{rejected_callers.BURST} at once, then {rejected_callers.ATTEMPTS_PER_SECOND} a second",
            "further ones wait like those of a host with wrong tokens",
        ),
        Limit(
            "requests without an answer in all streams of a process",
            f"{number(turns.MAX_UNANSWERED)}; an identity, or else a connection, may have as many as are free",
            "the server reads no further request until it has written answers",
        ),
        Limit(
            "sequences whose quotas a process keeps in memory",
            number(quotas.MAX_SEQUENCES),
            "the least recently used ones start again with a full quota",
        ),
        Limit(
            "wrong tokens of a host",
            f"{rejected_callers.BURST} at once, then {rejected_callers.ATTEMPTS_PER_SECOND} a second",
            "the audit has their number only; on the X Protocol port the login waits for its second, and its "
            "connection ends",
            f"of IPv6, a /{rejected_callers.IPV6_PREFIX} is one host; right tokens pass",
        ),
        Limit(
            "rejections of such a host on the gRPC port, and of calls without a token beyond that rate",
            f"each waits {rejected_callers.MIN_DELAY_SECONDS:g} to {rejected_callers.MAX_DELAY_SECONDS:g} s, or half "
            f"of the call's deadline if that is less; {number(rejected_callers.MAX_DELAYED)} wait in a process",
            "further ones are answered at once",
            "a waiting call counts as one of its connection, so a flood waits for its own answers",
        ),
        Limit(
            "different rejected calls in a second's audit",
            number(audit.MAX_COUNTED_RECORDS),
            "further ones are counted together, as `others`",
        ),
    ],
    "Log and errors": [
        Limit(
            "queued log lines",
            f"{log_queue.MAX_QUEUED_BYTES // 2**20} MiB; as much for each of two kinds of audit lines",
            "lines are lost, and counted in [`log_lines_lost`](log-events.md#log_lines_lost)",
            "no call waits for the reader of the log",
        ),
        Limit("wait of an exit for the log", f"{log_queue.FLUSH_SECONDS:g} s", "lines are lost"),
        Limit("causes of an error reason in a second's log", str(metrics.MAX_CAUSES), "further ones are `others`"),
        Limit("text of `store export --moved-to`", f"{MAX_MOVED_TO_LENGTH} characters", "exit code 2"),
        Limit("rule of an invalid field in an error", f"{errors.MAX_RULE_BYTES} bytes", "it is truncated"),
    ],
    "Python client": [
        Limit("connections", str(MAX_CONNECTIONS), "concurrent streams share them"),
        Limit("range that `ids()` prefetches", number(pool.MAX_RANGE_SIZE), "it makes further calls"),
        Limit("rounds of attempts of a unary call", str(pipeline.MAX_ROUNDS), "the error is raised"),
        Limit(
            "attempts of a stream without progress",
            f"{resumption.MAX_ATTEMPTS}; before its first message {resumption.MAX_FIRST_ATTEMPTS}",
            "the error is raised",
            f"more than half a minute; the pause grows to {resumption.MAX_BACKOFF:g} s",
        ),
        Limit("wait of a stream for a quota", f"{resumption.MAX_RETRY_AFTER:g} s at a time", "QUOTA_EXCEEDED"),
    ],
}


def page() -> str:
    """Return the page."""
    parts = []
    for title, listed in LIMITS.items():
        rows = [tuple(prose(cell, links.ALL) for cell in limit) for limit in listed]
        parts += [f"## {title}", table(("what", "limit", "beyond it", "why"), rows)]
    return document(_HEAD, *parts)
