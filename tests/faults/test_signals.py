"""Exceptions from signal handlers inside the client's code (P1)."""

import json
import random
import signal
import subprocess
import sys

import pytest

from tests.support.faults.scenario import Scenario
from tests.support.processes import environment

# Longest time of a call on a busy machine, in seconds.
LONGEST = 20.0

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")


@pytest.mark.scenario(13, "an exception from a signal's handler, amid the client")
@pytest.mark.parametrize(
    "from_server",
    # With a server 100,000 signals in ten programs: most leave a connection of the client open.
    [False, True, *[pytest.param(True, marks=pytest.mark.long)] * 9],
    ids=["memory", *[f"server-{number}" for number in range(1, 11)]],
)
def test_exceptions_from_signal_handlers_repeat_no_id(
    scenario: Scenario, rng: random.Random, from_server: bool
) -> None:
    """P1: whenever a signal handler raises, no id is repeated, and the next calls succeed."""
    signals = scenario.pick(200, 10_000) if from_server else scenario.pick(3000, 100_000)
    log = scenario.folder / "issued.jsonl"
    options = {"target": "", "log": str(log), "signals": signals, "seed": rng.randrange(2**32)}
    if from_server:
        options["target"] = scenario.start_node(max_ids_per_call=16).address  # frequent refills
    command = [sys.executable, "-m", "tests.support.faults.interrupted_client", json.dumps(options)]
    done = subprocess.run(
        command, env=environment() | {"GRPC_VERBOSITY": "NONE"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["twice"] == []
    assert found["signals"] == signals
    assert found["errors_after"] == {}
    assert found["slowest"] < LONGEST
    if not from_server:
        assert found["errors"] == {}
        assert found["ids"] >= signals * 5
        return
    # gRPC reports about one of 300 exceptions as an error of its own.
    assert sum(found["errors"].values()) <= max(6, signals // 100), found["errors"]
    scenario.count_faults(signals)
    scenario.prove(f"{signals:,} signals", logs=[log], at_least=100, note=f"{found['ids']:,} ids taken")
