"""errors.md: what each error means, whether a retry helps, and the next step.

error_reason.proto has the meaning, the metadata and the example. The server's classes in ``domain.errors`` have the
status, the retry and the next step. The rest is from the client's classes.
"""

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from idalloc._core import errors as client_errors
from idalloc._core.errors import IdallocError
from idalloc_server.domain import errors as server_errors
from idalloc_server.domain.errors import Refusal, Retryable
from idalloc_server.status import LONGEST_PUSHBACK_SECONDS
from scripts.reference import links
from scripts.reference.markdown import ROOT, block, document, one_line, prose, table

PROTO = ROOT / "protos/idalloc/v1/error_reason.proto"

_VALUE = re.compile(r"((?:  //.*\n)+)  ERROR_REASON_(\w+) = [1-9]")
_COMMENT = re.compile(
    r"(?P<meaning>.+) Status (?P<status>[A-Z_]+)(?: with (?P<details>[^.]+))?\.(?: Metadata: (?P<metadata>.+)\.)?"
)

_HEAD = f"""\
# Errors

Find an error by its reason, such as `STORE_UNAVAILABLE`, and what to do about it.

A call that fails ends with a `google.rpc.Status`. Its details have a `google.rpc.ErrorInfo` with a reason, the domain
`idalloc`, and metadata: the values in the message, as strings. The command prints `REASON: message`.

A retry is always safe; at worst it leaves a gap. Where this page says that a retry helps, the details have a
`google.rpc.RetryInfo`: wait for its `retry_delay`. gRPC's own retry policy reads the trailer
`grpc-retry-pushback-ms` instead, which has the same delay. Beyond {LONGEST_PUSHBACK_SECONDS:g} s the trailer is -1,
and the policy does not retry.

The Python client raises an exception of a class of its own for each reason. All classes derive from
`idalloc.IdallocError`; those where a retry helps derive from `idalloc.Unavailable`.

The list is generated from `protos/idalloc/v1/error_reason.proto` and from the server's and the client's classes.
"""
_TAIL = """\
## Errors of the Python client

These exceptions do not come from the service. Their reasons are not in `error_reason.proto`.
"""


class ProtoComment(NamedTuple):
    """The comment of a reason in error_reason.proto.

    Attributes:
        meaning: What the reason means.
        status: The name of the gRPC status code.
        details: The details besides ErrorInfo; empty for none.
        metadata: The keys of the metadata, with explanations; empty for none.
        example: The ErrorInfo of an error.
    """

    meaning: str
    status: str
    details: str
    metadata: str
    example: dict[str, Any]


def read_proto() -> dict[str, ProtoComment]:
    """Returns the comment of each reason."""
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
    """Returns the server's class of each reason, whose subclasses have the same status and next step."""
    return {kind.reason: kind for kind in reversed([*_classes(server_errors, Refusal)]) if hasattr(kind, "reason")}


def exceptions() -> dict[str, type[IdallocError]]:
    """Returns the client's classes by reason."""
    return {kind.default_reason: kind for kind in _classes(client_errors, IdallocError)}


def page() -> str:
    """Returns the page."""
    comments, classes, by_reason = read_proto(), exceptions(), refusals()
    sections = [_section(by_reason[reason], comments[reason], classes[reason]) for reason in sorted(comments)]
    others = [
        (f"`{kind.__name__}`", f"`{reason}`", kind.default_code.name, summary(kind))
        for reason, kind in sorted(classes.items())
        if reason not in comments and kind is not IdallocError
    ]
    overview = [
        (f"[`{reason}`](#{reason.lower()})", by_reason[reason].status, _retry(by_reason[reason]))
        for reason in sorted(comments)
    ]
    head = document(_HEAD, "## All errors", table(("reason", "gRPC status", "retry"), overview))
    return document(head, *sections, _TAIL, table(("class", "reason", "gRPC status", "meaning"), others))


def summary(kind: type[IdallocError]) -> str:
    """Returns the first paragraph of a class's docstring."""
    return prose(one_line((inspect.getdoc(kind) or "").partition("\n\n")[0]))


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
        prose(comment.meaning, links.SETTINGS),
        f"**Next step:** {prose(refusal.next_step, links.SETTINGS)}",
        table(columns, [row]),
        block("json", json.dumps(comment.example, indent=2)),
    )


def _retry(refusal: type[Refusal]) -> str:
    return "yes, after the delay in `RetryInfo`" if issubclass(refusal, Retryable) else "no"


def _classes(module: Any, base: type[Any]) -> Iterator[type[Any]]:
    return (kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, base))
