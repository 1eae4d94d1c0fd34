"""A program whose signals raise amid its client's code is given no id twice, and goes on (P1)."""

import json
import random
import signal
import subprocess
import sys

import pytest

from tests.faults.scenario import Scenario
from tests.support.processes import environment

# How many seconds a call may take on a busy machine.
LONGEST = 20.0

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")


@pytest.mark.scenario(13, "an exception from a signal's handler, amid the client")
@pytest.mark.parametrize(
    "from_server",
    # Of a server 100,000 in ten programs: the client leaves a connection open for most signals.
    [False, True, *[pytest.param(True, marks=pytest.mark.long)] * 9],
    ids=["memory", *[f"server-{number}" for number in range(1, 11)]],
)
def test_signals_that_raise_repeat_no_id(scenario: Scenario, dice: random.Random, from_server: bool) -> None:
    """P1: no id comes twice, and the next calls work at once, whenever a signal's handler raises."""
    signals = scenario.pick(200, 10_000) if from_server else scenario.pick(3000, 100_000)
    log = scenario.folder / "issued.jsonl"
    wishes = {"target": "", "log": str(log), "signals": signals, "seed": dice.randrange(2**32)}
    if from_server:
        wishes["target"] = scenario.start_node(max_ids_per_call=16).address  # so that ranges change hands often
    command = [sys.executable, "-m", "tests.faults.interrupted", json.dumps(wishes)]
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
    # gRPC reports some of the exceptions, about one of 300, as errors of its own.
    assert sum(found["errors"].values()) <= max(6, signals // 100), found["errors"]
    scenario.fault(signals)
    scenario.prove(f"{signals:,} signals", logs=[log], at_least=100, note=f"{found['ids']:,} ids taken")
