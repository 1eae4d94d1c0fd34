"""Notices as the protobuf classes of MySQL's own client parse them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from idalloc.xprotocol.v1 import notice_pb2
from idalloc_server.domain.document_ids.generator import DocIdRun
from idalloc_server.notices.generated_ids import doc_ids_frame, insert_id_notice, notice_frame
from tests.support import environments
from tests.support.mysql import recordings
from tests.support.paths import ROOT

# The first run installs MySQL's client.
pytestmark = [pytest.mark.timeout(300), pytest.mark.test_long]


@pytest.fixture(scope="module")
def mysqlx() -> Path:
    return environments.mysqlx_python()


def read(mysqlx: Path, *frames: bytes) -> Any:
    answer = subprocess.run(
        [mysqlx, ROOT / "tests/xproto/support/mysql/parse_notices.py"],
        input=b"".join(frames),
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    return json.loads(answer.stdout)


@pytest.mark.parametrize("count", [1, 2, 10_000])
def test_doc_ids_are_parsed(mysqlx: Path, count: int) -> None:
    """MySQL's classes parse a notice of document ids, to the same bytes."""
    doc_ids = DocIdRun(0xFFFF, 0x6075F681, 0xFFFFFFFFFFF00000, 3, count).texts()
    (notice,) = read(mysqlx, doc_ids_frame(doc_ids))
    assert notice == {
        "message": "NOTICE",
        "type": "SESSION_STATE_CHANGED",
        "scope": "LOCAL",
        "param": "GENERATED_DOCUMENT_IDS",
        "types": ["V_OCTETS"],
        "octets": doc_ids,
        "integers": [],
        "content_types": 0,
        "same_bytes": True,
    }


@pytest.mark.parametrize("first_id", [0, 1, 127, 128, 2**53, 2**63 - 2])
def test_insert_id_is_parsed(mysqlx: Path, first_id: int) -> None:
    """MySQL's classes parse a notice of an insert id, to the same bytes."""
    payload = insert_id_notice(first_id).SerializeToString()
    (notice,) = read(mysqlx, notice_frame(notice_pb2.FRAME_TYPE_SESSION_STATE_CHANGED, payload))
    assert notice == {
        "message": "NOTICE",
        "type": "SESSION_STATE_CHANGED",
        "scope": "LOCAL",
        "param": "GENERATED_INSERT_ID",
        "types": ["V_UINT"],
        "octets": [],
        "integers": [first_id],
        "content_types": 0,
        "same_bytes": True,
    }


def test_frames_in_one_stream_are_parsed(mysqlx: Path) -> None:
    """MySQL's classes parse consecutive frames of one stream."""
    recorded = recordings.notices()
    notices = read(mysqlx, *(doc_ids_frame(notice.ids) for notice in recorded))
    assert [notice["octets"] for notice in notices] == [notice.ids for notice in recorded]
