"""The counter in etcd: what its client sends and takes."""

import base64
import json
from typing import Any

import pytest

from bench.rivals import Etcd


class Counter:
    """The answers of etcd to the transactions of its client, for one key."""

    def __init__(self, value: str | None) -> None:
        self.value = value

    def __call__(self, transaction: dict[str, Any]) -> dict[str, Any]:
        [compare] = transaction["compare"]
        expected = base64.b64decode(compare["value"]).decode() if compare["target"] == "VALUE" else None
        if expected != self.value:
            found = {"kvs": [{"value": base64.b64encode(self.value.encode()).decode()}]} if self.value else {}
            return json.loads(json.dumps({"responses": [{"response_range": found}]}))  # type: ignore[no-any-return]
        self.value = base64.b64decode(transaction["success"][0]["requestPut"]["value"]).decode()
        return {"succeeded": True}


@pytest.mark.parametrize(("stored", "after"), [(None, "10"), ("7", "17")])
def test_the_counter_continues_the_stored_value(
    stored: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call creates the counter or continues it, also after another client's write."""
    counter, client = Counter(stored), Etcd("127.0.0.1:1", 10)
    monkeypatch.setattr(client, "_call", counter)
    assert client.take() == 10
    assert counter.value == after
    counter.value = "100"  # another client was faster
    assert client.take() == 10
    assert counter.value == "110"
