"""`idalloc verify` compares times of logs only on the machine's clock."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.verify._verdict import verify
from tests.support.planted_logs import BOOT_ID, Planted, PlantedLog
from tests.support.verify_command import findings_of

FORMATS = pytest.mark.parametrize("name", ["a.log", "a.jsonl"])


@FORMATS
def test_logs_of_unknown_offset_have_no_common_clock(tmp_path: Path, name: str) -> None:
    """Times of two logs are compared only if both have the offset of their clocks."""
    early, late = Planted(11, 10, 0, 1, node=7), Planted(1, 10, 2, 3, node=7)
    one = PlantedLog([early], boot_offset=None).write(tmp_path / name)
    other = PlantedLog([late]).write(tmp_path / f"known-{name}")
    unknown = PlantedLog([late], boot_offset=None).write(tmp_path / f"unknown-{name}")
    known = PlantedLog([early]).write(tmp_path / f"2-{name}")
    assert findings_of(one, other) == findings_of(known, unknown) == findings_of(one, unknown) == {}
    both = PlantedLog([early, late], boot_offset=None).write(tmp_path / f"both-{name}")
    assert findings_of(both) == {"outOfOrder": 1}


@FORMATS
@pytest.mark.parametrize("offset", [-50, 50])
def test_order_is_checked_on_the_machines_clock(tmp_path: Path, name: str, offset: int) -> None:
    """Times of several time namespaces are converted to the machine's clock."""
    here = PlantedLog([Planted(11, 10, 100, 101, node=7)]).write(tmp_path / name)
    record = Planted(1, 10, 110 + offset, 111 + offset, node=7)
    late = PlantedLog([record], boot_offset=offset).write(tmp_path / f"late-{name}")
    assert findings_of(here, late) == {"outOfOrder": 1}
    record = Planted(21, 10, 110 + offset, 111 + offset, node=7)
    assert findings_of(here, PlantedLog([record], boot_offset=offset).write(tmp_path / f"next-{name}")) == {}


def test_boot_id_is_case_insensitive(tmp_path: Path) -> None:
    """Two spellings of a boot id are one machine."""
    early = PlantedLog([Planted(11, 10, 0, 1, node=7)]).write(tmp_path / "1.log")
    late = PlantedLog([Planted(1, 10, 2, 3, node=7)], boot_id=BOOT_ID.upper()).write(tmp_path / "2.log")
    assert findings_of(early, late) == {"outOfOrder": 1}


WRITE = """
import sys
from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
log = IssuedLog(sys.argv[1])
ids = pb.IdRange(first_id=int(sys.argv[2]), last_id=int(sys.argv[2]) + 9, step=1, id_count=10)
reply = pb.AllocateRangeResponse(range=ids, node_id=7, generation=1)
log.range(pb.AllocateRangeRequest(sequence="orders"), reply, log.now())
"""


@pytest.mark.parametrize("form", ["log", "jsonl"])
def test_logs_of_real_time_namespaces_are_in_order(tmp_path: Path, form: str) -> None:
    """A container with a boot clock of its own raises no false alarm, and hides no disorder."""
    unshare = ["unshare", *(["--user", "--map-root-user"] if os.getuid() else []), "--time", "--boottime", "86400"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "--fork", "true"], check=False).returncode:
        pytest.skip("time namespaces cannot be created here")
    paths = [tmp_path / f"{number}.{form}" for number in range(3)]
    for path, first, command in zip(paths, [11, 21, 1], [[*unshare, "--fork"], [], [*unshare, "--fork"]], strict=True):
        subprocess.run([*command, sys.executable, "-c", WRITE, str(path), str(first)], check=True, timeout=50)
    assert findings_of(*paths[:2]) == {}
    assert findings_of(paths[1], paths[2]) == {"outOfOrder": 1}


@FORMATS
@pytest.mark.parametrize("first", [Planted(2**63 - 1, 1, -1, 5), Planted(5, 1, -(10**18) * 4, 10**18 * 4)])
def test_times_at_the_ends_of_int64_do_not_overflow(tmp_path: Path, name: str, first: Planted) -> None:
    """P1: no time makes the verifier fail or overflow."""
    verify([PlantedLog([first, Planted(1, 1, 5, 6, node=1), Planted(9, 1, 7, 8, node=1)]).write(tmp_path / name)])


def test_log_header_has_the_clock_offset(tmp_path: Path) -> None:
    """A client's header has the offset of its time namespace, or null."""
    log = IssuedLog(tmp_path / "a.jsonl")
    log.range(pb.AllocateRangeRequest(sequence="a"), pb.AllocateRangeResponse(), log.now())
    header = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    offset = header["boot_offset_ns"]
    assert offset is None or isinstance(offset, int)


# Hides the shell's time namespace, then runs the command.
HIDE_TIME_NAMESPACE = 'mount -t tmpfs none /proc/$$/ns && touch /proc/$$/ns/uts && exec "$@"'


def test_kernel_without_time_namespaces_has_one_clock(tmp_path: Path) -> None:
    """On kernels without time namespaces, all logs have one boot clock."""
    unshare = [
        "unshare",
        *(["--user", "--map-root-user"] if os.getuid() else []),
        "--mount",
        "sh",
        "-c",
        HIDE_TIME_NAMESPACE,
        "sh",
    ]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("the namespaces of a process cannot be hidden here")
    paths = [tmp_path / "late.log", tmp_path / "early.log"]
    for path, first in zip(paths, [11, 1], strict=True):
        subprocess.run([*unshare, sys.executable, "-c", WRITE, str(path), str(first)], check=True, timeout=50)
    assert findings_of(*paths) == {"outOfOrder": 1}
