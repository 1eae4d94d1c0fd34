"""api.md: every service, RPC, message, field and enum, from the protos with their comments."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.api import field_behavior_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

from idalloc_server.auth.access import ALLOCATE, READ
from idalloc_server.auth.authorize import RULES
from scripts.reference import links
from scripts.reference.markdown import ROOT, block, document, one_line, prose, table

# The files of the page, in its order. error_reason.proto has a page of its own.
_FILES = (
    "idalloc/v1/id_allocator.proto",
    "idalloc/v1/sequences.proto",
    "idalloc/v1/node.proto",
    "idalloc/xprotocol/v1/notice.proto",
    "idalloc/xprotocol/v1/connection.proto",
    "idalloc/xprotocol/v1/expect.proto",
    "idalloc/xprotocol/v1/statement.proto",
    "idalloc/xprotocol/v1/expression.proto",
    "idalloc/xprotocol/v1/crud.proto",
)
_OWN_PAGE = "idalloc/v1/error_reason.proto"
_SERVICE_CONFIG = ROOT / "protos/idalloc/v1/service_config.json"
# Numbers of fields in descriptor.proto, of which a comment's path consists.
_MESSAGE, _ENUM, _SERVICE, _MEMBER = 4, 5, 6, 2

_HEAD = """\
# API

Find any service, RPC, message and field of the gRPC API. All text below the conventions is from the protos in
`protos/idalloc/v1/`. The server also gives them by reflection, and [`idalloc protos`](cli.md#idalloc-protos)
writes them.

## Conventions

### Errors

A call that fails ends with a `google.rpc.Status`, in the trailer `grpc-status-details-bin`. Its details have one
`google.rpc.ErrorInfo`, whose reason is one of [the errors](errors.md). Bad input adds a `google.rpc.BadRequest`.

Any RPC may also end with [`SERVER_DRAINING`](errors.md#server_draining) or [`INTERNAL`](errors.md#internal). With the
setting [`access_file`](settings.md#access_file) it may end with [`UNAUTHENTICATED`](errors.md#unauthenticated),
[`PERMISSION_DENIED`](errors.md#permission_denied) or [`QUOTA_EXCEEDED`](errors.md#quota_exceeded).

### Retries

A retry is always safe; at worst it leaves a gap. Where a retry helps, the details have a `google.rpc.RetryInfo`,
and the trailer `grpc-retry-pushback-ms` has the same delay for gRPC's own retry policy. Load this policy into the
channel, from `protos/idalloc/v1/service_config.json`:
"""
_CONVENTIONS = """\
gRPC retries a stream only before its first message. The Python client resumes streams.

### Deadlines

Set a deadline for each call: gRPC's retry policy waits for the delay that the server returns. If the deadline passes
before the server takes ids, it takes none; later they are a gap.

### JSON

The command's `--json` and `to_dict()` of the Python client follow proto3's JSON mapping. Names are in lowerCamelCase.
64-bit integers and durations are texts, such as `"firstId": "101"` and `"ttl": "179s"`. Times are in RFC 3339, bytes in
base64, and enums have their names. Fields that are unset, or 0 without `optional`, are absent.

### Health and reflection

`grpc.health.v1.Health` has a status for `""`, for each service by its full name, and for `store`: whether the store
works. It needs no token. `grpc.reflection.v1.ServerReflection`, and v1alpha, need an identity, and no role.

The command `idalloc protos DIR` writes the protos for tools without reflection: `grpcurl -import-path DIR -proto
idalloc/v1/id_allocator.proto`, or `grpcurl -protoset DIR/idalloc.binpb`. ghz's `--protoset` takes the same file.

### Authentication

A token is sent as metadata, `authorization: Bearer TOKEN`. A client certificate needs no metadata.

## All RPCs

The role is required only with the setting [`access_file`](settings.md#access_file).
"""


class Element(NamedTuple):
    """A message, enum, service, or a member of one."""

    name: str
    comment: str  # its comment, in paragraphs
    proto: Any  # its descriptor
    members: "list[Element]"  # its fields, values or methods


def page() -> str:
    """Return the page."""
    files = read_protos()
    elements = [each for file in files.values() for each in file]
    anchors = {each.name: f"#{each.name.lower()}" for each in elements}
    rpcs = [(service, rpc) for service in elements if _is_service(service) for rpc in service.members]
    known = links.ALL | {"ErrorReason": "errors.md"} | {rpc.name: f"#{rpc.name.lower()}" for _, rpc in rpcs} | anchors
    messages = {each.name: each for each in elements if isinstance(each.proto, DescriptorProto)}
    parts: list[str] = [_overview(rpcs, messages)]
    parts += [_element(each, known, messages) for each in elements if _is_service(each)]
    for name, file in files.items():
        parts.append(f"## Messages of `{name}`")
        parts += [_element(each, known, messages) for each in file if not _is_service(each)]
    return document(_HEAD, block("json", _SERVICE_CONFIG.read_text()), _CONVENTIONS, *parts)


@cache
def read_protos() -> dict[str, list[Element]]:
    """Return the services, messages and enums of each file."""
    buf = Path(sys.executable).parent / "buf"
    built = subprocess.run(
        [buf, "build", "protos", "--as-file-descriptor-set", "--output", "-"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    files = {file.name: file for file in FileDescriptorSet.FromString(built.stdout).file}
    ours = {name for name in files if name.startswith("idalloc/")}
    if ours != {*_FILES, _OWN_PAGE}:
        raise ValueError(f"give these protos a place in scripts/reference/api.py: {ours ^ {*_FILES, _OWN_PAGE}}")
    return {name: [*_elements(files[name])] for name in _FILES}


def _elements(file: Any) -> Iterator[Element]:
    comments = {
        tuple(location.path): "\n\n".join(one_line(part) for part in location.leading_comments.split("\n\n"))
        for location in file.source_code_info.location
    }
    for kind, protos, members in (
        (_SERVICE, file.service, "method"),
        (_MESSAGE, file.message_type, "field"),
        (_ENUM, file.enum_type, "value"),
    ):
        for number, proto in enumerate(protos):
            path = (kind, number)
            inner = [
                Element(each.name, comments.get((*path, _MEMBER, at), ""), each, [])
                for at, each in enumerate(getattr(proto, members))
            ]
            yield Element(proto.name, comments.get(path, ""), proto, inner)


def _is_service(element: Element) -> bool:
    return hasattr(element.proto, "method")


def _overview(rpcs: list[tuple[Element, Element]], messages: dict[str, Element]) -> str:
    rows = [
        (
            f"[`{service.name}/{rpc.name}`](#{rpc.name.lower()})",
            _role(_rule(service, rpc)),
            _repeated(service, rpc, messages),
        )
        for service, rpc in rpcs
    ]
    return table(("RPC", "role", "a repeated call"), rows)


def _element(element: Element, known: dict[str, str], messages: dict[str, Element]) -> str:
    if _is_service(element):
        rpcs = [_rpc(element, rpc, known, messages) for rpc in element.members]
        return document(f"## `{element.name}`", prose(element.comment, known), *rpcs)
    if isinstance(element.proto, DescriptorProto):
        rows = [
            (f"`{each.name}`", _type(each.proto, element.proto, known), prose(one_line(each.comment), known))
            for each in element.members
        ]
        columns = ("field", "type", "meaning")
    else:
        rows = [
            (f"`{each.name}`", str(each.proto.number), prose(one_line(each.comment), known)) for each in element.members
        ]
        columns = ("value", "number", "meaning")
    return document(
        f"### `{element.name}`", prose(element.comment, known), table(columns, rows) if rows else "No fields."
    )


def _rpc(service: Element, rpc: Element, known: dict[str, str], messages: dict[str, Element]) -> str:
    if "Errors: " not in rpc.comment:
        raise ValueError(f"the comment of {rpc.name} needs a paragraph 'Errors: …'")
    sent = "a stream of " if rpc.proto.client_streaming else ""
    stream = "a stream of " if rpc.proto.server_streaming else ""
    request, response = (each.rpartition(".")[2] for each in (rpc.proto.input_type, rpc.proto.output_type))
    return document(
        f"### `{rpc.name}`",
        f"Request {sent}[`{request}`]({known[request]}), response {stream}[`{response}`]({known[response]}). "
        f"Role: {_role(_rule(service, rpc))}. A repeated call {_repeated(service, rpc, messages)}.",
        prose(rpc.comment, known),
    )


def _rule(service: Element, rpc: Element) -> Any:
    return RULES[f"/idalloc.v1.{service.name}/{rpc.name}"]


def _role(rule: Any) -> str:
    if rule.all_sequences:
        return f"`{rule.role}` on `*`"
    if rule.is_batch:
        return f"`{rule.role}` on the sequence of each request"
    return f"`{rule.role}` on the sequence" if rule.sequence_field else f"`{rule.role}` on any sequence"


def _repeated(service: Element, rpc: Element, messages: dict[str, Element]) -> str:
    """Return what a call does that is sent twice."""
    rule = _rule(service, rpc)
    request = messages[rpc.proto.input_type.rpartition(".")[2]]
    if rule.role == READ:
        return "reads again"
    if any(field.name == "request_id" for field in request.members):
        same = "gets the same ids" if rule.role == ALLOCATE else "changes nothing"
        return f"with the same `request_id` {same}"
    return "takes other ids" if rule.role == ALLOCATE else "sets the same values"


def _type(field: FieldDescriptorProto, message: DescriptorProto, known: dict[str, str]) -> str:
    name = field.type_name.rpartition(".")[2]
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    entry = next((each for each in message.nested_type if each.name == name), None)
    if entry is not None:
        key, value = (FieldDescriptorProto.Type.Name(each.type).removeprefix("TYPE_").lower() for each in entry.field)
        shown = f"map of {key} to {value}"
    elif name:
        full = field.type_name.removeprefix(".")
        shown = f"[`{name}`]({known[name]})" if name in known and full.startswith("idalloc.") else f"`{full}`"
    else:
        shown = kind
    if field.label == FieldDescriptorProto.LABEL_REPEATED and entry is None:
        shown = f"repeated {shown}"
    options: Any = field.options
    behaviors = [*options.Extensions[field_behavior_pb2.field_behavior]]
    names = [field_behavior_pb2.FieldBehavior.Name(each).lower().replace("_", " ") for each in behaviors]
    return ", ".join(
        [f"optional {shown}" if field.proto3_optional else shown, *(each for each in names if each != "optional")]
    )
