"""The public API of the Python package is the baseline's, scripts/python.api."""

import shutil
from pathlib import Path

from scripts.python_baseline import BASELINE, SOURCE, changes, public_api

# Edits of a copy: a file, a text that it has once, and the replacement.
EDITS = [
    ("_core/defaults.py", "DEFAULT_TIMEOUT = 5.0", "DEFAULT_TIMEOUT = 3.0"),
    ("_core/errors.py", "class StoreUnavailable(Unavailable", "class StoreUnavailable(IdallocError"),
    ("_core/types.py", "    store_error: str", "    problem: str"),
    ("_sync/client.py", "def node(self)", "def node(self, name: str)"),
    ("_sync/client.py", "def parse_id(self, sequence: str, text: str)", "def parse_id(self, text: str, sequence: str)"),
    ("_sync/client.py", "n: int = 1, version: int = 7)", "n: int = 1, version: int = 7, *, fast: bool = False)"),
    ("aio/_client.py", "async def node(", "def node("),
    ("ext/sqlalchemy.py", "def idalloc_default(", "def default("),
]
BREAKS = """
idalloc.Client.__init__(timeout): float = 5.0 is gone
idalloc.Client.from_environment(timeout): float = 5.0 is gone
idalloc.Client.node(1: name): str is required
idalloc.Client.parse_id(1: sequence): str is gone
idalloc.Client.parse_id(1: text): str is required
idalloc.Client.parse_id(2: sequence): str is required
idalloc.Client.parse_id(2: text): str is gone
idalloc.Node.store_error: str = '' is gone
idalloc.aio.Client.__init__(timeout): float = 5.0 is gone
idalloc.aio.Client.from_environment(timeout): float = 5.0 is gone
idalloc.aio.Client.node() -> async Node is gone
idalloc.ext.sqlalchemy.idalloc_default() -> Callable[[], int] is gone
idalloc.ext.sqlalchemy.idalloc_default(0: sequence): str is gone
idalloc.ext.sqlalchemy.idalloc_default(1: client): Client | None = None is gone
class idalloc.StoreUnavailable(Unavailable) is gone
"""


def baseline() -> list[str]:
    return BASELINE.read_text().splitlines()


def test_the_api_is_that_of_the_baseline() -> None:
    """No public name, argument, default, type or base class differs; `make baseline` accepts it."""
    found = changes(baseline(), public_api(SOURCE))
    assert not found, "\n".join(["the public API differs: see CONTRIBUTING.md, or run `make baseline`", *found])


def test_each_planted_break_is_found(tmp_path: Path) -> None:
    """A removed, renamed, moved or retyped name is a break; an optional argument is none."""
    shutil.copytree(SOURCE / "idalloc", tmp_path / "idalloc", ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
    for name, old, new in EDITS:
        file = tmp_path / "idalloc" / name
        text = file.read_text()
        assert text.count(old) == 1, (name, old)
        file.write_text(text.replace(old, new))
    found = changes(baseline(), public_api(tmp_path))
    breaks = [each.removeprefix("break: ") for each in found if each.startswith("break: ")]
    assert sorted(breaks) == sorted(BREAKS.strip().splitlines())
    assert "addition: idalloc.Client.uuids(fast): bool = False" in found
