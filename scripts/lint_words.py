"""Refuses banned words in code, documents, protos and tests, and tests without a promise.

``make lint`` runs it: ``python scripts/lint_words.py`` in the repository. It prints a line for each
finding.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = re.compile(
    r"\b(told|whoever|of\s+none|heeds?|mend(s|ed)?|comes\s+to\s+nothing|asks\s+who\s+calls|what\s+is\s+taken|turn\s+away"
    r"|where\s+nothing\s+is\s+said)\b",
    re.IGNORECASE,
)
# Recorded, generated or locked files, others' text, and the list itself.
EXCEPTED = re.compile(
    r"\.(api|jar|jsonl|binpb|png|svg|xz)$|_pb2|^requirements/|^third_party/|^LICENSE$|^scripts/lint_words\.py$"
)
LONGEST_TEST_NAME = 60


def banned_words(file: Path, text: str) -> Iterator[str]:
    """Yield a finding for each banned word."""
    # A comment may break in the middle of a phrase.
    joined = re.sub(r"\n\s*(?:#|//)?\s?", lambda gap: "\n" + " " * (len(gap[0]) - 1), text)
    for found in BANNED.finditer(joined):
        yield f"{file}:{text.count(chr(10), 0, found.start()) + 1}: banned word: {' '.join(found[0].split())}"


def unclear_tests(file: Path, text: str) -> Iterator[str]:
    """Yield a finding for each test whose name is too long, or that has no docstring."""
    for node in _defined(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            if len(node.name) > LONGEST_TEST_NAME:
                yield f"{file}:{node.lineno}: {len(node.name)} characters, at most {LONGEST_TEST_NAME}: {node.name}"
            if ast.get_docstring(node) is None:
                yield f"{file}:{node.lineno}: no docstring that names the promise: {node.name}"


def _defined(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module and of its classes, where pytest looks for tests."""
    for node in body:
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body)


def findings() -> Iterator[str]:
    """Yield what is wrong in the files that git knows or does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        file = Path(name)
        if EXCEPTED.search(name) or not file.is_file():
            continue
        text = file.read_text()
        yield from banned_words(file, text)
        if file.suffix == ".py" and file.parts[0] in ("bench", "tests") and "def test_" in text:
            yield from unclear_tests(file, text)


if __name__ == "__main__":
    found = [*findings()]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
