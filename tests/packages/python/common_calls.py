"""Makes the calls that all versions of the Python client have: common_calls.py SERVER; prints JSON.

It runs with the package of one version, against a server of another one.
"""

import json
import sys
import uuid
from itertools import chain, islice

import idalloc


def main(server: str) -> None:
    """Make each call once, and print what it got."""
    request_id = uuid.uuid4()
    with idalloc.Client(server) as client:
        client.sequences.create("invoices", format="INV-{value:06d}", step=1)
        good, bad = client.allocate_ranges([("orders", 2), ("nowhere \n", 1)])
        assert isinstance(good, idalloc.Range)
        got = {
            "range": list(client.allocate_range("orders", 3)),
            "repeated": [list(client.allocate_range("orders", 2, request_id=request_id)) for _ in range(2)],
            "texts": list(client.allocate_range("invoices", 2, texts=True).texts),
            "batch": [list(good), type(bad).__name__],
            "parsed": client.parse_id("invoices", "INV-000002").value,
            "pool": list(islice(client.ids("orders"), 3)),
            "stream": list(chain.from_iterable(client.stream_ranges("orders", 25, 10))),
            "doc_ids": client.doc_ids(3),
            "doc_id_stream": list(chain.from_iterable(client.stream_doc_ids(25, 10))),
            "uuids": [str(each) for each in (*client.uuids(2), *client.uuids(1, version=4))],
            "names": [each.name for each in client.sequences.list()],
            "advanced": client.sequences.advance("orders", 1_000).sequence.last_value,
            "updated": client.sequences.update("invoices", max_value=5_000).sequence.max_value,
            "read": client.sequences.get("invoices").format,
            "deleted": client.sequences.delete("invoices").sequence.name,
            "prefix": client.node().prefix,
            "changed_prefix": client.update_node(prefix=7).prefix,
        }
        try:
            client.allocate_range("orders", 2_000_000)
        except idalloc.InvalidRequest as error:
            got["error"] = error.reason
    print(json.dumps(got))


if __name__ == "__main__":
    main(sys.argv[1])
