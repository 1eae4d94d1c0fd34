"""The clock of deadlines (P4)."""

import time
from functools import partial

import pytest

from idalloc_server.domain.clock import SystemClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no CLOCK_BOOTTIME")
def test_deadlines_count_suspended_time() -> None:
    """P4: a lease expires during a suspend: unlike Linux's CLOCK_MONOTONIC, its clock counts it."""
    assert isinstance(SystemClock.boot, partial)
    assert SystemClock.boot.args == (time.CLOCK_BOOTTIME,)
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().boot() <= time.clock_gettime(time.CLOCK_BOOTTIME)
