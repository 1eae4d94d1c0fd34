"""The writes of documents: ``_update``, ``_bulk``, ``_doc`` and ``_create``."""

import copy
from collections.abc import Callable
from typing import Any

from tests.support.opensearch.indices import Index
from tests.support.opensearch.painless import Context, Script
from tests.support.opensearch.refusals import Refusal, UnknownRequest, invalid
from tests.support.opensearch.searches import filtered

_MAX_ID_BYTES = 512
_UPDATE_KEYS = {"script", "doc", "upsert", "scripted_upsert", "_source"}
Wanted = bool | list[str]
Scripts = Callable[[str], Script]


class Versions:
    """The version that a write compares; both or none."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.seq_no = _optional_int(options.get("if_seq_no"))
        self.term = _optional_int(options.get("if_primary_term"))
        if (self.seq_no is None) != (self.term is None):
            raise invalid("ifSeqNo is set, but primary term is [0]")


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def check_update(key: str, options: dict[str, Any], body: dict[str, Any]) -> Versions:
    """Refuse an update that contradicts itself."""
    if unknown := body.keys() - _UPDATE_KEYS:
        raise UnknownRequest(f"an update with {', '.join(sorted(unknown))}")
    versions = Versions(options)
    if versions.seq_no is not None and int(options.get("retry_on_conflict", 0)):
        raise invalid("compare and write operations can not be retried")
    if versions.seq_no is not None and "upsert" in body:
        raise invalid("upsert requests don't support `if_seq_no` and `if_primary_term`")
    if len(key.encode()) > _MAX_ID_BYTES:
        raise invalid(f"id [{key}] is too long, must be no longer than 512 bytes but was: {len(key.encode())}")
    if "doc" in body and body.keys() == {"doc"}:
        return versions
    if "script" not in body:
        raise invalid("script or doc is missing")
    if not body["script"].keys() <= {"source", "lang", "params"} or body["script"].get("lang") not in (
        None,
        "painless",
    ):
        raise UnknownRequest(f"the script {body['script']}")
    return versions


def update(
    index: Index, key: str, versions: Versions, body: dict[str, Any], wanted: Wanted, scripts: Scripts, now_ms: int
) -> dict[str, Any]:
    """Run a script on a document, and return the answer."""
    given = body.get("script", {})
    script, params = scripts(given["source"]) if given else _merge(body["doc"]), given.get("params", {})
    found = index.documents.get(key)
    if found is None:
        if "upsert" not in body:
            raise Refusal(404, "document_missing_exception", f"[{key}]: document missing", **index.where())
        ctx = Context(copy.deepcopy(body["upsert"]), "create", now_ms)
    else:
        index.check_version(key, versions.seq_no, versions.term)
        ctx = Context(copy.deepcopy(found.source), "index", now_ms)
    if found or body.get("scripted_upsert"):
        script(ctx, params)
    if ctx.op == "none":
        return _unchanged(index, key, ctx, wanted)
    if ctx.op == "delete":
        index.delete(key)
        if wanted is not False:
            reason = 'Cannot invoke "org.opensearch.core.common.bytes.BytesReference.length()"'
            raise Refusal(500, "null_pointer_exception", reason)
        raise UnknownRequest("a deletion by a script without _source")
    answer = index.put(key, ctx.source)
    if wanted is not False:
        version = {"_seq_no": answer["_seq_no"], "_primary_term": answer["_primary_term"]}
        answer["get"] = {**version, "found": True, "_source": filtered(ctx.source, wanted)}
    return answer


def _merge(fields: dict[str, Any]) -> Script:
    def run(ctx: Context, p: dict[str, Any]) -> None:
        ctx.source |= fields

    return run


def _unchanged(index: Index, key: str, ctx: Context, wanted: Wanted) -> dict[str, Any]:
    """Return the answer of a script that wrote nothing: a filtered source shows what the script
    made of it.
    """
    found = index.documents.get(key)
    shards = {"total": 0, "successful": 0, "failed": 0}
    answer: dict[str, Any] = {"_index": index.name, "_id": key, "_version": found.version if found else -1}
    answer |= {"result": "noop", "_shards": shards}
    version = {"_seq_no": found.seq_no, "_primary_term": found.term} if found else {}
    answer |= version
    if wanted is not False:
        source = found.source if found and wanted is True else ctx.source
        answer["get"] = {**version, "found": True, "_source": filtered(source, wanted)} if found else {"found": False}
    return answer


def put(index: Index, key: str, versions: Versions, source: dict[str, Any], *, is_new: bool) -> dict[str, Any]:
    """Write a whole document, and return the answer."""
    found = index.documents.get(key)
    if is_new and found:
        reason = f"[{key}]: version conflict, document already exists (current version [{found.version}])"
        raise Refusal(409, "version_conflict_engine_exception", reason, **index.where())
    index.check_version(key, versions.seq_no, versions.term)
    return index.put(key, source)


def bulk_items(lines: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the action, its options and its body of each item."""
    items, rest = [], iter(lines)
    for number, line in enumerate(rest, 1):
        ((action, options),) = line.items()
        if action not in ("update", "delete", "index", "create"):
            raise UnknownRequest(f"the action {action} in a bulk")
        for name, value in options.items():
            if isinstance(value, list):
                expected = f"expected a simple value for field [{name}] but found [START_ARRAY]"
                reason = f"Malformed action/metadata line [{number}], {expected}"
                raise Refusal(400, "illegal_argument_exception", reason)
        items.append((action, options, {} if action == "delete" else next(rest)))
    return items
