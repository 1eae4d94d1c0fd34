"""A short `make floods`: strangers cost callers of HTTP, X and Envoy's port nothing."""

import tempfile
from pathlib import Path

import pytest

from tests.floods.measure import measure
from tests.floods.targets import floods_of, running_target
from tests.support.under_attack import MAX_P99_MS

pytestmark = [pytest.mark.test_long, pytest.mark.timeout(300)]
SECONDS = 1.5
# `make floods` has these, too; they delay nobody at these ports.
HARMLESS = {"settings", "pings", "gzip"}
# A machine with other work delays callers now and then; a fault does each time.
TRIES, MOST_TIMES_THE_BASELINE = 3, 5


@pytest.mark.parametrize("name", ["http", "x", "envoy"])
def test_a_flood_delays_nobody(name: str) -> None:
    """Callers have no error and a low p99, and no probe fails, during each flood."""
    with tempfile.TemporaryDirectory() as folder, running_target(name, Path(folder)) as target:
        found = {flood: ["not tried"] for flood in floods_of(name) if flood not in HARMLESS}
        for _ in range(TRIES):
            quiet = measure(target, name, "", SECONDS)
            goal = max(MAX_P99_MS, MOST_TIMES_THE_BASELINE * quiet.p99_ms)
            tries = {flood: measure(target, name, flood, SECONDS) for flood in found}
            assert [flood for flood, each in tries.items() if each.sent["connections"] == 0] == []
            # What the server waited for a core is not its own delay.
            misses = {flood: each.misses(goal + 1e3 * each.waited) for flood, each in tries.items()}
            found = {flood: missed for flood, missed in misses.items() if missed}
            if not found:
                break
        assert found == {}
