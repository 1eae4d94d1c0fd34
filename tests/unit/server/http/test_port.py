"""The HTTP port of a server."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["idalloc_server.app", "idalloc_server.workers.supervisor"])
def test_a_server_without_the_port_does_not_load_it(module: str) -> None:
    """A server without the HTTP port does not load its libraries, a third of a start's time."""
    program = f"import sys, {module}; print({{'aiohttp', 'prometheus_client'}} & {{*sys.modules}})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "set()\n"
