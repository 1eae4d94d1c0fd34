"""The X Protocol's port loads its modules only if it serves."""

import subprocess
import sys
from ast import literal_eval

import pytest


@pytest.mark.parametrize("module", ["idalloc_server.app", "idalloc_server.workers.supervisor"])
def test_a_server_without_the_port_does_not_load_it(module: str) -> None:
    """A server without xproto_listen does not load the modules of sessions and documents."""
    program = f"import sys, {module}; print([each for each in sys.modules if 'idalloc_xproto' in each])"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert literal_eval(loaded) == []
