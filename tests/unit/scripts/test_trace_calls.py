"""The script that counts what each request runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.diagrams import AUTH, CALL_PATH, REFILL_PATH

SCRIPT = Path(__file__).parents[3] / "scripts" / "trace_calls.py"


@pytest.mark.test_long
def test_trace_counts_what_the_figures_show() -> None:
    """A first use needs two transactions at most; calls and refills enter the figures' modules."""
    command = [sys.executable, str(SCRIPT), "--list", "AllocateRange"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    transactions: dict[str, int] = {}
    modules: dict[str, dict[str, None]] = {}  # in the order in which a request enters them
    for line in printed.splitlines():
        if entered := re.match(r"    server/idalloc_server/(\S+):\d+ ", line):
            if not entered[1].startswith("telemetry/"):
                modules[list(transactions)[-1]][entered[1]] = None
        elif line[-1:].isdigit():
            name = line[:48].rstrip()
            transactions[name] = int(line.split()[-1])
            modules[name] = {}
    assert transactions["AllocateRange from a lease"] == 0
    assert transactions["AllocateRange with a refill"] == 1
    assert transactions["AllocateRange, first use"] == 2
    call = [module for module, _ in CALL_PATH if module != AUTH]
    assert list(modules["AllocateRange from a lease"]) == call
    refill = list(modules["AllocateRange with a refill"])
    assert [module for module in refill if module not in call] == [module for module, _ in REFILL_PATH]
    assert AUTH in modules["AllocateRange from a lease, token"]
