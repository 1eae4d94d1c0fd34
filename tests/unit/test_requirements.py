"""The locked packages fit together."""

import re

from tests.support.paths import ROOT


def locked(name: str) -> set[str]:
    """Return the packages of a lock with their versions."""
    return set(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements" / name).read_text(), re.MULTILINE))


def test_tests_add_to_what_a_server_needs() -> None:
    """`make test` keeps the packages that `make run` installed: both locks have the same versions of them."""
    server, dev = locked("server.txt"), locked("dev.txt")
    assert server
    assert server - dev == set()
