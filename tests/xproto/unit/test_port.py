"""The X Protocol's port loads its modules only if it serves."""

import subprocess
import sys
from ast import literal_eval

import pytest

# gRPC's replies have notices, too.
LOADED = {"idalloc_server.notices.generated_ids", "idalloc_xproto.port"}
UNUSED = ("idalloc_xproto.", "idalloc_xproto.documents")


@pytest.mark.parametrize("module", ["idalloc_server.app", "idalloc_server.workers.supervisor"])
def test_a_server_without_the_port_does_not_load_it(module: str) -> None:
    """A server without xproto_listen does not load the modules of sessions and documents."""
    program = f"import sys, {module}; print([each for each in sys.modules if each.startswith({UNUSED})])"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert set(literal_eval(loaded)) <= LOADED
