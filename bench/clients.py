"""Measure the pools of the clients in other languages: `make bench-clients`.

Rounds take turns; a figure is the median of its rounds. The server runs on this machine, too.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes import environment, running

CALLERS = (1, 64)
# The target for Go, in nanoseconds an id.
TARGETS = {"Go": 100}


def build(folder: Path) -> dict[str, list[str]]:
    """Return the commands of the programs that can be built here."""
    commands = {}
    if shutil.which("go"):
        built = folder / "next"
        subprocess.run(["go", "build", "-o", built, "."], cwd=ROOT / "bench/next_go", env=environment(), check=True)
        commands["Go"] = [str(built)]
    return commands


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as server:
        commands = build(Path(name))
        rates: dict[tuple[str, int], list[float]] = {}
        for _ in range(arguments.rounds):
            for language, command in commands.items():
                for callers in CALLERS:
                    line = [*command, server.address, str(callers), str(arguments.seconds)]
                    done = subprocess.run(line, env=environment(), check=True, capture_output=True, text=True)
                    rates.setdefault((language, callers), []).append(float(done.stdout))
    print("| client | callers | ids a second | ns an id | target |\n|---|---|---|---|---|")
    for (language, callers), measured in rates.items():
        rate = statistics.median(measured)
        print(f"| {language} | {callers} | {rate:,.0f} | {1e9 / rate:,.0f} | {TARGETS.get(language, '')} |")


if __name__ == "__main__":
    main()
