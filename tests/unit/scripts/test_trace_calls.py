"""The script that counts what each request runs."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "trace_calls.py"


@pytest.mark.test_long
def test_trace_counts_the_transactions_of_each_request() -> None:
    """The script runs on today's server; a first use needs at most two store transactions."""
    printed = subprocess.run([sys.executable, SCRIPT], check=True, capture_output=True, text=True, timeout=60).stdout
    transactions = {line[:48].rstrip(): int(line.split()[-1]) for line in printed.splitlines() if line[-1:].isdigit()}
    assert transactions["AllocateRange from a lease"] == 0
    assert transactions["AllocateRange with a refill"] == 1
    assert transactions["AllocateRange, first use"] == 2
