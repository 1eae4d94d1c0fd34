"""Refuses code of server/ and client/ that is hard to read by its shape.

A function over 60 lines; a statement that assigns two unrelated values; a call with more than four
positional arguments; a tuple splatted into a constructor of a class of these folders; and a class
or a module of the id server whose name another one has. Generated code is left out.

``make lint`` runs it: ``python scripts/lint_grain.py`` in the repository. It prints a line for each
finding.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Container, Iterator
from pathlib import Path

SOURCES = ("server", "client")
GENERATED = (Path("client/idalloc/v1"), Path("client/idalloc/xprotocol"))
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 4
# Functions of C, which take no names.
OF_C = frozenset({"pack", "statx"})
# Names are unique in this folder, but for modules of rooms that are parallel on purpose: stores and
# ports.
UNIQUE = Path("server/idalloc_server")
PARALLEL = frozenset({"__init__", "http", "port", "schema", "server", "store", "witness"})


def source_files(root: Path) -> list[Path]:
    """Return the files of server/ and client/ by path in the repository, without generated code."""
    files = (file.relative_to(root) for source in SOURCES for file in (root / source).rglob("*.py"))
    return sorted(file for file in files if not any(file.is_relative_to(folder) for folder in GENERATED))


def line_count(text: str) -> int:
    """Return the number of lines, as ``wc -l`` counts them."""
    return text.count("\n")


def _assigns_unrelated(node: ast.Assign) -> bool:
    """Return whether a statement assigns two values, and no value to the other's place: a swap."""
    [target, *_] = node.targets
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    places = {ast.unparse(each) for each in target.elts}
    return places.isdisjoint(ast.unparse(each) for each in ast.walk(node.value) if isinstance(each, ast.expr))


def _in_one_file(tree: ast.Module, classes: Container[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each finding in a file; ``classes`` are those of all files."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
        elif isinstance(node, ast.Assign) and _assigns_unrelated(node):
            yield node.lineno, "assigns unrelated values in one statement"
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            starred = [each for each in node.args if isinstance(each, ast.Starred)]
            if len(node.args) - len(starred) > MAX_POSITIONAL and function.rpartition(".")[2] not in OF_C:
                yield node.lineno, f"{function} gets {len(node.args)} positional arguments, at most {MAX_POSITIONAL}"
            if starred and function.rpartition(".")[2] in classes:
                yield node.lineno, f"{function} gets a tuple's values by position"


def findings(root: Path) -> Iterator[str]:
    """Yield what is hard to read in the repository at ``root``."""
    trees = {file: ast.parse((root / file).read_text()) for file in source_files(root)}
    named: dict[str, set[Path]] = defaultdict(set)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                named[node.name].add(file)
    for file, tree in trees.items():
        for line, finding in sorted(_in_one_file(tree, named)):
            yield f"{file}:{line}: {finding}"
    for file in trees:
        if file.stem not in PARALLEL:
            named[f"{file.stem}.py"].add(file)
    for name, files in sorted(named.items()):
        unique = sorted(str(file) for file in files if file.is_relative_to(UNIQUE))
        if len(unique) > 1:
            yield f"{', '.join(unique)}: the same name, {name}"


if __name__ == "__main__":
    found = [*findings(Path())]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
