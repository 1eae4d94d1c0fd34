"""Writes the diagrams of the documentation, docs/assets/*.svg.

``make docs`` runs it; a test compares the files. The numbers in them are the defaults of the
settings, which tests/unit/scripts/test_diagrams.py compares with the code.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from scripts.drawing import COLOURS, FAINT, Drawing, Point, sequence_diagram

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "docs/assets"
PYPROJECT = ROOT / "pyproject.toml"
ROOM_KINDS = {"http": "client", "rpc": "client", "store": "store", "domain": "lease"}

# The modules of idalloc_server that a call and a refill enter, in this order, without telemetry;
# tests/unit/scripts/test_trace_calls.py compares them with a call. AUTH only with an access file.
AUTH = "auth/access_control.py"
CALL_PATH = (
    ("rpc/calls.py", "decodes the bytes; drain, deadline, errors, metrics, log"),
    (AUTH, "authenticates, authorizes, limits; only with an access file"),
    ("rpc/id_allocator.py", "translates between messages and the domain"),
    ("domain/allocation/allocator.py", "finds the allocator of the sequence by its name"),
    ("domain/allocation/sequence_allocator.py", "chooses the counter: the own one, or the period's"),
    ("domain/allocation/counter_allocator.py", "one counter: its lease, its refill, its waiters"),
    ("domain/allocation/lease.py", "checks the expiry and moves two integers"),
    ("rpc/items.py", "writes the ids into the reply"),
)
REFILL_PATH = (
    ("domain/allocation/reserve.py", "how many ids to hold, by the rate of the calls"),
    ("domain/allocation/high_water_marks.py", "what the store must have reached"),
    ("domain/store/store_calls.py", "the timeout of the call, its count and outcome"),
    ("store/sqlite/store.py", "the row's arithmetic, and its UPDATE"),
    ("store/sqlite/database.py", "one thread; writes that wait share a transaction"),
    ("store/sqlite/files.py", "whether the file is still the one that was opened"),
    ("store/stored_rows.py", "the settings and the demand in their columns"),
    ("domain/store/records.py", "the grant that the store returns"),
)


def concepts() -> str:
    """Return the places: clients, servers with leases in memory, one counter table."""
    drawing = Drawing("Clients call servers, which issue ids from leases of one counter table", 800, 330)
    for x, text in ((105, "clients"), (400, "servers"), (685, "one store")):
        drawing.text(x, 32, text, colour=FAINT, size=13)
    for y, lines in ((48, ("Python SDK", "ids(), allocate_range()")), (128, ("Go, Java, Node", "any gRPC client"))):
        drawing.box(20, y, 180, 60, "client", *lines)
    drawing.box(20, 208, 180, 60, "client", "idalloc allocate", "the command")
    for number, y, ids in ((1, 48, "1 to 1000"), (2, 164, "1001 to 2000")):
        drawing.box(290, y, 220, 104, "server", f"server {number}", top=True)
        drawing.box(306, y + 34, 188, 56, "lease", "lease of orders", f"ids {ids}")
    drawing.box(610, 72, 170, 172, "store", "counter table", "SQLite, CrateDB", "or OpenSearch", top=True)
    for y, name, value in ((160, "name", "last_value"), (188, "orders", "2000"), (216, "invoices", "702")):
        colour = FAINT if name == "name" else COLOURS["store"][1]
        drawing.text(626, y, name, anchor="start", colour=colour)
        drawing.text(764, y, value, anchor="end", colour=colour)
    drawing.line((626, 168), (764, 168), arrow=False)
    for from_y, to_y in ((78, 90), (158, 110), (158, 206), (238, 226)):
        drawing.line((200, from_y), (290, to_y))
    drawing.text(245, 66, "gRPC", colour=FAINT, size=13, halo=True)
    for y, to_y in ((100, 120), (216, 196)):
        drawing.line((510, y), (610, to_y))
    drawing.text(560, 146, "one write", "takes a block", "of ids", colour=FAINT, size=13)
    drawing.text(
        400,
        294,
        "A call is answered from the lease in memory. The server writes to the store only to take",
        "the next block. An id belongs to one block, and a block to one server: no id is issued twice.",
        size=13,
    )
    return drawing.svg()


def rooms() -> str:
    """Return the rooms of the server on their floors, as the import contract has them."""
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each.get("containers") == ["idalloc_server"]]
    drawing = Drawing("The rooms of the server: each imports only rooms on lower floors", 800, 40 + len(layers) * 46)
    for row, layer in enumerate(layers):
        names = layer.split(" | ")
        y = 16 + row * 46
        drawing.text(34, y + 23, str(len(layers) - row), colour=FAINT, size=13)
        width = 720 / len(names)
        for column, name in enumerate(names):
            drawing.box(64 + column * width, y, width - 10, 34, ROOM_KINDS.get(name, "process"), name)
    y = 16 + len(layers) * 46
    drawing.text(64, y + 8, "Imports go downward; rooms on one floor are independent.", anchor="start", size=13)
    return drawing.svg()


def _path(title: str, first: str, steps: Sequence[tuple[str, str]], *last: str) -> str:
    """Return the modules of a path from top to bottom, with what each does."""
    drawing = Drawing(title, 800, 90 + len(steps) * 50 + len(last) * 18)
    drawing.text(20, 28, first, anchor="start", size=13)
    for row, (module, what) in enumerate(steps):
        y = 44 + row * 50
        kind = "store" if module.startswith("store/") else "lease" if module.endswith("/lease.py") else "server"
        drawing.box(20, y, 320, 34, kind, module)
        drawing.text(356, y + 22, what, anchor="start")
        if row:
            drawing.line((180, y - 16), (180, y))
    drawing.text(20, 44 + len(steps) * 50 + 14, *last, anchor="start", size=13)
    return drawing.svg()


def request_path() -> str:
    """Return the modules of a call that a lease serves, in the order in which it enters them."""
    return _path(
        "A call passes the layer around every call, and ends at the lease in memory",
        "The client calls AllocateRange(sequence, id_count) over HTTP/2.",
        CALL_PATH,
        "The call awaits nothing. If few ids are left, the counter starts a refill, a task of its own.",
    )


def refill_path() -> str:
    """Return the modules of a refill on SQLite, in the order in which it enters them."""
    return _path(
        "A refill asks how many ids to hold, writes the counter's row once, and fills the lease",
        "CounterAllocator starts a refill before the lease is used up, or for a call that waits.",
        REFILL_PATH,
        "CrateDB and OpenSearch have the modules of their folder and of store/cluster instead of store/sqlite.",
    )


def lease_life() -> str:
    """Return a lease's ids over time: refills, a renewal, and its expiry without the store."""
    drawing = Drawing("The ids that a lease holds over time: refills, a renewal, and the expiry of the lease", 800, 420)

    def at(seconds: float, ids: float) -> Point:
        return 70 + seconds * 2.1, 320 - ids * 0.009

    away = 150.0
    renewed = 120.0
    expired = 300.0
    fill, outline = COLOURS["end"]
    (left, top), (right, bottom) = at(away, 29_600), at(340, 0)
    drawing.band(left, top, right - left, bottom - top, fill)
    drawing.line(at(0, 0), at(345, 0))
    drawing.line(at(0, 0), at(0, 30_200))
    for ids in (18_000, 27_000):
        x, y = at(0, ids)
        drawing.line((x, y), (x + 142, y), dashed=True, arrow=False, colour="#afb8c1")
        drawing.text(x - 6, y + 5, f"{ids:,}", anchor="end", size=12, colour=FAINT)
    for seconds in range(0, 331, 30):
        x, y = at(seconds, 0)
        drawing.line((x, y), (x, y + 5), arrow=False)
        drawing.text(x, y + 20, f"{seconds} s", size=12, colour=FAINT)
    drawing.text(82, 58, "ids in the lease", anchor="start", size=13, colour=FAINT)
    curve: list[Point] = [(0, 27_000), (60, 21_000), (60, 27_000)]
    left_then = 27_000 - 10 * (expired - 60)
    curve += [(expired, left_then)]
    drawing.line(*(at(*point) for point in curve), colour=COLOURS["lease"][1], arrow=False, wide=True)
    drawing.line(at(expired, left_then), at(expired, 0), colour=outline, dashed=True, wide=True)
    x, y = at(60, 21_000)
    drawing.line((x, y + 56), (x, y + 4))
    lines = ("the write after 60 s adds ids", "up to 270 s of use; it comes", "earlier below ids for 180 s")
    drawing.text(76, y + 72, *lines, anchor="start", size=13)
    x, y = at(renewed, 27_000 - 10 * (renewed - 60))
    drawing.line((x, y + 128), (x, y + 4))
    drawing.text(x - 90, y + 146, "renewal after 60 s:", "a write of + 0 ids", anchor="start", size=13)
    drawing.text(at(72, 0)[0], 84, "callers slow down", anchor="start", size=13)
    meanwhile = ("the store is away: renewals fail,", "callers get ids from the lease")
    drawing.text(at(away, 0)[0] + 10, 78, *meanwhile, anchor="start", size=13)
    x, y = at(expired, 9_000)
    drawing.text(x - 8, y, "the lease expires 180 s after", "the last write: the rest is burned", anchor="end", size=13)
    drawing.text(
        400,
        376,
        "Drawn with the defaults (outage_reserve 90 s, lease_ttl 180 s) for callers that take 100 ids a second,",
        "then 10. Each successful write moves the expiry to 180 s after that write was sent.",
        size=13,
    )
    return drawing.svg()


def advance() -> str:
    """Return an advance while another node holds a lease: the generation ends it."""
    return sequence_diagram(
        "AdvanceSequence while node A holds a lease of the sequence",
        [("operator", "client"), ("node B", "server"), ("store", "store"), ("node A", "server")],
        [
            ("node A", "store", ["grant 1000 ids; lease_ms = 180000"]),
            ("store", "node A", ["<1 to 1000, generation 7"]),
            ("node A", "node A", ["issues 1, 2, 3 … from its lease"]),
            ("operator", "node B", ["AdvanceSequence", "past 5000"]),
            ("node B", "store", ["if revision = 0: last_value", "= 5000, generation = 8"]),
            ("store", "node B", ["<applied; lease_ms is 180000"]),
            ("node B", "operator", ["<effective in 181 s", "(lease_ms and 1 s)"]),
            ("operator", "operator", ["waits"]),
            ("node A", "node A", ["continues with its lease of generation 7,", "until its next write or its expiry"]),
            ("node A", "store", ["grant 1000 ids"]),
            ("store", "node A", ["<5001 to 6000, generation 8"]),
            ("node A", "node A", ["another generation: burns the rest", "of the old lease, issues 5001 …"]),
            ("store", "store", ["after the 181 s, no lease of generation 7 is alive anywhere"]),
        ],
    )


def fencing() -> str:
    """Return a paused node: its lease ends by its own clock, whatever it missed."""
    return sequence_diagram(
        "A node that was paused beyond the end of its lease issues nothing from it",
        [("caller", "client"), ("node A", "server"), ("store", "store"), ("node B", "server")],
        [
            ("node A", "store", ["grant 1000 ids"]),
            ("store", "node A", ["<1 to 1000, generation 7"]),
            ("node A", "node A", ["expires 180 s after the grant was sent,", "by a clock that counts suspended time"]),
            ("caller", "node A", ["AllocateRange"]),
            ("node A", "caller", ["<1 to 10, ttl 179 s"]),
            ("node A", "node A", ["paused: SIGSTOP, suspended machine"]),
            ("node B", "store", ["last_value = 5000,", "generation = 8"]),
            ("store", "node B", ["<applied; lease_ms is 180000"]),
            ("node B", "node B", ["effective in 181 s"]),
            ("node A", "node A", ["runs again after the 181 s"]),
            ("caller", "node A", ["AllocateRange"]),
            ("node A", "node A", ["the lease has expired: burns 11 to 1000"]),
            ("node A", "store", ["grant"]),
            ("store", "node A", ["<5001 to 6000, generation 8"]),
            ("node A", "caller", ["<5001 to 5010"]),
        ],
    )


def update_node() -> str:
    """Return UpdateNode with a new prefix over two workers."""
    workers = [("worker 1", "server"), ("supervisor", "process"), ("worker 2", "server")]
    return sequence_diagram(
        "UpdateNode changes the prefix of all workers of a server",
        [("caller", "client"), *workers, ("store", "store")],
        [
            ("caller", "worker 1", ["UpdateNode", "prefix = 7, persist"]),
            ("worker 1", "store", ["claim a start timestamp of prefix 7"]),
            ("worker 1", "supervisor", ["change", "prefix = 7, persist"]),
            ("supervisor", "supervisor", ["writes the file of persisted", "settings: change 1"]),
            ("supervisor", "worker 2", ["settings 1"]),
            ("supervisor", "worker 1", ["<settings 1"]),
            ("worker 1", "worker 1", ["uses the new prefix"]),
            ("worker 2", "store", ["claim a start", "timestamp"]),
            ("worker 2", "worker 2", ["uses the new prefix; if the claim", "fails: tries again after 5 s"]),
            ("worker 2", "supervisor", ["<applied 1"]),
            ("supervisor", "worker 1", ["all applied 1"]),
            ("worker 1", "caller", ["<the node's", "new settings"]),
        ],
        width=800,
    )


def document_id() -> str:
    """Return the layout of a document id."""
    drawing = Drawing("A document id has 28 hexadecimal digits: 4 prefix, 8 start timestamp, 16 serial", 800, 190)
    prefix = ("of the node", "0 to 65535", "node_prefix")
    start = ("seconds since 1970", "claimed in the store,", "once by one process")
    serial = ("counts in memory, 1 to 2^64-1", "one for all callers of the process", "offset and increment as in MySQL")
    parts = (
        ("client", "0000", "prefix", prefix),
        ("lease", "6b017bcf", "start timestamp", start),
        ("server", "0000000000000001", "serial", serial),
    )
    x = 22.0
    for kind, digits, name, lines in parts:
        width = len(digits) * 27.0
        for index, digit in enumerate(digits):
            drawing.box(x + index * 27, 24, 25, 44, kind, digit)
        drawing.line((x, 82), (x + width - 2, 82), arrow=False, colour=COLOURS[kind][1], wide=True)
        drawing.text(x + width / 2, 108, name, bold=True)
        drawing.text(x + width / 2, 132, *lines, size=13 if width > 150 else 12, colour=FAINT)
        x += width
    return drawing.svg()


DIAGRAMS = {
    "advance": advance,
    "concepts": concepts,
    "document-id": document_id,
    "fencing": fencing,
    "lease-life": lease_life,
    "refill-path": refill_path,
    "request-path": request_path,
    "rooms": rooms,
    "update-node": update_node,
}

if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (ASSETS / f"{name}.svg").write_text(draw())
