"""The X Protocol's port of a server."""

import subprocess
import sys

import pytest

UNUSED = ("idalloc_server.xproto.", "idalloc_server.documents")


@pytest.mark.parametrize("module", ["idalloc_server.app", "idalloc_server.workers.supervisor"])
def test_a_server_without_the_port_does_not_load_it(module: str) -> None:
    """A server without xproto_listen does not load the modules of sessions and documents."""
    program = f"import sys, {module}; print([each for each in sys.modules if each.startswith({UNUSED})])"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert loaded in ("[]\n", "['idalloc_server.xproto.notice']\n")  # gRPC's replies have notices, too
