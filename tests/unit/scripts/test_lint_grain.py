"""The lint of the grain."""

from pathlib import Path

import pytest

from scripts.lint_grain import MAX_FUNCTION_LINES, findings


def write(root: Path, name: str, text: str) -> None:
    """Write a file of a repository."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def function(lines: int, indent: str = "") -> str:
    """Return a function with this many lines, the first of which is a docstring's."""
    return f'{indent}async def work():\n{indent}    """Work."""\n' + f"{indent}    pass\n" * (lines - 2)


def test_lint_refuses_a_long_function_with_its_docstring(tmp_path: Path) -> None:
    """A function over the limit is found, also a method, and one at the limit is not."""
    at_limit, beyond = function(MAX_FUNCTION_LINES), function(MAX_FUNCTION_LINES + 1, "    ")
    write(tmp_path, "server/a.py", f"{at_limit}\nclass Worker:\n    @staticmethod\n{beyond}")
    assert [*findings(tmp_path)] == [f"server/a.py:{MAX_FUNCTION_LINES + 4}: work has 61 lines, at most 60"]


def test_lint_reads_both_source_roots_only(tmp_path: Path) -> None:
    """A long function is found in server/ and client/, but not in generated code or elsewhere."""
    beyond = function(MAX_FUNCTION_LINES + 1)
    for name in ("client/idalloc/v1/a_pb2.py", "client/idalloc/xprotocol/v1/b_pb2.py", "tests/c.py"):
        write(tmp_path, name, beyond)
    write(tmp_path, "client/idalloc/d.py", beyond)
    write(tmp_path, "server/idalloc_server/e.py", beyond)
    found = [finding.partition(":")[0] for finding in findings(tmp_path)]
    assert found == ["client/idalloc/d.py", "server/idalloc_server/e.py"]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("a, b = 1, 2", "assigns unrelated values in one statement"),
        ("a, b = b, a", None),
        ("self.a, b = 0, self.a", None),
        ("a, b = pair()", None),
        ("write(1, 2, 3, 4, 5)", "write gets 5 positional arguments, at most 4"),
        ("write(1, 2, 3, 4, e=5)", None),
        ("class Row: ...\nRow(1, *rest)", "Row gets a tuple's values by position"),
        ("Column(*rest)", None),
    ],
)
def test_lint_refuses_what_is_matched_by_eye(tmp_path: Path, text: str, finding: str | None) -> None:
    """Pairs of unrelated values and long lists of positions are found; a swap is not one."""
    write(tmp_path, "client/a.py", f"{text}\n")
    assert [*findings(tmp_path)] == ([] if finding is None else [f"client/a.py:{len(text.splitlines())}: {finding}"])


def test_lint_refuses_a_name_twice_in_the_server(tmp_path: Path) -> None:
    """A class or a module has no other one's name, unless rooms are parallel on purpose."""
    write(tmp_path, "server/idalloc_server/a/rows.py", "class Reader: ...\n")
    write(tmp_path, "server/idalloc_server/b/rows.py", "class Writer: ...\n")
    write(tmp_path, "server/idalloc_server/b/store.py", "class Reader: ...\n")
    write(tmp_path, "server/idalloc_server/c/store.py", "")
    write(tmp_path, "server/idalloc_xproto/rows.py", "class Reader: ...\n")
    assert [*findings(tmp_path)] == [
        "server/idalloc_server/a/rows.py, server/idalloc_server/b/store.py: the same name, Reader",
        "server/idalloc_server/a/rows.py, server/idalloc_server/b/rows.py: the same name, rows.py",
    ]
