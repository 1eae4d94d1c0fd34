"""A PostgreSQL for tests, where it is installed."""

import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import rivals


@contextmanager
def postgresql() -> Iterator[tuple[str, str]]:
    """Start it, and yield its user and its address; skip the test if it is not installed."""
    if shutil.which("postgres") is None:
        pytest.skip("PostgreSQL is not installed")
    # Not in pytest's folder, which other users cannot enter: PostgreSQL does not run as root.
    with tempfile.TemporaryDirectory() as folder, rivals.postgres(Path(folder)) as server:
        yield "nobody" if os.geteuid() == 0 else getpass.getuser(), server.address
