"""The limit max_sequences on real servers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import idalloc
from tests.e2e.test_access import new_token
from tests.support.processes import Server, running

pytestmark = [pytest.mark.test_long, pytest.mark.timeout(180)]

MOST = 5


def names(folder: Path) -> set[str]:
    """Return the names in the store."""
    with closing(sqlite3.connect(folder / "ids.db")) as db:
        return {name for (name,) in db.execute("SELECT name FROM sequences WHERE name > ' '")}


def warnings(server: Server) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [line for line in found if line["event"] == "many_sequences"]


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_a_server_serves_max_sequences_and_no_more(tmp_path: Path, transport: str) -> None:
    """Beyond max_sequences a call is RESOURCE_EXHAUSTED and creates nothing; known names go on."""
    with running(tmp_path, max_sequences=MOST, transport=transport) as server, idalloc.Client(server.address) as client:
        client.sequences.create("existing")
        for number in range(MOST):
            assert client.allocate_range(f"n{number}", 1).ids == range(1, 2)
        for name in ("existing", "new"):
            with pytest.raises(idalloc.TooManySequences, match="raise max_sequences and restart") as refused:
                client.allocate_range(name, 1)
            assert refused.value.code.name == "RESOURCE_EXHAUSTED"
            assert refused.value.reason == "TOO_MANY_SEQUENCES"
            assert refused.value.retry_after is None
            assert refused.value.metadata == {"sequence": name, "max_sequences": str(MOST)}
        with pytest.raises(idalloc.TooManySequences):
            list(client.stream_ranges("new", 10))
        for number in range(MOST):
            assert client.allocate_range(f"n{number}", 1).ids == range(2, 3)
        # Administration needs no high-water mark.
        assert client.sequences.get("existing").name == "existing"
        assert server.stop() == 0
        [warning] = warnings(server)
    assert (warning["level"], warning["sequences"], warning["max_sequences"]) == ("warning", 4, MOST)
    assert names(tmp_path) == {"existing", *(f"n{number}" for number in range(MOST))}


def test_refused_names_do_not_count(tmp_path: Path) -> None:
    """Names that do not exist, are deleted, or are not permitted do not count."""
    file = tmp_path / "access.toml"
    narrow = new_token(file, "narrow", "--allocate", "n*")
    admin = new_token(file, "admin", "--admin", "*")
    with running(tmp_path, max_sequences=MOST, access_file=file, auto_create_sequences="false") as server:
        with idalloc.Client(server.address, token=admin) as client:
            for name in ("deleted", *(f"n{number}" for number in range(MOST))):
                client.sequences.create(name)
            client.sequences.delete("deleted")
        with idalloc.Client(server.address, token=narrow) as client:
            for number in range(3 * MOST):
                with pytest.raises(idalloc.PermissionDenied):
                    client.allocate_range(f"other{number}", 1)
                with pytest.raises(idalloc.SequenceNotFound):
                    client.allocate_range(f"no{number}", 1)
            for number in range(MOST):
                assert client.allocate_range(f"n{number}", 1).ids == range(1, 2)
            with pytest.raises(idalloc.TooManySequences):
                client.allocate_range("no", 1)


def test_max_sequences_applies_to_each_worker(tmp_path: Path) -> None:
    """The limit max_sequences applies to each worker process."""
    with running(tmp_path, max_sequences=MOST, workers=2) as server:
        for _ in range(8):  # a connection belongs to one worker
            with idalloc.Client(server.address) as client:
                for number in range(MOST):
                    client.allocate_range(f"n{number}", 1)
                with pytest.raises(idalloc.TooManySequences):
                    client.allocate_range("new", 1)
        assert server.stop() == 0
        warned = [line["worker"] for line in warnings(server)]
    assert warned
    assert len(warned) == len(set(warned))
