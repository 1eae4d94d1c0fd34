"""`idalloc verify` on names in binary logs: their numbers may have gaps, and take no memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.verify._verdict import verify
from tests.support.full_disk import room_for
from tests.support.planted_logs import BOOT_TIME, Planted, PlantedLog, checked, row


def log_one_id(log: IssuedLog, sequence: str) -> None:
    ids = pb.IdRange(first_id=5, last_id=5, step=1, id_count=1)
    log.range(pb.AllocateRangeRequest(sequence=sequence), pb.AllocateRangeResponse(range=ids), log.now())


def test_names_after_a_full_disk_are_valid(tmp_path: Path) -> None:
    """P1: gaps in the numbers, left by names whose records were not written, are no finding."""
    path = tmp_path / "a.log"
    log = IssuedLog(path)
    with room_for(path, 0):
        for number in range(1100):
            with pytest.raises(OSError, match="File too large"):
                log_one_id(log, f"lost{number}")
    log_one_id(log, "orders")
    log.close()
    verdict = verify([path])
    assert (verdict.findings.malformed, verdict.ids) == (0, 1)


VERIFY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from idalloc.cli import main
sys.exit(main(["verify", *sys.argv[2:]]))
"""


def test_high_numbers_of_names_cost_no_memory(tmp_path: Path) -> None:
    """The memory for names grows with the file's size, not with their numbers."""
    numbers = [2**shift for shift in range(10, 32)] + [2**32 - 1]
    names = [row(kind=2, name=number, count=10) + checked(f"{number:010}".encode()) for number in numbers]
    fields = {"generation": 1, "first": 1, "step": 1, "count": 3, "asked": BOOT_TIME, "answered": BOOT_TIME + 1}
    records = [row(name=number, **fields) for number in numbers]
    path = PlantedLog([Planted(1, 10)], more=b"".join(names + records)).write(tmp_path / "a.log")
    command = [sys.executable, "-c", VERIFY, str(4 * 2**30), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"PROVED for {10 + 3 * len(numbers)} ids" in done.stdout


@pytest.mark.parametrize("flags", [0, 2, 128])
def test_log_with_only_invalid_records_is_read(tmp_path: Path, flags: int) -> None:
    """P1: a record with invalid fields or an undefined name is a finding, even the last one."""
    path = PlantedLog([], more=2 * row(flags=flags, step=1, count=1)).write(tmp_path / "a.log")
    verdict = verify([path])
    assert (verdict.findings.malformed, verdict.ids) == (2, 0)
