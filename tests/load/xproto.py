"""Measure adds of documents beside a live MySQL 8.0.31: `make bench-xproto`.

MySQL's Python client drives both in turns, on one machine: idalloc on SQLite with synchronous FULL, MySQL with InnoDB's
defaults. The goals: one add takes at most twice as long, adds of 1,000 have 0.3 of the documents a second.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import idalloc
from tests.support import environments
from tests.support.mysql import server as mysql
from tests.support.processes import running

_DRIVER = Path(__file__).with_name("xproto_driver.py")
GOAL_P50, GOAL_RATE = 2.0, 0.3


def _drive(interpreter: Path, port: int, seconds: float) -> dict[str, float]:
    done = subprocess.run(
        [interpreter, _DRIVER, str(port), str(seconds)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


class _Callers(threading.Thread):
    """Calls AllocateRange again and again, until ``stop``."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._stopped = threading.Event()
        self.taken: list[float] = []

    def run(self) -> None:
        """Call and measure."""
        with idalloc.Client(self._address) as client:
            while not self._stopped.wait(0.002):
                started = time.perf_counter()
                client.allocate_range("orders", 1)
                self.taken.append(time.perf_counter() - started)

    def stop(self) -> str:
        """End, and return the percentiles."""
        self._stopped.set()
        self.join()
        cuts = statistics.quantiles(self.taken, n=100)
        return f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms of {len(self.taken)} calls"


def main() -> None:
    """Measure, and print a line for each round and the medians of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    interpreter = environments.mysqlx_python()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running(folder, xproto_listen="127.0.0.1:0", log_level="warning"))
        ours = int(json.loads(server.serving)["xproto"].rpartition(":")[2])
        theirs = stack.enter_context(mysql.running())
        slower, rates = [], []
        for number in range(args.rounds):
            one, other = (_drive(interpreter, port, args.seconds) for port in (ours, theirs))
            slower.append(one["p50_ms"] / other["p50_ms"])
            rates.append(one["documents_per_s"] / other["documents_per_s"])
            for name, found in (("idalloc", one), ("MySQL", other)):
                rate = f"{found['documents_per_s']:,.0f} documents/s in adds of 1,000"
                print(f"round {number + 1}, {name}: one add p50 {found['p50_ms']:.2f} ms; {rate}")
        print(f"one add: {statistics.median(slower):.2f} of MySQL's time, goal at most {GOAL_P50}")
        print(f"adds of 1,000: {statistics.median(rates):.2f} of MySQL's documents/s, goal at least {GOAL_RATE}")
        for name in ("alone", "beside adds"):
            callers = _Callers(server.address)
            callers.start()
            if name == "alone":
                time.sleep(2 * args.seconds)
            else:
                _drive(interpreter, ours, args.seconds)
            print(f"AllocateRange {name}: {callers.stop()}")


if __name__ == "__main__":
    main()
