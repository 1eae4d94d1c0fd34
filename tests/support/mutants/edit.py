"""A mutant: a small edit of the parsed code of a module, imported in place of the module."""

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple


class PlaceError(Exception):
    """The place of an edit does not exist, or exists more than once."""


class Edit(NamedTuple):
    """A replacement of an expression, or of statements in a row, whatever the code's layout."""

    function: str  # the qualified name of the function or class; empty for the whole module
    before: str  # the source text of what is replaced. It must occur exactly once.
    after: str  # the source text in its place


class Mutant(NamedTuple):
    """A seeded fault."""

    name: str
    attacks: str  # the promise that it breaks, or the mechanism
    module: str  # the full name of the module
    what: str  # the fault in words
    edits: tuple[Edit, ...]  # the edits, which are made together
    scenarios: tuple[str, ...] = ()  # the scenarios of the exploration that should find it
    unexplored: str = ""  # why no scenario of the exploration can find it; empty if one does


class Place(NamedTuple):
    """A module, and what its faults break."""

    attacks: str  # the promise, or the mechanism
    module: str  # its full name

    def mutant(
        self, name: str, what: str, *edits: Edit, scenarios: tuple[str, ...] = (), unexplored: str = ""
    ) -> Mutant:
        """Return a mutant of the module. See ``Mutant``."""
        return Mutant(name, self.attacks, self.module, what, edits, scenarios, unexplored)


def edited(mutant: Mutant, source: str) -> ast.Module:
    """Return the syntax tree of the mutant's module with the edits.

    Args:
        mutant: The mutant.
        source: The source text of its module.

    Raises:
        PlaceError: A place does not exist exactly once.
    """
    tree = ast.parse(source)
    for edit in mutant.edits:
        try:
            _replace(_definition(tree, edit.function), edit)
        except PlaceError as error:
            raise PlaceError(f"mutant {mutant.name!r}: {error} in {mutant.module}: {edit.before!r}") from None
    return ast.fix_missing_locations(tree)


def install(mutant: Mutant) -> None:
    """Make this process import the edited module. The module must not have been imported before.

    Raises:
        PlaceError: A place does not exist exactly once.
    """
    assert mutant.module not in sys.modules, f"{mutant.module} is imported already"
    sys.meta_path.insert(0, _Finder(mutant))


def check(mutant: Mutant) -> None:
    """Compile the edited module without importing it.

    Raises:
        PlaceError: A place does not exist exactly once.
    """
    loader = _loader_of(mutant.module)
    compile(edited(mutant, loader.get_data(loader.path).decode()), loader.path, "exec", dont_inherit=True)


def _loader_of(module: str) -> SourceFileLoader:
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:depth]), path)
        path = spec.submodule_search_locations if spec else None
    loader = spec.loader if spec else None
    assert isinstance(loader, SourceFileLoader), f"{module} has no source"
    return loader


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._mutant.module else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self._mutant)
        return spec


class _Loader(SourceFileLoader):
    """Compiles the edited tree each time: no file of its code is written."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        tree = edited(self._mutant, self.get_data(self.path).decode())
        return compile(tree, self.path, "exec", dont_inherit=True)


def _definition(tree: ast.Module, function: str) -> ast.AST:
    """Return the definition with a qualified name."""
    found: ast.AST = tree
    for name in filter(None, function.split(".")):
        inside = getattr(found, "body", [])
        definitions = [
            each
            for each in inside
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name
        ]
        if len(definitions) != 1:
            raise PlaceError(f"{len(definitions)} definitions of {function}")
        found = definitions[0]
    return found


def _replace(definition: ast.AST, edit: Edit) -> None:
    before, after = _parsed(edit.before, edit.after)
    wanted = [ast.dump(each) for each in before]
    in_lists: list[tuple[list[ast.AST], int]] = []
    in_fields: list[tuple[ast.AST, str]] = []
    for node in ast.walk(definition):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                dumps = [ast.dump(each) if isinstance(each, ast.AST) else "" for each in value]
                starts = range(len(dumps) - len(wanted) + 1)
                in_lists += [(value, start) for start in starts if dumps[start : start + len(wanted)] == wanted]
            elif isinstance(value, ast.AST) and [ast.dump(value)] == wanted:
                in_fields.append((node, field))
    if len(in_lists) + len(in_fields) != 1:
        raise PlaceError(f"{len(in_lists) + len(in_fields)} places")
    for nodes, start in in_lists:
        nodes[start : start + len(wanted)] = after
    for node, field in in_fields:
        setattr(node, field, after[0])


def _parsed(before: str, after: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return both as expressions if both are, else as statements."""
    bodies: list[list[ast.stmt]] = [ast.parse(text).body for text in (before, after)]
    alone = [body[0].value for body in bodies if len(body) == 1 and isinstance(body[0], ast.Expr)]
    if len(alone) == 2:
        return [alone[0]], [alone[1]]
    return [*bodies[0]], [*bodies[1]]
