"""errors.md: what each error means, whether a retry helps, and the next step.

error_reason.proto has the meaning, the metadata and the example. The server's classes in
``domain.errors`` have the status, the retry and the next step. The rest is from the client's
classes.
"""

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from idalloc._core import errors as client_errors
from idalloc._core.defaults import DEFAULT_TIMEOUT
from idalloc._core.errors import IdallocError
from idalloc_server.domain import errors as server_errors
from idalloc_server.domain.errors import Refusal, Retryable
from idalloc_server.rpc.status import LONGEST_PUSHBACK_SECONDS
from scripts.reference import links
from scripts.reference.error_texts import texts
from scripts.reference.markdown import ROOT, block, document, one_line, prose, table

PROTO = ROOT / "protos/idalloc/v1/error_reason.proto"

_BURNED = "../explanation/glossary.md#burned"
_VALUE = re.compile(r"((?:  //.*\n)+)  ERROR_REASON_(\w+) = [1-9]")
_COMMENT = re.compile(
    r"(?P<meaning>.+) Status (?P<status>[A-Z_]+)(?: with (?P<details>[^.]+))?\.(?: Metadata: (?P<metadata>.+)\.)?"
)

_HEAD = """\
# Errors

Find an error by its reason, such as `STORE_UNAVAILABLE`, and what to do about it.

A call that fails ends with a `google.rpc.Status`. Its details have a `google.rpc.ErrorInfo` with a reason, the domain
`idalloc`, and metadata: the values in the message, as strings. The command prints `REASON: message`.

The Python client raises an exception of a class of its own for each reason. All classes derive from
`idalloc.IdallocError`; those where a retry helps derive from `idalloc.Unavailable`.

The list is generated from `protos/idalloc/v1/error_reason.proto` and from the server's and the client's classes.
"""
_POLICY = json.loads((PROTO.parent / "service_config.json").read_text())["methodConfig"][0]["retryPolicy"]
_RETRY = f"""\
## Retry

A retry is always safe; at worst it leaves a gap. To get the same ids again, repeat the call with its `request_id`.

- **When.** Where this page says that a retry helps, the details have a `google.rpc.RetryInfo`. Wait for its
  `retry_delay`. That is {Retryable.retry_after:g} s if the store is unavailable or the server stops; for a quota or a
  clock it is the time until the call fits. Add a random part, so that your callers do not all return at once.
- **How long.** As long as your own caller can wait. A restart of a server takes seconds. A failover of the store can
  take more than a minute.
- **What retries by itself.** Every gRPC client that loads `service_config.json` makes up to
  {_POLICY["maxAttempts"]} attempts within the deadline of the call. So do idalloc's clients and the command, within
  {DEFAULT_TIMEOUT:g} s by default. After that the program gets the error, and a retry is up to it: this
  [loop](../guides/python-sdk.md#handle-errors) outlives an outage.

gRPC's own retry policy does not read `RetryInfo`. It reads the trailer `grpc-retry-pushback-ms`, which has the same
delay. Beyond {LONGEST_PUSHBACK_SECONDS:g} s the trailer is -1, and the policy does not retry.
"""
_DEADLINE = f"""\
## `DEADLINE_EXCEEDED`

No answer came before the deadline of the call. The client itself ends the call, so the error has no details. The
Python client and the command wait {DEFAULT_TIMEOUT:g} s by default. The server logs such a call in
[`calls_failed`](log-events.md#calls_failed) with the code CANCELLED. Ids that it took are never issued to another
caller.

**Next step:** Retry, with the same `request_id` if the call had one. If it recurs, find out what the server waits
for, mostly the store ([runbook](../operations/runbook.md#deadline_exceeded)).
"""
_TEXTS = """\
## Texts

The messages of the service. Words in braces stand for values. No text has a delay or a time that changes from call to
call, so tools can group them; a delay is in `RetryInfo`. Texts of a store, of a file or of a rule are omitted.
"""
_TAIL = """\
## Errors of the Python client

These exceptions do not come from the service. Their reasons are not in `error_reason.proto`.
"""


class ProtoComment(NamedTuple):
    """The comment of a reason in error_reason.proto."""

    meaning: str  # what the reason means
    status: str  # the name of the gRPC status code
    details: str  # the details besides ErrorInfo; empty for none
    metadata: str  # the keys of the metadata, with explanations; empty for none
    example: dict[str, Any]  # the ErrorInfo of an error


def read_proto() -> dict[str, ProtoComment]:
    """Return the comment of each reason."""
    found = {}
    for comment, reason in _VALUE.findall(PROTO.read_text()):
        lines = [line.removeprefix("  //") for line in comment.splitlines()]
        text = " ".join(line.strip() for line in lines if not line.startswith("   ")).strip()
        parts = _COMMENT.fullmatch(text)
        if not parts:
            raise ValueError(f"{reason}: must read 'meaning. Status X. Metadata: keys.', not {text!r}")
        example = json.loads("".join(line for line in lines if line.startswith("   ")))
        found[reason] = ProtoComment(**parts.groupdict(default=""), example=example)
    return found


def refusals() -> dict[str, type[Refusal]]:
    """Return the server's class of each reason; its subclasses have its status and next step."""
    return {kind.reason: kind for kind in reversed([*_classes(server_errors, Refusal)]) if hasattr(kind, "reason")}


def exceptions() -> dict[str, type[IdallocError]]:
    """Return the client's classes by reason."""
    return {kind.default_reason: kind for kind in _classes(client_errors, IdallocError)}


def page() -> str:
    """Return the page."""
    comments, classes, by_reason = read_proto(), exceptions(), refusals()
    sections = [_section(by_reason[reason], comments[reason], classes[reason]) for reason in sorted(comments)]
    others = [
        (f"`{kind.__name__}`", f"`{reason}`", kind.default_code.name, description(kind))
        for reason, kind in sorted(classes.items())
        if reason not in comments and kind is not IdallocError
    ]
    overview = [
        (f"[`{reason}`](#{reason.lower()})", by_reason[reason].status, _retry(by_reason[reason]))
        for reason in sorted(comments)
    ]
    head = document(_HEAD, "## All errors", table(("reason", "gRPC status", "retry"), overview), _RETRY)
    all_texts = [(f"`{reason}`", f"`{text}`") for reason, found in sorted(texts().items()) for text in found]
    return document(
        head,
        *sections,
        _DEADLINE,
        _TEXTS,
        table(("reason", "text"), all_texts),
        _TAIL,
        table(("class", "reason", "gRPC status", "meaning"), others),
    )


def description(kind: type[IdallocError]) -> str:
    """Return a class's docstring without its attributes."""
    return prose(one_line((inspect.getdoc(kind) or "").partition("\n\nAttributes:")[0]))


def _section(refusal: type[Refusal], comment: ProtoComment, kind: type[IdallocError]) -> str:
    columns = ("gRPC status", "retry", "metadata", "Python")
    row = (
        f"{refusal.status}{comment.details and f', with {comment.details}'}",
        _retry(refusal),
        prose(comment.metadata) or "none",
        f"`idalloc.{kind.__name__}`",
    )
    return document(
        f"## `{refusal.reason}`",
        prose(comment.meaning, links.SETTINGS).replace(" burned", f" [burned]({_BURNED})", 1),
        f"**Next step:** {prose(refusal.next_step, links.SETTINGS)}",
        table(columns, [row]),
        block("json", json.dumps(comment.example, indent=2)),
    )


def _retry(refusal: type[Refusal]) -> str:
    return "yes, after the delay in `RetryInfo`" if issubclass(refusal, Retryable) else "no"


def _classes(module: Any, base: type[Any]) -> Iterator[type[Any]]:
    return (kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, base))
