"""Refuses functions over 60 lines in server/ and client/; generated code is left out.

``make lint`` runs it: ``python scripts/lint_sizes.py`` in the repository. It prints a line for each
finding.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = ("server", "client")
GENERATED = (Path("client/idalloc/v1"), Path("client/idalloc/xprotocol"))
MAX_FUNCTION_LINES = 60


def source_files(root: Path) -> list[Path]:
    """Return the files of server/ and client/ by path in the repository, without generated code."""
    files = (file.relative_to(root) for source in SOURCES for file in (root / source).rglob("*.py"))
    return sorted(file for file in files if not any(file.is_relative_to(folder) for folder in GENERATED))


def line_count(text: str) -> int:
    """Return the number of lines, as ``wc -l`` counts them."""
    return text.count("\n")


def long_functions(file: Path, text: str) -> Iterator[str]:
    """Yield a finding for each function that is too long, counted without its decorators."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{file}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"


def findings(root: Path) -> Iterator[str]:
    """Yield what is too long in the repository at ``root``."""
    for file in source_files(root):
        yield from long_functions(file, (root / file).read_text())


if __name__ == "__main__":
    found = [*findings(Path())]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
