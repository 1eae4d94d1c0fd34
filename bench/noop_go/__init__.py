"""The no-op server in Go: built by the Go on the PATH."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.rivals import Missing
from bench.servers import Server, serving

_BINARY = Path(".build/bench/noop-go").absolute()


@contextmanager
def running() -> Iterator[Server]:
    """Build and run the server; stop it at the end of the block.

    Raises:
        Missing: Go is not installed.
    """
    if shutil.which("go") is None:
        raise Missing("go is not installed")
    build = ["go", "build", "-o", str(_BINARY), "."]
    done = subprocess.run(build, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"go build: {done.stderr.strip()[-300:]}")
    with serving(str(_BINARY)) as server:
        yield server
