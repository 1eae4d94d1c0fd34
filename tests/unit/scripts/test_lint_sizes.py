"""The lint of sizes."""

from pathlib import Path

from scripts.lint_sizes import MAX_FUNCTION_LINES, findings


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
