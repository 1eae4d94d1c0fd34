"""Runs the command `idalloc`, in this process or in one of its own."""

import io
import os
import sys

import pytest

from idalloc import cli

COMMAND = [sys.executable, "-c", "import sys; from idalloc.cli import main; sys.exit(main())"]


class Command:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> str:
        """Run a command that must succeed, and return its output."""
        code = cli.main([*map(str, args)])
        out, err = self._capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    def error_line(self, code: int, *args: object) -> str:
        """Run a command that must print nothing but one line on standard error, and return that line."""
        assert cli.main([*map(str, args)]) == code
        out, err = self._capsys.readouterr()
        assert out == ""
        [line] = err.splitlines()
        return line


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def plain_environment(**variables: str) -> dict[str, str]:
    """Return this environment without variables that affect output, plus the given ones."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "GRPC_VERBOSITY")}
    return plain | variables
