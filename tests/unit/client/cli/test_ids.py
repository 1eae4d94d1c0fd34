"""Texts of ids, request ids, UUIDs and `idalloc parse`."""

import json

import pytest

from idalloc import ParsedId
from idalloc.cli import _output
from tests.support.command_line import Command
from tests.support.fake_server import FakeServer


def test_texts_prints_formatted_ids(server: FakeServer, run: Command) -> None:
    """--texts prints ids in the sequence's format."""
    assert run("allocate", "orders", "2", "--texts") == "T-0001\nT-0002\n"
    assert run("stream", "orders", "--total", "3", "--chunk", "2", "--texts") == "T-0003\nT-0004\nT-0005\n"
    assert json.loads(run("allocate", "orders", "--texts", "--json"))["texts"] == ["T-0006"]


def test_the_same_request_id_gets_the_same_ids(server: FakeServer, run: Command) -> None:
    """P7: a retry with the same --request-id prints the same ids."""
    line = ("allocate", "orders", "2", "--request-id", "8F14E45F-CEEA-467F-A34F-0E5A1B1C2D3E")
    assert run(*line) == run(*line) == "1\n2\n"
    assert run("allocate", "orders") == "3\n"


def test_parse_prints_parts_of_an_id(server: FakeServer, run: Command) -> None:
    """parse prints the parts of an id; a negative number is no option."""
    assert run("parse", "orders", "T--42") == "value: -42\nyear: 2026\ncheck: 7\n"
    assert json.loads(run("parse", "orders", "T-42", "--json")) == {"value": "42", "year": 2026, "check": "7"}
    assert run.error_line(1, "parse", "orders", "-5").startswith("INVALID_REQUEST")
    assert server.requests["ParseId"][-1].text == "-5"


def test_parse_omits_absent_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """Parts that a format lacks are not printed."""
    _output.write_fields(ParsedId(value=0, year=2026))
    assert capsys.readouterr().out == "value: 0\nyear: 2026\n"


def test_uuids_are_printed_in_batches(server: FakeServer, run: Command) -> None:
    """uuid prints both versions, and asks for 10,000 at a time."""
    assert run("uuid") == "00000000-0000-7000-8000-000000000001\n"
    assert run("uuid", "2", "--version", "4").splitlines()[1] == "00000000-0000-4000-8000-000000000003"
    assert len(set(run("uuid", "25000").split())) == 25_000
    assert [request.id_count for request in server.requests["GenerateUuid"]] == [1, 2, 10_000, 10_000, 5_000]
    assert json.loads(run("uuid", "--json"))["uuids"][0].endswith("61ac")
