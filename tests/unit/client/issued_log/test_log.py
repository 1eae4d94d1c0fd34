"""The log of issued ids: contents of the file, read by an independent reader."""

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import issued_log
from tests.support.full_disk import room_for
from tests.support.issued_log import Record

ENCODINGS = ["issued.log", "issued.jsonl"]
REQUEST_ID = "c0ffee00-1234-4000-8000-000000000001"
INT64 = st.integers(-(2**63), 2**63 - 1)


def range_request(sequence: str = "orders", request_id: str = "") -> pb.AllocateRangeRequest:
    return pb.AllocateRangeRequest(sequence=sequence, request_id=request_id)


def reply(first: int, count: int = 10, step: int = 1, **more: object) -> pb.AllocateRangeResponse:
    ids = pb.IdRange(first_id=first, last_id=first + (count - 1) * step, step=step, id_count=count)
    return pb.AllocateRangeResponse(range=ids, **more)  # type: ignore[arg-type]


def without_times(record: Record) -> Record:
    return record._replace(asked=0, answered=0)


def test_a_record_has_all_fields_of_a_range(path: Path) -> None:
    """A record has all fields of the range, and is in the file at once."""
    log = IssuedLog(path)
    asked = log.now()
    log.range(
        range_request("orders", REQUEST_ID),
        reply(7, 3, -2, generation=4, period="2026", node_id=99, ordering=pb.ORDERING_RISING),
        asked,
    )
    [record] = issued_log.read(path).records  # while the log is open: writes are not buffered
    assert record.asked == asked <= record.answered <= log.now()
    assert without_times(record) == Record(
        name="orders",
        period="2026",
        generation=4,
        node=99,
        first=7,
        step=-2,
        id_count=3,
        asked=0,
        answered=0,
        rising=True,
        doc_ids=False,
        request=uuid.UUID(REQUEST_ID).int,
    )


def test_json_lines_omit_empty_fields(tmp_path: Path) -> None:
    """A JSON line has exactly the documented keys, and omits empty ones."""
    path = tmp_path / "issued.jsonl"
    log = IssuedLog(path)
    log.range(range_request("größen"), reply(1, generation=1, ordering=pb.ORDERING_RISING_PER_NODE), log.now())
    log.range(range_request(request_id=REQUEST_ID.upper()), reply(5, node_id=3, period="2026"), log.now())
    _, first, second = re.sub(r"(?<=ed\":)\d+", "T", path.read_text()).splitlines()
    assert first == '{"sequence":"größen","generation":1,"first":1,"step":1,"count":10,"asked":T,"answered":T}'
    assert second == (
        '{"sequence":"orders","period":"2026","generation":0,"first":5,"step":1,"count":10,"node":3,'
        f'"request_id":"{REQUEST_ID}","asked":T,"answered":T}}'
    )


def test_stream_messages_are_logged_as_ranges(path: Path) -> None:
    """A message of a stream is logged as a range."""
    log = IssuedLog(path)
    ids = pb.IdRange(first_id=1, last_id=5, step=1, id_count=5)
    response = pb.StreamRangesResponse(
        range=ids, generation=2, node_id=8, ordering=pb.ORDERING_RISING, period="2026-11"
    )
    log.range(pb.StreamRangesRequest(sequence="orders"), response, log.now())
    [record] = issued_log.read(path).records
    assert record.ids == range(1, 6)
    assert (record.period, record.generation, record.node, record.rising) == ("2026-11", 2, 8, True)
    assert record.request == 0


@given(
    sequence=st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60),
    period=st.sampled_from(["", "2026", "2026-11", "2026-11-21"]),
    first=INT64,
    step=INT64.filter(bool),
    count=st.integers(1, 2**63 - 1),
    generation=INT64,
    node_id=INT64,
    request_id=st.none() | st.uuids(version=4),
)
@settings(max_examples=50)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_range_survives_a_round_trip(
    encoding: str,
    sequence: str,
    period: str,
    first: int,
    step: int,
    count: int,
    generation: int,
    node_id: int,
    request_id: uuid.UUID | None,
) -> None:
    """Any range is read back as it was written, in both encodings."""
    ids = pb.IdRange(first_id=first, step=step, id_count=count)
    response = pb.AllocateRangeResponse(range=ids, period=period, generation=generation, node_id=node_id)
    with TemporaryDirectory() as folder:
        path = Path(folder, encoding)
        log = IssuedLog(path)
        for _ in range(2):
            log.range(range_request(sequence, str(request_id or "")), response, log.now())
        log.close()
        records = issued_log.read(path).records
    request = issued_log.request_number(str(request_id)) if request_id else 0
    expected = Record(sequence, period, generation, node_id, first, step, count, 0, 0, False, False, request)
    assert [without_times(record) for record in records] == [expected] * 2


def test_each_run_of_doc_ids_is_a_record(path: Path) -> None:
    """Each run of document ids is a record with its prefix, serials and times."""
    log = IssuedLog(path)
    runs = [
        pb.DocIdRun(first_doc_id="0007" + "674b2a01" + "0000000000000001", step=2, id_count=3),
        pb.DocIdRun(first_doc_id="0007" + "674b2a02" + "fffffffffffffffe", step=1, id_count=2),
    ]
    asked = log.now()
    log.doc_ids(pb.GenerateDocIdResponse(runs=runs), asked)
    records = issued_log.read(path).records
    assert [(each.name, each.first, each.step, each.id_count) for each in records] == [
        ("0007674b2a01", 1, 2, 3),
        ("0007674b2a02", 2**64 - 2, 1, 2),
    ]
    assert all(each.doc_ids and each.asked == asked <= each.answered for each in records)


@given(
    serials=st.lists(st.integers(0, 40) | st.integers(2**64 - 20, 2**64 - 1), min_size=1, max_size=30),
    heads=st.lists(st.sampled_from(["0007674b2a01", "ffff674b2a02"]), min_size=30, max_size=30),
)
@settings(max_examples=50)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_doc_ids_survive_a_round_trip(encoding: str, serials: list[int], heads: list[str]) -> None:
    """Document ids are read back unchanged and in order."""
    texts = [f"{head}{serial:016x}" for head, serial in zip(heads, serials, strict=False)]
    with TemporaryDirectory() as folder:
        path = Path(folder, encoding)
        log = IssuedLog(path)
        runs = [pb.DocIdRun(first_doc_id=text, step=1, id_count=1) for text in texts]
        log.doc_ids(pb.StreamDocIdsResponse(runs=runs), log.now())
        log.close()
        logged = issued_log.read(path)
    assert logged.texts == texts
    assert all(record.step > 0 for record in logged.records)


def test_a_reply_without_doc_ids_is_rejected(path: Path) -> None:
    """A reply without runs of document ids raises ValueError."""
    log = IssuedLog(path)
    with pytest.raises(ValueError, match="no runs"):
        log.doc_ids(pb.GenerateDocIdResponse(notice_frame=b"\x01"), log.now())


def test_a_name_is_written_once(tmp_path: Path) -> None:
    """A name is written with its first record only."""
    path = tmp_path / "issued.log"
    log = IssuedLog(path)
    log.range(range_request("n" * 100), reply(1), log.now())
    size = path.stat().st_size
    for first in range(11, 1011, 10):
        log.range(range_request("n" * 100), reply(first), log.now())
    assert path.stat().st_size == size + 100 * issued_log.ROW
    assert issued_log.read(path).ids == list(range(1, 1011))


def test_a_truncated_file_is_valid_up_to_its_last_record(path: Path) -> None:
    """A file that is cut at any byte is valid up to its last complete record."""
    log = IssuedLog(path)
    sizes = []
    for first, sequence in ((1, "orders"), (11, "a name that is far longer than a row of this file, " * 3), (21, "c")):
        log.range(range_request(sequence), reply(first), log.now())
        sizes.append(path.stat().st_size)
    data = path.read_bytes()
    whole = issued_log.parse(data)
    between = sizes if path.suffix == ".jsonl" else range(0, sizes[-1], issued_log.ROW)
    for end in range(sizes[0], sizes[-1]):
        left = issued_log.parse(data[:end])
        assert left.records == whole.records[: sum(size <= end for size in sizes)]
        assert (left.cut == 0) == (end in between)


def test_an_existing_file_is_rejected(path: Path) -> None:
    """A file that exists is rejected and left unchanged."""
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        IssuedLog(path)
    assert path.read_text() == "mine"


def test_the_header_names_the_process_and_its_clock(path: Path) -> None:
    """The header has the format, the process, the boot id and the boot time."""
    before = time.time_ns()
    log = IssuedLog(path)
    header = issued_log.read(path).header
    assert header["idalloc_log"] == 2
    assert header["client"].endswith(f" {os.getpid()}")
    booted = Path("/proc/sys/kernel/random/boot_id")
    assert header["boot_id"] == (booted.read_text().strip() if booted.exists() else "")
    assert before <= log.now() <= time.time_ns() + 1_000_000_000
    if hasattr(time, "CLOCK_BOOTTIME"):
        clock = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert header["boot_time_ns"] + clock <= log.now()


def test_setting_the_clock_does_not_move_the_logs_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's time does not move when the system clock is set."""
    log = IssuedLog(path)
    before = log.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert log.now() >= before


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_threads_write_complete_records(path: Path) -> None:
    """Records of concurrent threads are complete and not interleaved."""
    log = IssuedLog(path)
    all_at_once = threading.Barrier(8)

    def write(thread: int) -> None:
        for turn in range(200):
            if turn % 2 == 0:  # a name that the file does not have yet
                all_at_once.wait(60)
            log.range(range_request(f"sequence {turn // 2}"), reply(thread * 10_000 + turn), log.now())

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logged = issued_log.read(path)
    assert logged.cut == 0
    assert sorted((each.name, each.first) for each in logged.records) == sorted(
        (f"sequence {turn // 2}", thread * 10_000 + turn) for thread in range(8) for turn in range(200)
    )


@pytest.mark.parametrize("more", [0, 1, 87, 88, 100, 175])
def test_a_failed_write_leaves_no_part_of_a_record(path: Path, more: int) -> None:
    """A write to a full disk raises OSError and leaves the file unchanged; the next succeeds."""
    log = IssuedLog(path)
    log.range(range_request("orders"), reply(1), log.now())
    before = path.read_bytes()
    long_name = "a sequence whose name takes rows by itself " * 4
    with room_for(path, more), pytest.raises(OSError, match="issued") as caught:
        log.range(range_request(long_name), reply(11), log.now())
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    log.range(range_request(long_name), reply(21), log.now())
    log.range(range_request("orders"), reply(31), log.now())
    logged = issued_log.read(path)
    assert logged.cut == 0
    assert [(each.name, each.first) for each in logged.records] == [("orders", 1), (long_name, 21), ("orders", 31)]


def test_a_failed_creation_leaves_no_file(path: Path) -> None:
    """A log whose header cannot be written leaves no file."""
    with room_for(path, 20), pytest.raises(OSError, match="issued"):
        IssuedLog(path)
    assert not path.exists()
    IssuedLog(path)


def test_a_closed_log_rejects_records(path: Path) -> None:
    """A closed log raises RuntimeError."""
    log = IssuedLog(path)
    log.close()
    log.close()
    with pytest.raises(RuntimeError, match="closed"):
        log.range(range_request(), reply(1), log.now())
    assert issued_log.read(path).records == []


# A thread writes continuously, so that it holds the lock during many of the forks.
FORKS = """
import os, signal, sys, threading, time, warnings
from idalloc._issued_log.log import IssuedLog
from tests.unit.client.issued_log.test_log import range_request, reply
warnings.simplefilter("ignore", DeprecationWarning)  # of forks where threads run, since 3.12
path, taken = os.path.abspath(sys.argv[1]), sys.argv[2] == "taken"
log = IssuedLog(sys.argv[1])
over = threading.Event()
written = 0
def write():
    global written
    while not over.is_set():
        log.range(range_request("parent"), reply(written * 10 + 1), log.now())
        written += 1
thread = threading.Thread(target=write)
thread.start()
os.chdir("/")
children = []
for n in range(10):
    if (pid := os.fork()) == 0:
        signal.alarm(60)
        if taken:
            open(f"{path}.{os.getpid()}", "x").close()
        for turn in range(3):
            log.range(range_request("child"), reply(turn * 10 + 1), log.now())
        os._exit(0)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
idle = os.fork()
if idle == 0:
    os._exit(0)
os.waitpid(idle, 0)
over.set()
thread.join()
print(os.getpid(), written, any(codes), idle, *children)
"""


@pytest.mark.test_long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("taken", ["taken", "free"])
def test_children_of_forks_write_separate_files(path: Path, taken: str) -> None:
    """P8: each child of a fork writes its own file, even if a parent's thread held the lock."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, path.name, taken],
        cwd=path.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    parent, written, failed, idle, *children = done.stdout.split()
    assert failed == "False"
    assert not Path(f"{path}.{idle}").exists()
    for pid in children:
        own = Path(f"{path}.{pid}.2" if taken == "taken" else f"{path}.{pid}")
        logged = issued_log.read(own)
        assert logged.header["client"].endswith(f" {pid}")
        assert [(each.name, each.first) for each in logged.records] == [("child", 1), ("child", 11), ("child", 21)]
    of_parent = issued_log.read(path)
    assert of_parent.header["client"].endswith(f" {parent}")
    assert {each.name for each in of_parent.records} == {"parent"}
    assert of_parent.ids == list(range(1, int(written) * 10 + 1))
