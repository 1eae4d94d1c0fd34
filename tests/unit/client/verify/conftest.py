"""The command `idalloc verify` on logs in each format."""

from pathlib import Path

import pytest

from tests.support.verify_command import VerifyCommand


@pytest.fixture(params=["log", "jsonl"])
def verifier(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> VerifyCommand:
    return VerifyCommand(tmp_path, request.param, capsys)
