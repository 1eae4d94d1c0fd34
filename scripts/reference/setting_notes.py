"""Notes of the page of settings beyond the descriptions in the code; numbers come from the code."""

from pydantic import ValidationError

from idalloc_server.auth.rejected_callers import ATTEMPTS_PER_SECOND, BURST
from idalloc_server.domain.allocation.reserve import GENEROSITY, PREFETCH_SHARE
from idalloc_server.domain.document_ids.start_timestamps import STALE_AFTER
from idalloc_server.files.watch import POLL_SECONDS
from idalloc_server.listen.connections import MAX_PROBE_CONNECTIONS
from idalloc_server.listen.native import MAX_BLOCKED_WRITES
from idalloc_server.listen.transport import MAX_CONNECTION_GRACE_SECONDS
from idalloc_server.rpc.port import STREAMS_SHARE
from idalloc_server.settings.installed import installed
from idalloc_server.settings.model import Settings
from idalloc_server.store.cratedb.schema import _SUPPORTED
from idalloc_server.telemetry.log_queue import FLUSH_SECONDS, MAX_QUEUED_BYTES
from idalloc_server.telemetry.metrics import MAX_CAUSES
from idalloc_server.workers.supervisor import STOP_MARGIN_SECONDS
from idalloc_server.workers.worker import CHANGE_PAUSE_SECONDS
from scripts.reference.markdown import table


def reserve_factor() -> int:
    """Return how long a node's ids last at most at a steady rate, as a multiple of outage_reserve.

    It aims at one less. The ends of its ranges are too short for large calls.
    """
    return GENEROSITY + 1


def lease_factor() -> float:
    """Return the factor of outage_reserve in the minimum of lease_ttl, which adds store_timeout."""
    try:
        Settings.model_validate({"lease_ttl": "1s", "outage_reserve": "100s", "store_timeout": "1s"})
    except ValidationError as refused:
        return (float(str(refused.errors()[0]["msg"]).rpartition(" ")[2].removesuffix("s")) - 1) / 100
    raise AssertionError("a lease of 1 s was accepted")


_ADDRESSES = table(
    ("value", "listens on"),
    [
        ("`127.0.0.1:50051`", "this machine only"),
        ("`0.0.0.0:50051`, `[::]:50051`", "all addresses; other machines can reach them"),
        ("`127.0.0.1:0`", "a free port, which the server prints"),
        ("`unix:/run/idalloc/idalloc.sock`", "a Unix socket for the server's user and group, mode 0660; one process"),
    ],
)
_STORES = table(
    ("URL", "store"),
    [
        ("`sqlite:///PATH`", "a SQLite file at an absolute path: three slashes"),
        ("`crate://USER@HOST:4200,HOST2:4200/?…`", f"CrateDB {_SUPPORTED}; name several hosts"),
        (
            "`opensearch://USER@HOST:9200,HOST2:9200/?…`",
            "OpenSearch 2.17 or newer; `elasticsearch://` is the same: Elasticsearch 8.9 or newer, not tested",
        ),
    ],
)
_PARAMETERS = table(
    ("parameter of `crate://`, `opensearch://`", "meaning"),
    [
        ("`schema`", "`crate://` only: the schema of the tables; default: `doc`"),
        ("`prefix`", "`opensearch://` only: the beginning of the names of the aliases; default: `idalloc`"),
        ("`tls`", "`true` for HTTPS; default: `false`"),
        ("`ca`", "a PEM file of the CA certificates to trust, instead of the system's; implies `tls=true`"),
        ("`password_file`", "a file that contains only the password of `USER`; a line break at its end is ignored"),
        ("`jwt_file`", "a file that contains only a token; the URL then has no user"),
        ("`jwt`", "the token itself"),
        ("`api_key_file`", "`opensearch://` only: a file that contains only an API key in its encoded form"),
        ("`api_key`", "the API key itself"),
    ],
)
_TRANSPORTS = table(
    ("", "`grpcio`", "`native` (experimental)"),
    [
        ("package", "always installed", "`pip install '.[native]'` in [a clone](../index.md#start); Linux and macOS"),
        ("TLS, client certificates, `max_connection_age`", "yes", "refused at startup"),
        ("a `listen` that other machines can reach", "with TLS and `access_file`", "only with `insecure`"),
        ("a host name with several addresses", "listens on all", "refused at startup"),
        ("new calls while the server stops", "GOAWAY sends them to another server", "rejected with `SERVER_DRAINING`"),
        ("the trailer `grpc-retry-pushback-ms`", "sent", "not sent; `RetryInfo` has the delay"),
        ("a stream whose client reads slowly", "waits", f"waits in a thread, at most {MAX_BLOCKED_WRITES:,} of them"),
    ],
)

# Markdown by setting. Most settings need none: their description says all.
NOTES = {
    "listen": f"""{_ADDRESSES}

Clients use the same address. A server on an address that other machines can reach starts only with TLS and
authenticated
callers, or with [`insecure`](#insecure).""",
    "transport": f"""{_TRANSPORTS}

`native` is [experimental](../guides/deployment.md#transports): keep `grpcio` unless you measured that it limits you.
To use TLS with `native`, put a proxy in front, on the same machine.""",
    "http_listen": """Serves the [status page](../operations/status-page.md), `/livez`, `/readyz` and `/metrics`, see
[monitoring](../operations/monitoring.md). With several workers the supervisor serves it. Port 0 selects a free port,
which the server prints. `make run` sets `127.0.0.1:50080`. The rule of [`insecure`](#insecure) applies,
and TLS is that of [`tls_cert`](#tls_cert). Probes may have a [separate port](#probe_listen).""",
    "http_hosts": """A stranger's web page, in a browser on this machine or in this network, can make its own name
resolve to the server (DNS rebinding). So without [`access_file`](#access_file) and [`tls_client_ca`](#tls_client_ca)
the status page and `/metrics` answer only if the header `Host` is an IP address, `localhost`, the name of this
machine, the host of [`http_listen`](#http_listen), or one of these names. Others get the status 421. Probes answer
under any name.""",
    "probe_listen": f"""Serves `/livez` and `/readyz`, for a load balancer or the kubelet. It has its own limit,
{MAX_PROBE_CONNECTIONS} connections, and descriptors of a reserve, so strangers on the other ports cannot block
probes. Let only the prober reach it. It has no TLS and no authentication, and serves only the checks of readiness, so
the rule of [`insecure`](#insecure) does not apply. With several workers the supervisor serves it.""",
    "xproto_listen": """MySQL's X DevAPI clients connect here: `collection.add()` stores documents, and the server
generates their ids. It is not MySQL: it rejects transactions, prepared statements, tables and other SQL with
MySQL's errors. With SQLite the documents are in a file beside the store, such as `idalloc-documents.db`. See
[MySQL X DevAPI clients](../guides/mysql-xdevapi.md).

The user is the name of an identity, and the password its token. With [`access_file`](#access_file) the server starts
only with [`tls_cert`](#tls_cert), and clients log in only with TLS. Without a certificate clients need
`ssl-mode=DISABLED`. The rule of [`insecure`](#insecure) applies. Port 0 selects a free port, which the server prints.
Each of several workers serves it.

Messages and connections have [limits](limits.md#x-protocol-port).

A statement needs a role on `SCHEMA.COLLECTION`: `read` to find and count, `allocate` to add, `admin` for all others.
To create or drop a schema, a client needs the role `admin` on its name.""",
    "store": f"""{_STORES}

{_PARAMETERS}

Percent-encode reserved characters. The URL may have a password or a token itself (`USER:PASSWORD@`, `jwt`, `api_key`).
Then put it into `IDALLOC_STORE` or the TOML file: the server rejects it in the flag `--store`, which every user of the
machine can see. No log line, error or `config show` prints it.

The default is `idalloc/idalloc.db` below `$XDG_STATE_HOME`, or below `~/.local/state`. SQLite needs a local disk, and
serves one machine. In a container, mount the folder of the file, never the file. See
[deployment](../guides/deployment.md), [OpenSearch](../guides/opensearch.md) and
[backup](../operations/backup-and-restore.md).""",
    "node_prefix": "The first 4 hexadecimal digits of a document id. Ids are unique even if two nodes share a prefix.",
    "prefix_conflict": f"""With `warn` the server logs [`prefix_conflict`](log-events.md#prefix_conflict) and starts.
With `refuse` it does not start, and `UpdateNode` fails with [`PREFIX_IN_USE`](errors.md#prefix_in_use). Document
ids are unique in either case. A node that stopped releases its prefix at once. The prefix of a killed one is free
after {STALE_AFTER:g} s.""",
    "auto_increment_offset": "Has an effect only if `auto_increment_increment` is more than 1, as in MySQL.",
    "lease_ttl": f"""At least {lease_factor():g} times [`outage_reserve`](#outage_reserve) plus
[`store_timeout`](#store_timeout). A change of a sequence in use takes effect when earlier leases have
expired: up to this time and a second later. See [leases and fencing](../explanation/leases-and-fencing.md).""",
    "outage_reserve": f"""`0s` promises nothing for an outage: a node holds the ids of about three seconds, so that no
busy caller waits for a refill. A node holds the ids of up to {reserve_factor():g} times this time, and a crash burns
them. Sequences with the ordering `RISING`, timestamps, and calls with a
`request_id` have no reserve: they call the store each time.""",
    "max_reserved_ids": f"""A node never reserves more than 1/{PREFETCH_SHARE} of the ids that a sequence has left. A
sequence may have a lower limit, `max_lease_size`.""",
    "store_timeout": """The ids of a write without an answer are burned, and its callers get
[`STORE_UNAVAILABLE`](errors.md#store_unavailable).""",
    "max_clock_skew": """A server with a larger difference does not start. If a sequence of timestamps is further
ahead, calls fail with [`SEQUENCE_AHEAD_OF_CLOCK`](errors.md#sequence_ahead_of_clock).""",
    "workers": f"""More than 1 starts a supervisor, which restarts workers that end. They share the address, the prefix
and the store; each has its own leases and its own start timestamp, like several nodes. A connection stays with
one worker, so one client with one connection uses one worker. Quotas and [`max_sequences`](#max_sequences) count in
each worker separately. A worker that cannot apply an `UpdateNode` retries every {CHANGE_PAUSE_SECONDS:g} s.
The supervisor kills a worker that has not ended {STOP_MARGIN_SECONDS:g} s after `drain_timeout`.""",
    "drain_timeout": f"""The server rejects new calls with [`SERVER_DRAINING`](errors.md#server_draining), and their
clients call another server. Streams end after {STREAMS_SHARE:.0%} of this time. At its end the server cancels
the running calls.""".replace("%", " %"),
    "max_ids_per_call": """Applies to ranges, document ids and UUIDs. Document ids as texts, and UUIDs, also have a
fixed limit ([limits](limits.md#ids-of-a-call)). More is [`INVALID_REQUEST`](errors.md#invalid_request).""",
    "auto_create_sequences": """The sequence starts at 1 and has no format. If this is off, the call fails with
[`SEQUENCE_NOT_FOUND`](errors.md#sequence_not_found). A call never recreates a deleted sequence.""",
    "max_sequences": """For each sequence the process remembers what it saw, so that it notices a store that went
backwards. Calls for another sequence fail with [`TOO_MANY_SEQUENCES`](errors.md#too_many_sequences). See
[limits](limits.md#sequences).""",
    "request_id_window": """The server removes an answer after this time on the boot clock of the node that removes it.
A restart of that node restarts the time, so an answer may stay longer, but never shorter.""",
    "tls_cert": """The server accepts only TLS 1.2 and 1.3. It checks the files at each new connection, and
reads them again after a change or on SIGHUP. Files that do not match change nothing: the log has
[`certificates_not_reloaded`](log-events.md#certificates_not_reloaded). See [TLS](../guides/tls.md).""",
    "tls_key": "Without a passphrase. It must be given with `tls_cert`.",
    "tls_client_ca": """Clients of the health service then also need a certificate. The server checks its expiry at each
call and before each message of a stream. Without `access_file`, every client with such a certificate may call every
RPC.""",
    "access_file": f"""The server checks the file every {POLL_SECONDS:g} s, reads it after a change or SIGHUP, and logs
[`access_reloaded`](log-events.md#access_reloaded). An invalid file is fatal at startup. Later it changes nothing:
the log has [`access_not_reloaded`](log-events.md#access_not_reloaded). A host that sends {BURST} wrong tokens at
once gets {ATTEMPTS_PER_SECOND} more try a second. [The access file](#the-access-file) has the keys.""",
    "insecure": """A server that other machines can reach starts only if it has TLS and authenticates its callers, by
`access_file` or by `tls_client_ca`. `insecure = true` permits it without: for a demo, or if a proxy does both.""",
    "trust_proxy": """The audit log and the limits per host then use the last address in `x-forwarded-for` as
the caller's. Only with `listen = "unix:/PATH"`: each member of the socket's group could send another address. The
proxy must append the address of its peer, and must terminate TLS: this socket has none, so
[`tls_cert`](#tls_cert) is only for the other ports. See [Envoy in front](../guides/envoy.md).""",
    "max_connection_age": f"""Its calls may continue for another {MAX_CONNECTION_GRACE_SECONDS} s. Behind a load
balancer that balances connections, this moves clients to new servers. Refused with `transport = "native"`.""",
    "log_level": f"""The audit log and the causes of failed calls are logged at any level: see [log
events](log-events.md). The log goes to standard error, as JSON, or in colours on a terminal. Only the line
[`serving`](log-events.md#serving) goes to standard output, at any level. No call waits for the log's reader: each
process queues {MAX_QUEUED_BYTES // 2**20} MiB, and as much again for each of two kinds of audit lines. What does not
fit is lost and counted in [`log_lines_lost`](log-events.md#log_lines_lost). An exit waits up to {FLUSH_SECONDS:g} s
for the queue. Each error reason has up to {MAX_CAUSES} causes a second in the log; further ones are logged as
`others`.""",
    "debug_metrics": "The page of [metrics](metrics.md) marks them. No alert and no dashboard uses them.",
}
if unknown := NOTES.keys() - installed().settings.model_fields.keys():
    raise ValueError(f"notes on settings that do not exist: {unknown}")
