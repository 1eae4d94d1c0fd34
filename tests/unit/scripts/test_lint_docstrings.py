"""The lint of docstrings."""

from pathlib import Path

from scripts.lint_docstrings import findings

CLASSES = '''
class Store:
    def open(self):
        """Connect."""
    def close(self): ...

class FileStore:
    """A store in a file; see ``Store``."""
    def open(self): ...
    def close(self): ...
    def check(self): ...
    def _hidden(self): ...

class Cached(FileStore):
    def open(self): ...
'''


def test_only_overrides_need_no_docstring(tmp_path: Path) -> None:
    """A method that nothing describes is found; one of a documented protocol or base is not."""
    file = tmp_path / "server/a.py"
    file.parent.mkdir()
    file.write_text(CLASSES)
    found = [finding.split()[1] for finding in findings(tmp_path)]
    assert found == ["Store.close", "FileStore.close", "FileStore.check"]
