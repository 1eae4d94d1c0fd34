"""`make test-fresh`: which failures of a target are faults."""

from pathlib import Path

import pytest

from scripts.fresh_targets import run


@pytest.mark.parametrize(("recipe", "fails"), [("echo npm is not installed; exit 1", False), ("cat absent", True)])
def test_a_named_need_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, fails: bool) -> None:
    """A target whose last line says what it needs is no fault; a missing step is one."""
    (tmp_path / "Makefile").write_text(f"tried:\n\t@{recipe}\n")
    monkeypatch.chdir(tmp_path)
    assert bool(run("tried")) is fails
