"""`--log`: every id that a command prints is in the file."""

from pathlib import Path

import pytest

from idalloc import cli
from tests.support import issued_log
from tests.support.fake_server import FakeServer

pytestmark = pytest.mark.usefixtures("server")


@pytest.mark.parametrize(
    "line",
    ["allocate orders 5", "stream orders --total 5 --chunk 2", "stream orders --total 20000 --chunk 7000"],
)
def test_printed_ids_are_logged(line: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--log records exactly the ids that the command prints."""
    assert cli.main([*line.split(), "--log", str(path)]) == 0
    logged = issued_log.read(path)
    assert [int(each) for each in capsys.readouterr().out.split()] == logged.ids
    assert {record.name for record in logged.records} == {"orders"}


@pytest.mark.parametrize(
    "line",
    [
        "allocate orders 5 --texts",
        "allocate orders 5 --json",
        "allocate orders 5 --ranges",
        "stream orders --total 5 --chunk 2 --texts",
        "stream orders --total 5 --json",
    ],
)
def test_ids_are_logged_in_every_output_format(line: str, path: Path) -> None:
    """--log records the ids in every output format."""
    assert cli.main([*line.split(), "--log", str(path)]) == 0
    assert issued_log.read(path).ids == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", ["1", "3", "25000"])
def test_printed_doc_ids_are_logged(count: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--log records the document ids that the command prints."""
    assert cli.main(["docid", count, "--log", str(path)]) == 0
    assert capsys.readouterr().out.split() == issued_log.read(path).texts


@pytest.mark.parametrize("count", ["3", "25000"])
def test_doc_ids_as_json_are_logged(count: str, path: Path) -> None:
    """--log records document ids that are printed as JSON."""
    assert cli.main(["docid", count, "--json", "--log", str(path)]) == 0
    assert len(issued_log.read(path).texts) == int(count)


def test_request_id_is_logged(path: Path) -> None:
    """The log has the request id of a call, by which the verifier recognizes retries."""
    request_id = "c0ffee00-1234-4000-8000-000000000001"
    assert cli.main(["allocate", "orders", "--request-id", request_id, "--log", str(path)]) == 0
    [record] = issued_log.read(path).records
    assert record.request == issued_log.request_number(request_id)


@pytest.mark.parametrize("line", ["allocate orders", "stream orders --total 5", "docid"])
def test_existing_log_is_not_overwritten(
    line: str, server: FakeServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing file is an error before any id is allocated."""
    path.write_text("unchanged")
    assert cli.main([*line.split(), "--log", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "idalloc: Invalid value for '--log': the file exists and is never overwritten; name a new file "
        f"(see idalloc {line.split()[0]} --help)"
    ]
    assert path.read_text() == "unchanged"
    assert not server.requests


def test_log_that_cannot_be_created_is_an_error(
    tmp_path: Path, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log that cannot be created is an error before any id is allocated."""
    assert cli.main(["allocate", "orders", "--log", str(tmp_path / "none" / "issued.log")]) == 2
    assert "'--log': cannot be written: No such file or directory" in capsys.readouterr().err
    assert not server.requests
