"""Runs `idalloc verify`, as a command and as a function."""

import json
from pathlib import Path
from typing import Any

import pytest

from idalloc.cli import main
from idalloc.verify._spans import MemoryLimits
from idalloc.verify._verdict import verify
from tests.support.planted_logs import Planted, PlantedLog

NO_FINDINGS = {"duplicates": 0, "outOfOrder": 0, "beyondExport": 0, "malformed": 0}


class VerifyCommand:
    """Writes files to a folder, and runs the command on them."""

    def __init__(self, folder: Path, suffix: str, output: pytest.CaptureFixture[str]) -> None:
        self.folder, self.suffix, self._output = folder, suffix, output
        self.files: list[Path] = []
        self.code = -1

    def log(self, *records: Planted, **more: Any) -> Path:
        path = self.folder / f"{len(self.files)}.{self.suffix}"
        self.files.append(PlantedLog(records, **more).write(path))
        return path

    def export(self, *lines: dict[str, Any]) -> None:
        self._write({"idalloc_export": 1}, *lines)

    def node_log(self, *lines: dict[str, Any]) -> None:
        self._write({"event": "serving", "level": "info"}, *lines, {"event": "stopped", "burned": {"expired": 1}})

    def _write(self, *lines: dict[str, Any]) -> None:
        path = self.folder / f"{len(self.files)}.other"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        self.files.append(path)

    def report(self) -> Any:
        self.code = main(["verify", "--json", *map(str, self.files)])
        output = self._output.readouterr()
        assert output.err == ""
        return json.loads(output.out)

    def passes(self) -> Any:
        """Run the command, which must find nothing, and return its report."""
        report = self.report()
        assert (report["findings"], report["messages"], self.code) == (NO_FINDINGS, [], 0)
        return report

    def finds(self, *texts: str, **findings: int) -> Any:
        """Run the command, which must have exactly these findings, and return its report."""
        report = self.report()
        assert (report["findings"], self.code) == (NO_FINDINGS | findings, 1)
        messages = "\n".join(report["messages"])
        assert [text for text in texts if text not in messages] == []
        return report


def counter(sequence: str, last_value: int | None, **more: Any) -> dict[str, Any]:
    """Return the line of an export for a sequence's counter."""
    value = None if last_value is None else str(last_value)
    return {"sequence": sequence, "last_value": value, "generation": "1", **more}


def findings_of(*paths: Path, limits: MemoryLimits | None = None) -> dict[str, int]:
    """Verify files, and return the counts of findings above 0."""
    found = verify(paths, limits).findings
    counts = {"duplicates": found.duplicates, "outOfOrder": found.out_of_order, "beyondExport": found.beyond_export}
    return {kind: count for kind, count in (counts | {"malformed": found.malformed}).items() if count}


def messages_of(*paths: Path) -> str:
    """Verify files, and return the messages of findings."""
    return "\n".join(verify(paths).findings.messages)
