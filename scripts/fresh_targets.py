"""Run each target that `make help` lists, once, on a bare machine: `make test-fresh`.

A target must succeed, or end with a line that says what it needs. `--quick` leaves out those that
take minutes; names choose some.
"""

import re
import subprocess
import sys
from pathlib import Path

# The arguments that shorten a target.
SHORT = {"test-fresh": ["--dry-run"], "explore": ["SECONDS=1"]}
# The targets that take long, and how they take less.
SLOW = {
    "test": ["ARGS=tests/unit/test_requirements.py"],
    "test-ids": ["ARGS=tests/unit/test_requirements.py"],
    "mutants": ["ARGS=expired-lease-issues"],
    "test-long": ["ARGS=tests/deploy/test_release.py"],
    "test-upgrade": [],
    "test-languages": [],
    "faults": ["ARGS=-k test_clocks"],
    "fuzz": ["IDALLOC_TEST_FUZZ_EXAMPLES=20"],
    "soak": ["ARGS=--soak 2"],
    "floods": ["ARGS=--server http --flood gzip"],
    "load": ["ARGS=--rounds 1 --calls 200 --total 1000000"],
    "bench-peers": ["ARGS=--rounds 1 --seconds 0.2 --refill-rounds 1 --refill-seconds 1 --most 1"],
    "bench-opensearch": ["ARGS=--rounds 1 --seconds 0.2"],
    "bench-faults": ["ARGS=--rounds 1 --seconds 1 --nodes 1 --stores sqlite", "FIRST_SECONDS_ARGS=--used 5"],
    "bench-growth": [
        "ARGS=--names 100 --node-seconds 9",
        "MANY_NAMES_ARGS=--warm-up 9 --names 100",
        "BUSY_ARGS=--seconds 1",
    ],
}
SERVER = """export IDALLOC_SERVER=127.0.0.1:50061 IDALLOC_HTTP_LISTEN=
make run ARGS="--listen $IDALLOC_SERVER" >run.log 2>&1 & trap 'kill -TERM -$!' EXIT
until .venv/bin/idalloc health; do sleep 0.5; kill -0 $! || { cat run.log; exit 1; }; done
[ "$(.venv/bin/idalloc allocate orders)" = 1 ]"""


def run(target: str) -> str:
    """Return what a target printed if it failed without a named need, else an empty text."""
    command = ["bash", "-mc", SERVER] if target == "run" else ["make", target, *(SHORT | SLOW).get(target, [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
    lines = ["", *(line for line in done.stdout.splitlines() if not re.match(r"make(\[\d\])?: |$", line))]
    print(f"{target:16} {lines[-1] if done.returncode else 'ok'}", flush=True)
    return done.stdout if done.returncode and not re.search("needs|no[t ].*installed|no wheels", lines[-1]) else ""


if __name__ == "__main__":
    listed = re.findall(r"^([a-z-]+):.*## ", Path("Makefile").read_text(), re.MULTILINE)
    assert {*SHORT, *SLOW} <= {*listed}
    chosen = [name for name in listed if name not in SLOW] if sys.argv[1:] == ["--quick"] else sys.argv[1:] or listed
    print(*(failed := [*filter(None, map(run, chosen))]), sep="\n\n")
    sys.exit(len(failed))
