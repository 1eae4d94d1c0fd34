"""Invalid arguments of the client: an error names the argument before anything is sent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import idalloc
import idalloc.aio
from idalloc import InvalidRequest
from idalloc._core.calls import new_request
from idalloc._core.text import escaped
from idalloc._transport.config import read_token
from idalloc.v1.sequences_pb2 import Sequence
from idalloc.verify._verdict import verify
from tests.unit.client.clients import KINDS, opened

TARGET = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": "5"}, TypeError, "n must be an integer, not str"),
        ({"n": 5.0}, TypeError, "n must be an integer, not float"),
        ({"n": -1}, InvalidRequest, "n: must be at least 1, not -1"),
        ({"n": 2**64}, InvalidRequest, "id_count: "),
        ({"sequence": 5}, TypeError, "sequence: "),
        ({"request_id": ""}, InvalidRequest, "request_id: must be a UUID, not empty"),
    ],
)
def test_an_invalid_argument_is_named(
    kind: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """An argument that does not fit raises an error that names it, in both clients."""
    with opened(kind, TARGET) as client, pytest.raises(error, match=f"^{message}"):
        client.allocate_range(**{"sequence": "orders"} | arguments)


def test_other_methods_name_an_invalid_argument() -> None:
    """Streams, document ids, parsing and the node name an argument that does not fit."""
    invalid: Any = object()
    with idalloc.Client(TARGET) as client:
        calls: dict[str, Callable[[], object]] = {
            "sequence": lambda: client.stream_ranges(invalid, 1),
            "total_id_count": lambda: client.stream_ranges("orders", invalid),
            "chunk_id_count": lambda: client.stream_doc_ids(1, chunk=invalid),
            "auto_increment_offset": lambda: client.doc_ids(offset=2**40),
            "text": lambda: client.parse_id("orders", invalid),
            "prefix": lambda: client.update_node(prefix=invalid),
        }
        for name, call in calls.items():
            with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
                call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": "5s"}, "timeout must be a number of seconds, not str"),
        ({"timeout": None}, "timeout must be a number of seconds, not NoneType"),
        ({"credentials": "ca.pem"}, "credentials must be of grpc, such as .* not str"),
    ],
)
def test_a_client_rejects_arguments_of_wrong_types(kind: str, arguments: dict[str, Any], message: str) -> None:
    """A client rejects a timeout or credentials of a wrong type when it is created."""
    with pytest.raises(TypeError, match=message):
        KINDS[kind](TARGET, **arguments)


HOSTILE = "a\x1b[2J\x9b\u202e\n"


WRONG_CALLS: dict[str, Callable[[Any], object]] = {
    "sequence": lambda client: client.allocate_range(f"{HOSTILE}\udc80"),
    "setting": lambda client: client.sequences.create("orders", ordering=HOSTILE),
    "name of a setting": lambda client: client.sequences.create("orders", **{HOSTILE: 1}),
    "enum": lambda client: new_request(Sequence, ordering=HOSTILE),
    "target": lambda client: idalloc.Client(HOSTILE),
    "socket": lambda client: idalloc.Client(f"unix:/nowhere/{HOSTILE}", timeout=0.1).node(),
    "log": lambda client: idalloc.Client(TARGET, log=f"/nowhere/{HOSTILE}"),
    "token file": lambda client: read_token(f"/nowhere/{HOSTILE}"),
    "file to verify": lambda client: verify([Path(f"/nowhere/{HOSTILE}")]),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_control_characters_of_arguments_are_escaped(name: str) -> None:
    """An argument, an option or a file's name in an error cannot control the terminal."""
    with idalloc.Client(TARGET, timeout=1) as client, pytest.raises(Exception) as raised:  # noqa: PT011
        WRONG_CALLS[name](client)
    assert escaped(str(raised.value)) == str(raised.value)
    assert "\\u" in str(raised.value) or "\\x" in str(raised.value)
