"""The public API of the Python package as text: ``python -m scripts.python_baseline`` writes it.

Each line of ``scripts/python.api`` is a class, a callable, an argument or an attribute. A name is
public if an ``__all__`` or a module of ``idalloc.ext`` has it, or a public class does.
``tests/packages/test_python_api.py`` compares the code with the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "client"
BASELINE = ROOT / "scripts" / "python.api"
# An argument without a default; not *args and **kwargs.
_REQUIRED = re.compile(r"([\w.]+)\((?!\*)[^)]+\): (?!.* = )")


def public_api(source: Path) -> list[str]:
    """Return the lines of the package in a folder."""
    package: Any = griffe.load("idalloc", search_paths=[source])
    found: dict[str, Any] = {}
    for module, folder in ((package, "_sync.sequences"), (package["aio"], "aio._sequences")):
        found |= {f"{module.path}.{name}": module[name].final_target for name in module.exports if name != "aio"}
        found[f"{module.path}.Client.sequences"] = package[f"{folder}.Sequences"]
    for module in (each for each in package["ext"].modules.values() if not each.name.startswith("_")):
        own = [each for each in (*module.functions.values(), *module.classes.values()) if not each.is_alias]
        found |= {each.path: each for each in own if not each.name.startswith("_")}
    public = {each.path for each in found.values()}
    defaults = {name: str(each.value) for name, each in package["_core.defaults"].attributes.items()}
    return sorted(
        re.sub(r"(?<= = )\w+$", lambda match: defaults.get(match[0], match[0]), line)
        for name, each in found.items()
        for line in _lines(name, each, public)
    )


def changes(before: list[str], now: list[str]) -> list[str]:
    """Return a text for each line that differs: breaks first."""
    gone = [f"break: {line} is gone" for line in before if line not in now]
    callables = {line.partition("(")[0] for line in before if "() -> " in line}
    new = {line: _REQUIRED.match(line) for line in now if line not in before}
    required = [line for line, match in new.items() if match and match[1] in callables]
    return [
        *gone,
        *(f"break: {line} is required" for line in required),
        *(f"addition: {line}" for line in new if line not in required),
    ]


def _lines(name: str, member: Any, public: set[str]) -> Iterator[str]:
    if member.is_function:
        yield from _function(name, member)
    elif member.is_class:
        bases = [str(each) for each in member.bases if not _is_private(each, public)]
        yield f"class {name}({', '.join(bases)})"
        for own, each in member.all_members.items():
            if _is_public_member(member, own, each, public):
                yield from _lines(f"{name}.{own}", each, public)
    elif member.annotation is not None:
        default = "" if member.value is None else f" = {member.value}"
        yield f"{name}: {member.annotation}{default}"
    elif member.labels == {"instance-attribute"}:
        yield name


def _is_private(base: Any, public: set[str]) -> bool:
    path = getattr(base, "canonical_path", "")
    return path.startswith("idalloc.") and path not in public


def _is_public_member(cls: Any, name: str, member: Any, public: set[str]) -> bool:
    """Return whether a class has a public name, which no public base class has."""
    if member.inherited and member.canonical_path.rpartition(".")[0] in public:
        return False
    # Programs construct clients only; the other classes are constructed by them.
    return cls.name == "Client" if name == "__init__" else not re.match(r"_[^_]|__(slots|init_subclass)__$", name)


def _function(name: str, function: Any) -> Iterator[str]:
    is_awaited = "async" in function.labels and not str(function.returns).startswith("AsyncIterator")
    yield f"{name}() -> {'async ' if is_awaited else ''}{function.returns}"
    for number, each in enumerate(function.parameters):
        if each.name not in ("self", "cls"):
            kind, is_variadic = each.kind, "var" in each.kind.name
            place = "" if is_variadic or kind is griffe.ParameterKind.keyword_only else f"{number}: "
            stars = {"var_positional": "*", "var_keyword": "**"}.get(kind.name, "")
            default = "" if each.default is None or is_variadic else f" = {each.default}"
            yield f"{name}({place}{stars}{each.name}): {each.annotation}{default}"


if __name__ == "__main__":
    BASELINE.write_text("".join(f"{line}\n" for line in public_api(SOURCE)))
