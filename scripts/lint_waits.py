"""Refuses tests that wait for a fixed time: they are slow, and fail on a busy machine.

``make lint`` runs it: ``python scripts/lint_waits.py`` in the repository. It prints a line for each
finding.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path("tests")
# The waits themselves; simulated time; measurements, which pace their load.
EXCEPTED = (TESTS / "support" / "waiting.py", TESTS / "support" / "simulation", TESTS / "floods")
# In a program for another process.
SLEEP = re.compile(r"\bsleep\((?!0\))")
INSTEAD = "wait for an event (wait_until, until, settle), or name the reason (hold_for) of tests/support/waiting.py"


def fixed_waits(file: Path, text: str) -> Iterator[str]:
    """Yield a finding for each call of a function ``sleep``; ``sleep(0)`` may let others run."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and "sleep" in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
            is_wait = [ast.unparse(argument) for argument in node.args] != ["0"]
        else:
            is_wait = isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(SLEEP.search(node.value))
        if is_wait:
            yield f"{file}:{node.lineno}: sleep: {INSTEAD}"


def findings() -> Iterator[str]:
    """Yield the fixed waits of all tests."""
    for file in sorted(TESTS.rglob("*.py")):
        if not any(file.is_relative_to(each) for each in EXCEPTED):
            text = file.read_text()
            if "sleep" in text:
                yield from fixed_waits(file, text)


if __name__ == "__main__":
    found = [*findings()]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
