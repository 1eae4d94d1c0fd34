"""python-api.md: the clients, what they return and raise, from their docstrings."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import griffe

import idalloc
from idalloc._core import defaults
from idalloc._core import errors as error_classes
from scripts.reference import links
from scripts.reference.errors import description, exceptions
from scripts.reference.markdown import ROOT, block, document, one_line, prose, table

_HEAD = """\
# Python API

Find any class, method and exception of the package `idalloc`. The text is that of the docstrings.

`pip install .` in [a clone](../index.md#start) installs the package, which needs gRPC and protobuf only. The clients
check each reply before they return any of its ids. They return dataclasses: enums are texts, times are `datetime` in
UTC, and `to_dict()` gives the [JSON](api.md#json) that the command prints. See [the guide](../guides/python-sdk.md) for
tasks.
"""
_AIO = """\
## `idalloc.aio.Client`

`idalloc.aio.Client` has the methods of [`idalloc.Client`](#idallocclient), for asyncio: the same arguments, results and
exceptions. Await each method. `ids()`, `stream_ranges()`, `stream_doc_ids()` and `sequences.list()` return asynchronous
iterators and are not awaited, nor is `allocate_stream()`, which returns an asynchronous context manager. This section
has what differs.
"""
_SETTINGS = """\
The arguments of [`create`](#clientsequencescreate) and [`update`](#clientsequencesupdate), as in
[`Sequence`](api.md#sequence). None selects the default.
"""
_ERRORS = """\
## Exceptions

All are in the package `idalloc`. [Errors](errors.md) has the meaning and the next step of each reason.
"""
_DATACLASSES = ("Range", "Sequence", "SequenceChange", "ParsedId", "Node")
_EXTENSIONS = (
    "ext.sqlalchemy_plugin.IdallocPlugin",
    "ext.django.IdallocBigAutoField",
    "ext.django.IdallocAutoField",
)
_KINDS = {"parameters": "argument", "raises": "raises", "attributes": "attribute"}


@cache
def _package() -> Any:
    return griffe.load("idalloc", search_paths=[ROOT / "client"], docstring_parser="google")


def page() -> str:
    """Return the page."""
    package = _package()
    client, ids = package["_sync.client.Client"], package["_sync.ids.Ids"]
    stream = package["_sync.allocate_stream.AllocateStream"]
    example = package.docstring.value.partition("\n\n")[2].partition("\n\n``")[0]
    sqlalchemy = package["ext.sqlalchemy.idalloc_default"]
    return document(
        _HEAD,
        "## Example",
        block("python", "import idalloc\n\n" + re.sub(r"^ {4}", "", example, flags=re.MULTILINE)),
        _class("idalloc.Client", client),
        *(_function(f"Client.{each.name}", each) for each in methods(client)),
        _class("idalloc.Ids", ids, signature=False),
        *(_function(f"Ids.{each.name}", each) for each in methods(ids)),
        _class("idalloc.AllocateStream", stream, signature=False),
        *(_function(f"AllocateStream.{each.name}", each) for each in methods(stream)),
        _class("Client.sequences", package["_sync.sequences.Sequences"], signature=False),
        *(_function(f"Client.sequences.{each.name}", each) for each in methods(package["_sync.sequences.Sequences"])),
        _settings(package["_core.sequences.SequenceSettings"]),
        _AIO,
        _docstring(package["aio._client.Client"].docstring),
        *_differences(package["aio._client.Client"], client),
        "## Dataclasses",
        *(_dataclass(package[f"_core.types.{name}"]) for name in _DATACLASSES),
        _ERRORS,
        _exceptions(package["_core.errors"]),
        "## SQLAlchemy and Django",
        _function("idalloc.ext.sqlalchemy.idalloc_default", sqlalchemy),
        *(_class(f"idalloc.{name}", package[name], signature=False) for name in _EXTENSIONS),
    )


def public_names() -> list[str]:
    """Return the names that the page must have."""
    package = _package()
    found = [f"Client.{each.name}" for each in methods(package["_sync.client.Client"])]
    found += [f"Client.sequences.{each.name}" for each in methods(package["_sync.sequences.Sequences"])]
    return [*found, *(name for name in idalloc.__all__ if name not in ("aio", "AllocateStream", "Client", "Ids"))]


def methods(cls: Any) -> Iterator[Any]:
    """Yield the public methods of a class, its own first."""
    members = {**cls.members, **{name: each for name, each in cls.all_members.items() if name not in cls.members}}
    for name, member in members.items():
        if member.is_function and not name.startswith("_"):
            yield member


def _class(name: str, cls: Any, *, signature: bool = True) -> str:
    shown = block("python", _signature(name, cls.all_members["__init__"])) if signature else ""
    return document(f"## `{name}`", shown, _docstring(cls.docstring))


def _function(name: str, function: Any) -> str:
    keyword = "async " if "async" in function.labels else ""
    shown = block("python", keyword + _signature(name.rpartition(".")[2], function, str(function.returns)))
    return document(f"### `{name}`", shown, _docstring(function.docstring))


def _signature(name: str, function: Any, returns: str = "") -> str:
    parts: list[str] = []
    for each in function.parameters:
        if each.name in ("self", "cls"):
            continue
        if each.kind is griffe.ParameterKind.keyword_only and "*" not in parts:
            parts.append("*")
        stars = "**" if each.kind is griffe.ParameterKind.var_keyword else ""
        annotation = re.sub(r"Unpack\[calls\.(\w+)\]", r"\1", str(each.annotation))
        value = str(each.default)
        shown = repr(vars(defaults)[value]) if value in vars(defaults) else value
        default = "" if each.default is None or stars else f" = {shown}"
        parts.append(f"{stars}{each.name}: {annotation}{default}")
    if parts[-2:-1] == ["*"] and parts[-1].startswith("**"):
        del parts[-2]
    arrow = f" -> {returns}" if returns else ""
    line = f"{name}({', '.join(parts)}){arrow}"
    return line if len(line) < 100 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){arrow}"


def _docstring(docstring: Any) -> str:
    parts = []
    for section in docstring.parsed:
        kind = section.kind.value
        if kind == "text":
            parts += [prose(one_line(part), _known()) for part in section.value.split("\n\n")]
        elif kind == "admonition":  # a paragraph "Signals: …" whose next lines are indented
            name = section.value.kind.capitalize()
            parts.append(prose(one_line(f"{name}: {section.title or ''} {section.value.description}"), _known()))
        elif kind == "returns":
            parts.append(f"Returns: {prose(one_line(section.value[0].description), _known())}")
        else:
            rows = [(_name(kind, each), prose(one_line(each.description), _known())) for each in section.value]
            parts.append(table((_KINDS[kind], "meaning"), rows))
    return document(*parts)


def _name(kind: str, element: Any) -> str:
    if kind != "raises":
        return f"`{element.name}`"
    return prose(", ".join(f"`{name}`" for name in str(element.annotation).strip("()").split(", ")), _known())


@cache
def _known() -> dict[str, str]:
    """Return the targets of names in docstrings."""
    classes = {name: f"#{name.lower()}" for name in (*_DATACLASSES, "SequenceSettings")}
    raised = {kind.__name__: "#all-exceptions" for kind in exceptions().values()}
    return links.ALL | classes | raised | {"IdallocError": "#idallocerror"}


def _settings(settings: Any) -> str:
    rows = [(f"`{each.name}`", _type(each.annotation)) for each in settings.members.values() if each.is_attribute]
    return document("### `SequenceSettings`", _SETTINGS, table(("argument", "type"), rows))


def _type(annotation: Any) -> str:
    literal = re.sub(r"Literal\[([^]]*)\]", lambda match: match[1].replace(", ", " | "), str(annotation))
    return " or ".join(f"`{part}`" for part in literal.split(" | "))


def _differences(client: Any, other: Any) -> Iterator[str]:
    """Yield the asyncio client's methods whose docstrings say more than the other client's."""
    for each in methods(client):
        text = one_line(each.docstring.value)
        is_same = text == one_line(other.all_members[each.name].docstring.value)
        if not is_same and not re.fullmatch(r"As ``[\w.]+``(\.|; an asynchronous (iterator|context manager).*)", text):
            yield _function(f"aio.Client.{each.name}", each)


def _dataclass(cls: Any) -> str:
    described = {
        each.name: each.description
        for section in cls.docstring.parsed
        if section.kind.value == "attributes"
        for each in section.value
    }
    rows = [
        (f"`{name}`", _type(cls.members[name].annotation), prose(one_line(text), _known()))
        for name, text in described.items()
    ]
    properties = [each for each in cls.members.values() if "property" in each.labels]
    rows += [
        (f"`{each.name}`", _type(each.annotation), prose(one_line(each.docstring.value), _known()))
        for each in properties
    ]
    text = cls.docstring.parsed[0].value
    return document(f"### `{cls.name}`", prose(one_line(text), _known()), table(("attribute", "type", "meaning"), rows))


def _exceptions(module: Any) -> str:
    tree = module.docstring.value.partition("\n\n")[2]
    base = module["IdallocError"]
    rows = [
        (
            f"`{kind.__name__}`",
            f"[`{reason}`]({links.REASONS[reason]})" if reason in links.REASONS else f"`{reason}`",
            description(kind),
        )
        for reason, kind in sorted(exceptions().items(), key=lambda each: each[1].__name__)
        if kind is not error_classes.IdallocError
    ]
    properties = [
        (f"`{cls.name}.{each.name}`", _type(each.annotation), prose(one_line(each.docstring.value)))
        for cls in module.classes.values()
        for each in cls.members.values()
        if "property" in each.labels
    ]
    return document(
        block("text", tree),
        "### `IdallocError`",
        _docstring(base.docstring),
        "### All exceptions",
        table(("exception", "reason", "meaning"), rows),
        table(("attribute", "type", "meaning"), properties),
    )
