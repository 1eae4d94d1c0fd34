"""The recorded exchanges with a real OpenSearch, and the comparison of answers with them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from tests.support.opensearch.painless import Context, Script, cast, long, wrapped
from tests.support.opensearch.refusals import failed_script

RECORDED = Path(__file__).parent / "recorded.jsonl"
RECORDED_STARTING = Path(__file__).parent / "recorded-starting.jsonl"
ENOUGH_OF_A_REASON = 20
_IGNORED = {"took", "cluster_name", "index_uuid", "node", "failed_shards"}
_IGNORED |= {"script_stack", "script", "lang", "position"}
_CLOCKS = {"seen_at", "written_at", "timestamp", "epoch"}
_NODE = {"name", "cluster_uuid", "build_hash", "build_date", "build_type", "tagline", "lucene_version"}
_NODE |= {"number", "build_snapshot", "minimum_wire_compatibility_version", "minimum_index_compatibility_version"}


@dataclass(frozen=True)
class Exchange:
    """A request and the recorded answer."""

    what: str
    method: str
    path: str
    body: Any
    status: int
    response: Any

    def content(self) -> bytes | None:
        """Return the body as it was sent: a list is one JSON a line."""
        if self.body is None or isinstance(self.body, str):
            return None if self.body is None else self.body.encode()
        lines = self.body if isinstance(self.body, list) else [self.body]
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    def is_about_nodes(self) -> bool:
        """Whether the answer describes the nodes, which differ from one cluster to the next."""
        return urlsplit(self.path).path == "/" or self.path.startswith("/_nodes")


def one_node() -> list[Exchange]:
    """Return the exchanges with one node, which begin on an empty server."""
    entries = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [
        Exchange(each["what"], each["method"], each["path"], each.get("body"), each["status"], each["response"])
        for each in entries
        if "cluster" not in each
    ]


def starting(state: str) -> list[Exchange]:
    """Return the exchanges with a node that is ``not recovered``, or has ``no manager``."""
    entries = [json.loads(line) for line in RECORDED_STARTING.read_text().splitlines()]
    return [
        Exchange(state, each["method"], each["path"], each.get("body"), each["status"], each["response"])
        for each in entries
        if each["state"] == state
    ]


async def send(session: aiohttp.ClientSession, host: str, exchange: Exchange) -> tuple[int, Any]:
    """Send a request and return the status and the JSON of the answer."""
    is_bulk = "_bulk" in exchange.path
    headers = {"Content-Type": "application/x-ndjson" if is_bulk else "application/json"}
    # Unquoted dots of a path would be removed otherwise.
    url = URL(f"http://{host}{exchange.path}", encoded=True)
    async with session.request(exchange.method, url, data=exchange.content(), headers=headers) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text


def comparable(answer: Any, *, about_nodes: bool = False) -> Any:
    """Return the part of an answer that is the same in every cluster."""
    if isinstance(answer, list):
        return [comparable(each, about_nodes=about_nodes) for each in answer]
    if not isinstance(answer, dict):
        return answer
    result = {}
    for name, value in answer.items():
        is_version = name == "version" and isinstance(value, str)
        if name in _IGNORED or (about_nodes and (name in _NODE or is_version)):
            continue
        if name == "nodes":
            value = {str(at): each for at, each in enumerate(value.values())}
        if name in _CLOCKS:
            result[name] = "a clock"
        elif name == "master_node":
            result[name] = value and "a node"
        elif name == "caused_by":
            # Only of a failed script is the cause something to rely on.
            if value["type"] == "script_exception":
                result[name] = comparable(value)
        elif name in ("reason", "error") and isinstance(value, str):
            result[name] = value[:ENOUGH_OF_A_REASON]
        else:
            result[name] = comparable(value, about_nodes=about_nodes)
    return result


def _assign(name: str, value: Any) -> Script:
    def run(ctx: Context, p: dict[str, Any]) -> None:
        ctx.source[name] = value

    return run


def _refuse(kind: str) -> Script:
    def run(ctx: Context, p: dict[str, Any]) -> None:
        raise failed_script(kind, "")

    return run


def _operation(name: str, **changes: Any) -> Script:
    def run(ctx: Context, p: dict[str, Any]) -> None:
        ctx.source |= changes
        ctx.op = name

    return run


def _assign_param(name: str) -> Script:
    def run(ctx: Context, p: dict[str, Any]) -> None:
        ctx.source["last_value"] = long(p.get(name))

    return run


# The scripts of the recording that are not idalloc's.
EXPLORING: dict[str, Script] = {
    "long v = 9223372036854775807L; ctx._source.last_value = v + 1L": _assign("last_value", wrapped(2**63)),
    "ctx._source.last_value = Math.max(9007199254740993L, 1L)": _assign("last_value", 9007199254740992.0),
    "ctx._source.last_value = Long.max(9007199254740993L, 1L)": _assign("last_value", 2**53 + 1),
    "ctx._source.last_value = (long)Math.max(9007199254740993L, 1L)": _assign("last_value", cast(float(2**53))),
    'ctx._source.last_value = new BigInteger("9223372036854775808")': _assign("last_value", 2**63),
    "ctx._source.last_value = 1.5": _assign("last_value", 1.5),
    'ctx._source.last_value = "12"': _assign("last_value", "12"),
    "long x = params.x; ctx._source.last_value = x": _assign_param("x"),
    "long x = params.y; ctx._source.last_value = x": _assign_param("y"),
    "ctx._source.zzz = 1": _assign("zzz", 1),
    "ctx._source.v += 1": _assign("v", 1),
    "ctx._source.x = 2": _assign("x", 2),
    "ctx._source.granted = 1L": _assign("granted", 1),
    "ctx._source.granted = 3L": _assign("granted", 3),
    "ctx._source.last_value = ctx._source.last_value": lambda ctx, p: None,
    'throw new IllegalArgumentException("no")': _refuse("illegal_argument_exception"),
    'ctx.op = "none"': _operation("none"),
    "ctx.op = 'none'": _operation("none"),
    'ctx._source.last_value = 12345L; ctx._source.other = 6; ctx.op = "none"': _operation(
        "none", last_value=12345, other=6
    ),
    'ctx._source.last_value = 12345L; ctx.op = "none"': _operation("none", last_value=12345),
    'ctx.op = "delete"': _operation("delete"),
}
