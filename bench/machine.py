"""The machine that was measured."""

import os
import platform
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.servers import cores

# The folder for files on a disk; /tmp may be memory.
DISK = Path("/var/tmp") if Path("/var/tmp").is_dir() else Path(tempfile.gettempdir())
_PACKAGES = ("grpcio", "protobuf", "uvloop", "pygrpc-native")
_PROGRAMS = {
    "ghz": ("ghz", "--version"),
    "Redis": ("redis-server", "--version"),
    "PostgreSQL": ("psql", "--version"),
    "etcd": ("etcd", "--version"),
    "Go": ("go", "version"),
}


def describe() -> dict[str, Any]:
    """Return the processor, the disk and the versions."""
    servers, generator = cores()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "own_cores": servers != generator,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _package(name))},
        "programs": {name: found for name, command in _PROGRAMS.items() if (found := _program(command))},
        "load_before": round(os.getloadavg()[0], 1),
        "fsync_ms": round(_fsync_seconds() * 1e3, 2),
        "file_system": _file_system(),
    }


def _cpu() -> str:
    pairs = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    names = {name.strip(): value.strip() for name, _, value in pairs}
    name = names.get("model name", "unknown")
    if name == "unknown" and "vendor_id" in names:
        name = f"{names['vendor_id']}, family {names.get('cpu family')}, model {names.get('model')}"
    return f"{name} ({platform.machine()})"


def _fsync_seconds() -> float:
    """Return the median time to write 4 kB to the disk."""
    times = []
    with tempfile.TemporaryFile(dir=DISK) as file:
        for _ in range(100):
            before = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fsync(file.fileno())
            times.append(time.perf_counter() - before)
    return statistics.median(times)


def _file_system() -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    mounts.append(["/", "unknown"])  # no line shows what is mounted above the root of this process
    _, kind = max((mount for mount in mounts if DISK.is_relative_to(mount[0])), key=lambda mount: len(mount[0]))
    return kind


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _program(command: tuple[str, ...]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else None
