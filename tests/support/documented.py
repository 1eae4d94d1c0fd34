"""Phrases with defaults and limits that protos and documents must contain, from the code."""

import json
from dataclasses import MISSING, fields
from datetime import UTC, datetime

from idalloc._core import calls, pool
from idalloc_server.domain.administration import paging, summary
from idalloc_server.domain.allocation import config, issued
from idalloc_server.domain.document_ids import generator, start_timestamps
from idalloc_server.domain.sequences import formats, sequence, validation
from idalloc_server.domain.store import retention
from idalloc_server.http.status_page import page
from idalloc_server.listen import open_files, transport
from idalloc_server.rpc import batches, health, id_allocator, items, request_stream, sequences
from idalloc_server.settings.installed import installed
from idalloc_server.store.opensearch import setup
from idalloc_server.workers import supervisor
from idalloc_xproto import session
from scripts.reference.setting_notes import lease_factor, reserve_factor
from tests.support.paths import ROOT

# Required phrases by place (an element of a proto, a section of a document). Limits that a document
# states in words are asserted where the phrase is built.
Claims = dict[str, list[str]]

_KB = 1024


def number(value: float) -> str:
    """Return a number with thousands separators."""
    return f"{value:,g}" if value < 1e6 else f"{value:,.0f}"


def power(value: int) -> str:
    """Return a number as a power of two or right below one, such as -2^62 or 2^63-2."""
    below = -abs(value) % 2 ** (abs(value) - 1).bit_length()
    return f"{'-' if value < 0 else ''}2^{(abs(value) + below).bit_length() - 1}{-below or ''}"


def default(setting: str) -> float:
    """Return the default of a numeric setting."""
    value = installed().settings.model_fields[setting].default
    assert isinstance(value, int | float)
    return value


def bounds(setting: str) -> str:
    """Return the range of a numeric setting, such as "0 to 65535"."""
    found = {type(each).__name__: each for each in installed().settings.model_fields[setting].metadata}
    return f"{found['Ge'].ge} to {found['Le'].le}"


def of_protos() -> Claims:
    """Return the claims for comments of messages, fields, RPCs and enum values."""
    plain = sequence.Sequence()
    name = f"1 to {sequence.MAX_NAME_BYTES} bytes of UTF-8"
    id_range = f"{power(sequence.MIN_ID)} to {power(sequence.MAX_ID)}"
    lease_sizes = f"0 to {number(validation.MAX_LEASE_SIZE)}"
    texts, chunk = number(items.MAX_TEXTS_PER_MESSAGE), number(id_allocator.DEFAULT_CHUNK)
    mysql = f"1 to {generator.MAX_STEP}"
    assert mysql == bounds("auto_increment_offset") == bounds("auto_increment_increment")
    prefixes = f"0 to {formats.MAX_PREFIX}"
    assert prefixes == bounds("node_prefix")
    creates = "on" if installed().settings.model_fields["auto_create_sequences"].default else "off"
    return {
        "Sequence.name": [name],
        "Sequence.description": [f"at most {number(validation.MAX_DESCRIPTION)} characters"],
        "Sequence.labels": [
            f"at most {validation.MAX_LABELS}, each key and value at most {validation.MAX_LABEL} characters"
        ],
        "Sequence.start": [f"For timestamps it is always {plain.start}."],
        "Sequence.step": [
            f"{power(-sequence.MAX_STEP)} to {power(sequence.MAX_STEP)}, not 0. The default is {plain.step}."
        ],
        "Sequence.min_value": [
            f"{id_range}. The default is {plain.min_value}.",
            f"For timestamps it is always {plain.min_value}.",
        ],
        "Sequence.max_value": [
            f"{id_range}. The default is {power(plain.max_value)},",
            f"must reach the year {datetime.fromtimestamp(validation._SECONDS_TO_2200, UTC).year}.",
        ],
        "Sequence.json_safe": [
            f"max_value is then {power(validation.MAX_JSON_SAFE)} unless",
            f"beyond {power(validation.MAX_JSON_SAFE)} on either side of 0",
        ],
        "Sequence.offset": ["1 to increment"],
        "Sequence.increment": [f"1 to {power(sequence.MAX_STEP)}."],
        "Sequence.min_lease_size": [f"{lease_sizes}; 0 (unset) means as many"],
        "Sequence.max_lease_size": [
            f"{lease_sizes}; 0 (unset) means the server's setting max_reserved_ids "
            f"(default {number(default('max_reserved_ids'))})"
        ],
        "Sequence.remaining": [f"{power(sequences.MAX_INT64)} means that many or more"],
        "Sequence.used_ratio": ["0 to 1"],
        "Sequence.ids_per_second": [
            f"the last {issued.WINDOW_SECONDS:g} s",
            f"The rate is 0 after {issued.WINDOW_SECONDS:g} s without calls",
        ],
        "Sequence.exhaust_time": [
            "the rate is 0",
            f"past the year {datetime.fromtimestamp(summary._YEAR_10000 - 1, UTC).year}",
        ],
        "ListSequencesRequest.page_size": [
            f"0 (unset) means {sequences.DEFAULT_PAGE_SIZE}, "
            f"more than {number(sequences.MAX_PAGE_SIZE)} means {number(sequences.MAX_PAGE_SIZE)}."
        ],
        "ListSequencesResponse.next_page_token": [f"more than {number(sequences.MAX_PAGE_BYTES)} bytes"],
        "ListSequencesRequest.name_prefix": [f"the server examines {number(paging.MAX_SCANNED_ROWS)} names"],
        "AllocateRangeRequest.sequence": [
            name,
            f"auto_create_sequences is {creates} (the default), starting at {plain.start}.",
        ],
        "AllocateRangeRequest.id_count": [
            f"0 (unset) means {items.DEFAULT_ID_COUNT};",
            f"max_ids_per_call (default {number(default('max_ids_per_call'))})",
        ],
        "AllocateRangeRequest.request_id": [f"request_id_window (default {default('request_id_window') / 3600:g} h)"],
        "AllocateRangeResponse.node_id": [f"{power(start_timestamps.TIMESTAMP_END)} times the prefix"],
        "BatchAllocateRangesRequest.requests": [f"1 to {number(batches.MAX_BATCH_REQUESTS)} requests"],
        "IdAllocatorService.AllocateStream": [
            f"{number(request_stream.MAX_REQUESTS)} requests may be",
            f"{request_stream.MAX_BYTES >> 20} MiB of them",
            f"{request_stream.MAX_IDS_FACTOR} times the ids of max_ids_per_call",
        ],
        "IdAllocatorService.BatchAllocateRanges": [
            f"up to {number(batches.MAX_BATCH_REQUESTS)} requests",
            f"{batches.REPLY_SECONDS * 1000:g} ms before the call's deadline",
        ],
        "StreamRangesRequest.chunk_id_count": [f"0 (unset) means {chunk};"],
        "GenerateDocIdRequest.id_count": [
            f"0 (unset) means {items.DEFAULT_ID_COUNT};",
            f"at most {texts} in a view with texts",
        ],
        "GenerateDocIdRequest.auto_increment_offset": [f"{mysql}. 0 (unset) means the node's setting."],
        "GenerateDocIdRequest.auto_increment_increment": [f"{mysql}. 0 (unset) means the node's setting."],
        "StreamDocIdsRequest.chunk_id_count": [f"0 (unset) means {chunk};"],
        "GenerateUuidRequest.id_count": [f"0 (unset) means {items.DEFAULT_ID_COUNT}; at most {texts},"],
        "RangeView.RANGE_VIEW_TEXTS": [f"at most {texts} in a message"],
        "Node.prefix": [f"{prefixes} (the setting node_prefix)"],
        "Node.auto_increment_offset": [mysql],
        "Node.auto_increment_increment": [mysql],
        "ErrorReason.ERROR_REASON_DOC_ID_TIMESTAMP_REFUSED": [
            f"at or past {power(start_timestamps.TIMESTAMP_END)} seconds"
        ],
        "ErrorReason.ERROR_REASON_TOO_MANY_SEQUENCES": [
            f"max_sequences allows (default {number(default('max_sequences'))})"
        ],
    }


def of_help() -> Claims:
    """Return the claims for the descriptions of settings."""
    return {"node_prefix": [bounds("node_prefix")]}


def of_documents() -> Claims:
    """Return the claims for documents.

    Documents link to the reference. They state a number only where their readers need it to decide.
    """
    plain = sequence.Sequence()
    largest, reserve = power(sequence.MAX_ID), f"{reserve_factor():g} times `outage_reserve`"
    lease = f"must be at least {lease_factor():g} times"
    [policy] = json.loads((ROOT / "client/idalloc/v1/service_config.json").read_text())["methodConfig"]
    retries = policy["retryPolicy"]
    assert retries["maxAttempts"] == 5  # "up to five attempts"
    first, longest = (float(retries[name].rstrip("s")) for name in ("initialBackoff", "maxBackoff"))
    waits = [min(first * retries["backoffMultiplier"] ** n, longest) for n in range(retries["maxAttempts"] - 1)]
    return {
        "README.md": [f"a store that is away for {default('outage_reserve'):g} s ("],
        "SECURITY.md": [
            f"at most {transport.MAX_STREAMS_PER_CONNECTION} running calls, and with `grpcio` "
            f"{transport.MAX_ENDED_STREAMS} more that the client has reset",
            f"limit a request to {transport.MAX_REQUEST_BYTES // _KB} kB",
            f"serves {number(health.MAX_WATCHES)} watches, {health.MAX_WATCHES_OF_HOST} of one host",
            f"examines {number(paging.MAX_SCANNED_ROWS)} rows a page at most",
            f"more than {transport.LARGEST_METADATA_BYTES // _KB} kB of metadata",
            f"Before the login the limit is {session.MAX_CONTROL_MESSAGE // _KB} KiB",
        ],
        "docs/explanation/guarantees.md": [f"up to {reserve}", f"The largest id is {largest},"],
        "docs/explanation/leases-and-fencing.md": [f"up to {reserve}"],
        "docs/explanation/document-ids.md": [
            f"| {bounds('node_prefix')} |",
            f"seconds since 1970, below {power(start_timestamps.TIMESTAMP_END)}",
            f"1 to {power(generator.MAX_SERIAL)}",
        ],
        "docs/operations/capacity.md": [
            f"up to {reserve}",
            f"`lease_ttl` {lease}",
            f"hence the default of {default('outage_reserve'):g} s",
            f"{default('outage_reserve'):g} = {number(4 * 250 * reserve_factor() * default('outage_reserve'))} ids",
        ],
        "docs/operations/monitoring.md": [
            f"less than {default('outage_reserve') / 2:g} s, half of the default `outage_reserve`"
        ],
        "docs/operations/status-page.md": [f"1 to {page.MAX_LIMIT}, by default {page.DEFAULT_LIMIT}."],
        "docs/operations/runbook.md": [
            f"`lease_ttl: {lease} outage_reserve plus store_timeout`",
            f"below {number(4 * open_files.MAX_PORT_CONNECTIONS)} open files",
        ],
        "docs/guides/choosing-a-key.md": [f"ids go on, exactly, up to {largest}"],
        "docs/guides/deployment.md": [f"must exceed `drain_timeout` plus {supervisor.STOP_MARGIN_SECONDS:g} s."],
        "docs/guides/envoy.md": [f"{transport.MAX_REQUEST_BYTES // _KB} KiB a request"],
        "docs/guides/languages.md": [f"up to {retries['maxAttempts']} attempts, whose waits sum to {sum(waits):g} s"],
        "docs/guides/opensearch.md": [
            f"You need OpenSearch {'.'.join(map(str, setup._MIN_OPENSEARCH))} or newer.",
            f"{'.'.join(map(str, setup._MIN_ELASTICSEARCH))} or newer has the same",
        ],
        "docs/guides/sequences.md": [
            f"| the distance between ids; negative to count down. The sign cannot change | {plain.step} |",
            f"| the bounds of the ids; at the bound the sequence is exhausted | {plain.min_value}, {largest} |",
            f"no id beyond {power(validation.MAX_JSON_SAFE)}, where JavaScript loses digits",
            f"after the year {datetime.fromtimestamp(summary._YEAR_10000 - 1, UTC).year}",
            f"room up to the year {datetime.fromtimestamp(validation._SECONDS_TO_2200, UTC).year}",
        ],
        "docs/guides/sqlalchemy.md": [
            f"ids go up to {largest}",
            f"within {power(validation.MAX_JSON_SAFE)}, for JavaScript",
        ],
    }


def copies() -> list[tuple[float, float]]:
    """Return pairs of values that are one default or limit."""
    of_terms = [
        (each.default, default(each.name)) for each in fields(config.AllocationConfig) if each.default is not MISSING
    ]
    return [
        *of_terms,
        (retention.OLD_WINDOW, default("request_id_window")),
        (calls.MAX_UUIDS_PER_CALL, items.MAX_TEXTS_PER_MESSAGE),
        (pool.MAX_RANGE_SIZE, default("max_ids_per_call")),
    ]
