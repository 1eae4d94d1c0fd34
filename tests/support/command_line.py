"""Runs the command `idalloc`, in this process or in a separate one."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from unittest import mock

import pytest

from idalloc import cli
from idalloc_server.settings import commands
from idalloc_server.telemetry import logs

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
        """Run a command that must print one line on standard error, and return that line."""
        assert cli.main([*map(str, args)]) == code
        out, err = self._capsys.readouterr()
        assert out == ""
        [line] = err.splitlines()
        return line


def run_here(
    capfd: pytest.CaptureFixture[str], environ: Mapping[str, str], *args: str, opens_store: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command that starts no server, in this process, with the environment of another one."""
    run = commands.run if opens_store else mock.Mock(side_effect=AssertionError("it would open the store"))
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch.object(commands, "run", run),
        mock.patch.object(logs, "configure"),
    ):
        code = cli.main(args)
    logs.flush()
    out, err = capfd.readouterr()
    return subprocess.CompletedProcess(args, code, out, err)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def plain_environment(**variables: str) -> dict[str, str]:
    """Return this environment without variables that affect output, plus the given ones."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "GRPC_VERBOSITY")}
    return plain | variables
