"""Measures the cost of access control per call: without it, with tokens, and with quotas.

Servers of each kind take turns.

python -m bench.access_control    (ghz makes the calls)
"""

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.run import CONCURRENCY, CONNECTIONS, TRANSPORTS, Contender, Unary, ratio, report
from bench.servers import running

TOKEN = "idalloc_this-is-no-secret-but-as-long-as-one-is"
PLENTY = 10**12
# The largest ratio of CPU time per call to a server without access control.
TARGET = 1.05


def drive(address: str, calls: int, concurrency: int) -> Unary:
    """Make unary calls with the token, whether the server requires it or not."""
    flags = {
        "config": "examples/ghz/allocate_range_flat.json",
        "proto": "protos/idalloc/v1/id_allocator.proto",
        "import-paths": "protos,third_party/googleapis",
        "metadata": json.dumps({"authorization": f"Bearer {TOKEN}"}),
        "connections": min(CONNECTIONS, concurrency),
        "concurrency": concurrency,
        "total": calls,
        "format": "json",
    }
    command = ["ghz", *(f"--{name}={value}" for name, value in flags.items()), address]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["statusCodeDistribution"] == {"OK": calls}, found["statusCodeDistribution"]
    [median] = [each["latency"] for each in found["latencyDistribution"] if each["percentage"] == 50]
    return Unary(float(found["rps"]), median / 1e9)


def access_file(folder: Path, name: str, quotas: bool) -> Path:
    """Write an access file whose identity has the token."""
    file = folder / f"{name}.toml"
    limits = f"ids_per_second = {PLENTY}\ncalls_per_second = {PLENTY}\n"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    text = f"[[identity]]\nname = 'load'\ntoken_sha256 = ['{digest}']\nallocate = ['*']\n"
    if quotas:
        text += f"{limits}[[quota]]\nsequence = '*'\n{limits}"
    file.write_text(text)
    return file


def measure(transport: str, rounds: int, calls: int) -> None:
    """Measure three servers of one transport in turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name in ("open", "token", "quotas"):
            flags = ["--listen=127.0.0.1:0", f"--store=sqlite://{folder}/{name}.db", f"--transport={transport}"]
            if name != "open":
                flags.append(f"--access-file={access_file(Path(folder), name, name == 'quotas')}")
            contenders[name] = Contender(stack.enter_context(running("idalloc_server", *flags)))
        for turn in range(rounds + 1):
            for contender in contenders.values():
                contender.take_turn(drive, calls, CONCURRENCY)
                if turn == 0:
                    contender.forget()
        for name, contender in contenders.items():
            rate = statistics.median(result.rate for result in contender.results)
            cost = statistics.median(contender.costs)
            print(f"  {transport:7} {name:7} {rate:8,.0f} calls/s {cost * 1e6:6.1f} us of CPU a call")
        for name in ("token", "quotas"):
            costs = ratio(contenders[name].costs, contenders["open"].costs)
            report(f"{transport}: CPU a call, {name} / open", costs, TARGET, most=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=20_000, help="calls a round")
    parser.add_argument("--transport", choices=TRANSPORTS)
    arguments = parser.parse_args()
    if not shutil.which("ghz"):
        raise SystemExit("ghz is not on the PATH")
    for transport in [arguments.transport] if arguments.transport else TRANSPORTS:
        measure(transport, arguments.rounds, arguments.calls)


if __name__ == "__main__":
    main()
