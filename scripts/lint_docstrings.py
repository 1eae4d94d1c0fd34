"""Refuses public methods without a docstring that override no documented one.

``make lint`` runs it in place of ruff's D102, which would also ask for a docstring on an override
that adds nothing. A class names what it implements as a base, or as in "see ``Store``".
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.lint_grain import source_files

_REFERENCE = re.compile(r"``(\w+)``")


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
            yield each


def _implemented(node: ast.ClassDef) -> set[str]:
    """Return the names of the classes that a class implements."""
    return {ast.unparse(base).partition("[")[0] for base in node.bases} | {
        *_REFERENCE.findall(ast.get_docstring(node) or "")
    }


def _is_documented(name: str, node: ast.ClassDef, classes: dict[str, list[ast.ClassDef]]) -> bool:
    if any(each.name == name and ast.get_docstring(each) for each in _methods(node)):
        return True
    bases = [base for parent in _implemented(node) - {node.name} for base in classes.get(parent, [])]
    return any(_is_documented(name, base, {**classes, node.name: []}) for base in bases)


def findings(root: Path) -> Iterator[str]:
    """Yield the public methods of public classes that no docstring describes."""
    classes: dict[str, list[ast.ClassDef]] = {}
    found: list[tuple[Path, ast.ClassDef]] = []
    for file in source_files(root):
        is_private = any(part.startswith("_") for part in file.parts)
        for node in ast.walk(ast.parse((root / file).read_text())):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
                if not is_private and not node.name.startswith("_"):
                    found.append((file, node))
    for file, node in found:
        for method in _methods(node):
            if not _is_documented(method.name, node, classes):
                yield f"{file}:{method.lineno}: {node.name}.{method.name} has no docstring, nor what it overrides"


if __name__ == "__main__":
    undocumented = [*findings(Path())]
    print(*undocumented, sep="\n", end="\n" if undocumented else "")
    sys.exit(bool(undocumented))
