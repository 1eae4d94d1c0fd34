"""`idalloc verify` distinguishes retries from duplicates by the request id."""

from pathlib import Path

import pytest

from idalloc.verify._spans import MemoryLimits
from tests.support.planted_logs import Planted, PlantedLog
from tests.support.verify_command import findings_of

REQUEST = "11111111-2222-4333-8444-555555555555"
# Equal to REQUEST in the first 8 of 16 bytes.
SIMILAR = "11111111-2222-4333-8444-666666666666"
FORMATS = pytest.mark.parametrize("name", ["a.log", "a.jsonl"])


@FORMATS
def test_request_ids_equal_in_one_half_are_different(tmp_path: Path, name: str) -> None:
    """P1: only an equal request id makes the same range a retry."""
    records = [Planted(1, 3, request_id=REQUEST), Planted(1, 3, request_id=SIMILAR)]
    assert findings_of(PlantedLog(records).write(tmp_path / name)) == {"duplicates": 3}
    other_half = Planted(1, 3, request_id=SIMILAR.replace("1", "2"))
    assert findings_of(PlantedLog([records[1], other_half]).write(tmp_path / f"2{name}")) == {"duplicates": 3}


@FORMATS
@pytest.mark.parametrize(
    "other",
    [
        Planted(1, 4, request_id=REQUEST, generation=2),
        Planted(4, 4, request_id=REQUEST, step=-1),
        Planted(1, 5, request_id=REQUEST),
        Planted(1, 2, request_id=REQUEST, step=3),
    ],
)
@pytest.mark.parametrize("limits", [MemoryLimits(), MemoryLimits(1, 1, 1)])
def test_retry_must_equal_the_first_reply(tmp_path: Path, name: str, other: Planted, limits: MemoryLimits) -> None:
    """P7: another range, direction or generation under the same request id is a duplicate."""
    log = PlantedLog([Planted(1, 4, request_id=REQUEST), other, Planted(9, 1)]).write(tmp_path / name)
    assert findings_of(log, limits=limits)["duplicates"] >= 1


def test_retry_is_recognized_across_formats(tmp_path: Path) -> None:
    """P7: a request id in upper case, or in the other format of a log, is the same one."""
    records = [Planted(1, 3, request_id=REQUEST.replace("5", "a")), Planted(7, 3)]
    one = PlantedLog(records[:1]).write(tmp_path / "1.log")
    other = PlantedLog(records).write(tmp_path / "2.jsonl")
    other.write_text(other.read_text().replace("aaaaaaaaaaaa", "AAAAAAAAAAAA"))
    assert findings_of(one, other) == {}
