"""Measure adds of documents beside a live MySQL 8.0.31: `make bench-xproto`.

Both take turns, on one machine and disk: idalloc on SQLite with synchronous FULL, MySQL with
InnoDB's defaults. A client of bare frames adds single documents over 1, 8 and 32 sessions; MySQL's
Python client adds 1,000 in one message.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import idalloc
from bench import added_documents, document, machine
from tests.support import environments
from tests.support.processes import running
from tests.xproto.support.mysql import server as mysql

SESSIONS = (1, 8, 32)


def _drive(interpreter: Path | str, driver: str, *arguments: float) -> dict[str, float]:
    command = [interpreter, "-m", f"bench.{driver}", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


class _Callers(threading.Thread):
    """Calls AllocateRange again and again, until ``stop``."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._stopped = threading.Event()
        self._taken: list[float] = []

    def run(self) -> None:
        """Call and measure."""
        with idalloc.Client(self._address) as client:
            while not self._stopped.wait(0.002):
                started = time.perf_counter()
                client.allocate_range("orders", 1)
                self._taken.append(time.perf_counter() - started)

    def stop(self) -> dict[str, float]:
        """End, and return the percentiles."""
        self._stopped.set()
        self.join()
        cuts = statistics.quantiles(self._taken, n=100)
        return {"p50": cuts[49], "p99": cuts[98], "calls": len(self._taken)}


def _measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Return each round's figures: adds at both servers, and gRPC callers beside adds."""
    interpreter = environments.mysqlx_python()
    sessions: dict[str, dict[str, list[dict[str, float]]]] = {
        str(count): {"idalloc": [], "MySQL": []} for count in SESSIONS
    }
    adds: dict[str, list[dict[str, float]]] = {"idalloc": [], "MySQL": []}
    callers: dict[str, list[dict[str, float]]] = {"nothing": [], "adds to MySQL": [], "adds to idalloc": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running(folder, xproto_listen="127.0.0.1:0", log_level="warning"))
        ports = {"idalloc": int(server.xproto.rpartition(":")[2])}
        ports["MySQL"] = stack.enter_context(mysql.running())
        for number in range(rounds):
            for count in SESSIONS:
                for name, port in ports.items():
                    found = _drive(sys.executable, "xproto_sessions", port, count, seconds)
                    sessions[str(count)][name].append(found)
            for name, port in ports.items():
                adds[name].append(_drive(interpreter, "xproto_driver", port, seconds))
            for beside, seen in callers.items():
                calling = _Callers(server.address)
                calling.start()
                if beside == "nothing":
                    time.sleep(seconds)
                else:
                    _drive(interpreter, "xproto_driver", ports[beside.removeprefix("adds to ")], seconds)
                seen.append(calling.stop())
            print(f"round {number + 1}:", {name: each[-1] for name, each in (adds | callers).items()}, flush=True)
            print({count: {name: each[-1] for name, each in both.items()} for count, both in sessions.items()})
    return {"sessions": sessions, "adds": adds, "callers": callers}


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each kind of add lasts in a round")
    args = parser.parse_args()
    found = {"machine": machine.describe(), "rounds": args.rounds, "seconds": args.seconds}
    found |= _measure(args.rounds, args.seconds)
    document.XPROTO.parent.mkdir(parents=True, exist_ok=True)
    document.XPROTO.write_text(json.dumps(found, indent=2))
    print(added_documents.section(found))
    document.write()


if __name__ == "__main__":
    main()
