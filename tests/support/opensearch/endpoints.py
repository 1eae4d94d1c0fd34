"""The endpoints of OpenSearch that idalloc and its tests use."""

import copy
import itertools
import json
import re
import uuid
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any
from urllib.parse import unquote

from tests.support.opensearch import painless, writes
from tests.support.opensearch.indices import Index, flattened, nested
from tests.support.opensearch.refusals import Refusal, UnknownRequest, missing_index, missing_scroll, not_an_alias
from tests.support.opensearch.searches import Scroll, filtered, search

_UPDATE = {
    "require_alias", "timeout", "_source", "retry_on_conflict", "if_seq_no", "if_primary_term", "wait_for_active_shards"
}  # fmt: skip
_CLUSTER_SETTINGS = {"action.auto_create_index", "cluster.blocks.read_only", "search.allow_expensive_queries"}
_NOT_RECOVERED = {
    "description": "state not recovered / initialized",
    "retryable": True,
    "disable_state_persistence": True,
    "levels": ["read", "write", "metadata_read", "metadata_write", "create_index"],
}
_NO_MANAGER = {"description": "no cluster-manager", "retryable": True, "levels": ["metadata_write"]}
Answer = tuple[int, Any]


class Request:
    """A request."""

    def __init__(self, method: str, target: str, body: str) -> None:
        self.method = method
        path, _, query = target.partition("?")
        # The decoded parts of the path.
        self.parts = [unquote(part) for part in path.removeprefix("/").split("/")]
        pairs = (pair.partition("=") for pair in query.split("&") if pair)
        self.options = {unquote(name): unquote(value) for name, _, value in pairs}  # of the query
        self.raw_body = body
        is_bulk = self.parts[-1] == "_bulk"
        texts = [line for line in body.split("\n") if line] if is_bulk else [body] if body else []
        # The JSON of the body, or of each of its lines; empty without a body.
        try:
            self.lines = [json.loads(text) for text in texts]
        except ValueError:
            self.lines = [None]
        # The method, the path and the names of the scripts, which faults and tests compare.
        self.text = f"{method} {target} {' '.join(self._scripts())}".strip()

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the body."""
        if self.lines and not isinstance(self.lines[0], dict):
            raise UnknownRequest(f"the body {self.raw_body!r}")
        return self.lines[0] if self.lines else {}

    def expect(self, *options: str) -> None:
        """Refuse to guess what other parameters mean."""
        if unknown := self.options.keys() - set(options):
            raise UnknownRequest(f"the parameters {', '.join(sorted(unknown))}")

    def is_set(self, option: str) -> bool:
        """Whether a boolean parameter is true."""
        return self.options.get(option, "false") in ("true", "")

    def wanted(self, text: str | None, default: bool) -> bool | list[str]:
        """Return the wanted fields of the source."""
        return default if text is None else text == "true" if text in ("true", "false") else text.split(",")

    def _scripts(self) -> list[str]:
        sources = [line["script"].get("source") for line in self.lines if isinstance(line, dict) and "script" in line]
        return [painless.KNOWN.get(painless.digest(source), ("?",))[0] for source in sources if source]


class Cluster:
    """A cluster of one node."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        # The version that it reports, and the same in words.
        self.version: dict[str, Any] = {"distribution": "opensearch", "number": "3.8.0", "build_snapshot": False}
        self.tagline = "The OpenSearch Project: https://opensearch.org/"
        self.node_versions = ["3.8.0"]
        self.extra_scripts: dict[str, painless.Script] = {}  # of a test, by their sources
        self.indices: dict[str, Index] = {}
        self.settings: dict[str, str] = {}
        # The lifecycle policies of indices; if there is one, the cluster has the plugin for them.
        self.policies: dict[str, str] = {}
        self.templates: dict[str, dict[str, Any]] = {}
        self.is_recovered = True  # whether it has loaded its state; before, no index is known
        self.has_manager = True  # whether a cluster manager is elected
        self._uuids = itertools.count(1)
        self._scrolls: dict[str, Scroll] = {}

    def execute(self, request: Request) -> Answer:
        """Return the status and the body of the answer.

        Raises:
            Refusal: The request is refused.
            UnknownRequest: The stand-in does not know this form.
        """
        if self.is_recovered:
            return self._execute(request)
        known, self.indices = self.indices, {}
        try:
            self._check_recovered(request)
            return self._execute(request)
        finally:
            self.indices = known

    def _check_recovered(self, request: Request) -> None:
        """Refuse what a node refuses until the state of its cluster is recovered; it knows no
        index for the rest.
        """
        block = "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered / initialized];"
        if request.parts[-1] in ("_bulk", "_search"):
            raise Refusal(503, "cluster_block_exception", block)
        kind = "cluster_manager_not_discovered_exception"
        is_for_manager = request.method == "PUT" or (request.method == "GET" and request.parts[0][:1] not in ("", "_"))
        if is_for_manager and not self.has_manager:
            raise Refusal(503, kind, None)
        if request.method == "PUT":
            reason = f"index [{request.parts[0]}] {block}"
            refusal = Refusal(503, kind, f"ClusterBlockException[{reason}]", {"type": "cluster_block_exception"})
            refusal.root = {"type": "cluster_block_exception", "reason": reason}
            raise refusal

    def _execute(self, request: Request) -> Answer:
        match request.method, request.parts:
            case "GET", [""]:
                named = {"name": "stand-in", "cluster_name": "stand-in", "tagline": self.tagline}
                return 200, {**named, "version": self.version}
            case "GET", ["_nodes" | "_cluster" | "_cat", *_]:
                return self._about_nodes(request)
            case "PUT", ["_cluster", "settings"]:
                return self._change_cluster(request)
            case "PUT" | "DELETE", ["_index_template", name]:
                request.expect()
                self.templates.pop(name, None)
                if request.method == "PUT":
                    self.templates[name] = request.body
                return 200, {"acknowledged": True}
            case "GET", ["_alias", name]:
                request.expect()
                if (index := self._aliased(name)) is None:
                    return 404, {"error": f"alias [{name}] missing", "status": 404}
                return 200, {index.name: {"aliases": {name: index.aliases[name]}}}
            case "POST", ["_aliases"] if request.body.keys() == {"actions"}:
                return self._change_aliases(request)
            case "GET", ["_plugins", *_]:
                parts = "/".join(request.parts)
                if self.policies and request.parts[:3] == ["_plugins", "_ism", "explain"]:
                    return 200, self._explain(request.parts[3])
                return 400, {"error": f"no handler found for uri [/{parts}] and method [GET]"}
            case "GET", [names] if not names.startswith("_"):
                return 200, self._describe(names.split(","), request)
            case "POST" | "DELETE", ["_search", "scroll"]:
                return self._scroll(request)
            case "GET", [name, "_settings"]:
                request.expect()
                index = self._readable(name, "index_or_alias")
                return 200, {index.name: {"settings": nested(index.settings)}}
            case "PUT", [name, "_block", "write"]:
                request.expect()
                index = self._readable(name, "index_or_alias")
                _apply(index.settings, {"index.blocks.write": "true"})
                done = {"acknowledged": True, "shards_acknowledged": True}
                return 200, done | {"indices": [{"name": index.name, "blocked": True}]}
            case "GET", [name, "_mapping"]:
                request.expect()
                index = self._readable(name, "index_or_alias")
                return 200, {index.name: {"mappings": index.mappings}}
            case "PUT", [name] if not name.startswith("_"):
                return self._make_index(name, request)
            case "DELETE", [name] if not name.startswith("_"):
                return self._delete_indices(name.split(","), request)
            case _, [name, action] if name and not name.startswith("_"):
                return self._on_index(name, action, request)
            case _, [name, action, key] if name and not name.startswith("_"):
                return self._on_document(name, action, key, request)
        raise UnknownRequest("no such endpoint")

    def _change_aliases(self, request: Request) -> Answer:
        request.expect()
        for each in request.body["actions"]:
            ((action, where),) = each.items()
            aliases = self.indices[where["index"]].aliases
            if action == "add":
                options = ("is_write_index", "filter", "search_routing")
                aliases[where["alias"]] = {key: where[key] for key in options if key in where}
            elif action == "remove":
                del aliases[where["alias"]]
            else:
                raise UnknownRequest(f"the action {action}")
        return 200, {"acknowledged": True}

    def _explain(self, index: str) -> dict[str, Any]:
        """Answer as the plugin for lifecycle policies, which the recordings do not have."""
        setting = "index.plugins.index_state_management.policy_id"
        return {index: {setting: self.policies.get(index)}, "total_managed_indices": int(index in self.policies)}

    def _describe(self, names: list[str], request: Request) -> dict[str, Any]:
        request.expect("include_defaults", "flat_settings", "filter_path", "local", "ignore_unavailable")
        is_flat, defaults = request.is_set("flat_settings"), request.is_set("include_defaults")
        if request.is_set("ignore_unavailable"):
            names = [name for name in names if self._found(name)]
        indices = [index for name in names for index in self._all_readable(name)]
        described = {index.name: index.describe(is_flat=is_flat, defaults=defaults) for index in indices}
        return dict(_on_paths(described, request))

    def _about_nodes(self, request: Request) -> Answer:
        request.expect("filter_path", "local", "format", "h")
        match request.parts:
            case ["_nodes", "_all", "process"]:
                nodes = {f"node-{at}": {"version": version} for at, version in enumerate(self.node_versions)}
                return 200, _on_paths({"nodes": nodes}, request)
            case ["_nodes", "_local", "stats", "process"]:
                return 200, _on_paths({"nodes": {"node-0": {"timestamp": self.now_ms()}}}, request)
            case ["_cat", "health"] if request.options == {"format": "json", "h": "epoch"}:
                return 200, [{"epoch": str(self.now_ms() // 1000)}]
            case ["_cluster", "health"] if "filter_path" in request.options:
                health = {"cluster_name": "stand-in", "status": "green", "timed_out": False}
                return 200, _on_paths(health | {"number_of_nodes": len(self.node_versions)}, request)
            case ["_cluster", "state", "master_node,blocks"] if request.is_set("local"):
                blocks = {} if self.is_recovered else {"1": _NOT_RECOVERED}
                blocks |= {} if self.has_manager else {"2": _NO_MANAGER}
                state: dict[str, Any] = {"master_node": "node-0" if self.has_manager else None}
                return 200, _on_paths(state | {"blocks": {"global": blocks} if blocks else {}}, request)
        raise UnknownRequest("no such endpoint")

    def _change_cluster(self, request: Request) -> Answer:
        request.expect()
        if request.body.keys() != {"persistent"}:
            raise UnknownRequest("settings that are not persistent")
        changes = flattened(request.body["persistent"])
        if unknown := changes.keys() - _CLUSTER_SETTINGS:
            raise UnknownRequest(f"the cluster's settings {', '.join(unknown)}")
        _apply(self.settings, changes)
        persistent = nested({name: value for name, value in changes.items() if value is not None})
        return 200, {"acknowledged": True, "persistent": persistent, "transient": {}}

    def _make_index(self, name: str, request: Request) -> Answer:
        request.expect("timeout", "cluster_manager_timeout", "master_timeout")
        if unknown := request.body.keys() - {"settings", "aliases", "mappings"}:
            raise UnknownRequest(f"an index with {', '.join(sorted(unknown))}")
        if name != name.lower():
            reason = f"Invalid index name [{name}], must be lowercase"
            raise Refusal(400, "invalid_index_name_exception", reason, index=name, index_uuid="_na_")
        if (old := self.indices.get(name)) is not None:
            reason = f"index [{name}/{old.uuid}] already exists"
            raise Refusal(400, "resource_already_exists_exception", reason, index=name, index_uuid=old.uuid)
        for alias in request.body.get("aliases", {}):
            if alias in self.indices:
                reason = f"Invalid alias name [{alias}], an index exists with the same name as the alias"
                where = self.indices[alias].uuid
                raise Refusal(400, "invalid_alias_name_exception", reason, index=alias, index_uuid=where)
        self._add_index(name, **request.body)
        return 200, {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def _add_index(
        self,
        name: str,
        settings: dict[str, Any] | None = None,
        aliases: dict[str, Any] | None = None,
        mappings: dict[str, Any] | None = None,
    ) -> Index:
        given = flattened(settings or {})
        known = {(key if key.startswith("index.") else f"index.{key}"): value for key, value in given.items()}
        for key in known:
            if not re.match(
                r"index\.(number_of_|auto_expand_replicas|translog\.|refresh_interval|default_|final_|blocks\.|replication\.|max_result_window)",
                key,
            ):
                reason = f"unknown setting [{key}] please check that any required plugins are installed, or check the"
                raise Refusal(400, "settings_exception", reason)
        own = {
            "index.uuid": uuid.UUID(int=next(self._uuids)).hex,
            "index.provided_name": name,
            "index.creation_date": str(self.now_ms()),
            "index.number_of_shards": "1",
            "index.number_of_replicas": "0" if "index.auto_expand_replicas" in known else "1",
            "index.replication.type": "DOCUMENT",
            "index.version.created": "137297827",
        }
        texts = own | {key: value for key, value in known.items() if value is not None}
        if texts["index.number_of_shards"] != "1":
            raise UnknownRequest("an index of several shards")
        mappings = mappings or {}
        for template in self.templates.values():
            if any(fnmatch(name, pattern) for pattern in template["index_patterns"]):
                mappings = template["template"]["mappings"] | mappings
        self.indices[name] = Index(name, own["index.uuid"], texts, mappings, aliases or {})
        return self.indices[name]

    def _delete_indices(self, names: list[str], request: Request) -> Answer:
        request.expect("ignore_unavailable")
        for name in names:
            if self._aliased(name) is not None:
                reason = (
                    f"The provided expression [{name}] matches an alias, specify the corresponding concrete indices"
                )
                raise Refusal(400, "illegal_argument_exception", f"{reason} instead.")
            if name not in self.indices and not request.is_set("ignore_unavailable"):
                raise missing_index(name, **{"resource.type": "index_or_alias"})
        for name in names:
            self.indices.pop(name, None)
        return 200, {"acknowledged": True}

    def _on_index(self, name: str, action: str, request: Request) -> Answer:
        if request.method == "POST" and action == "_bulk":
            return 200, self._bulk(name, request)
        if request.method == "POST" and action == "_rollover":
            return self._roll_over(name, request)
        index = self._readable(name, "index_or_alias")
        match request.method, action:
            case "POST", "_refresh":
                request.expect()
                index.refresh()
                return 200, {"_shards": {"total": 1, "successful": 1, "failed": 0}}
            case "POST", "_search":
                request.expect("allow_partial_search_results", "scroll")
                index.check_readable()
                if "scroll" in request.options:
                    return 200, self._start_scroll(index, request)
                is_frugal = self.settings.get("search.allow_expensive_queries") == "false"
                return 200, search(index, request.body, is_frugal=is_frugal)
            case "PUT", "_mapping" if request.body.keys() == {"properties"}:
                request.expect("timeout", "cluster_manager_timeout", "master_timeout")
                index.add_fields(request.body["properties"])
                return 200, {"acknowledged": True}
            case "PUT", "_mapping" if request.body.keys() == {"_meta"}:  # replaces the earlier one
                request.expect()
                index.mappings["_meta"] = request.body["_meta"]
                return 200, {"acknowledged": True}
            case "PUT", "_settings":
                request.expect()
                _apply(index.settings, flattened(request.body))
                return 200, {"acknowledged": True}
            case "POST", "_close" | "_open":
                request.expect()
                index.is_closed = action == "_close"
                index.term += 1
                answer: dict[str, Any] = {"acknowledged": True, "shards_acknowledged": True}
                return 200, answer | ({"indices": {index.name: {"closed": True}}} if index.is_closed else {})
        raise UnknownRequest("no such endpoint")

    def _roll_over(self, alias: str, request: Request) -> Answer:
        """Let writes of the alias go to a new, empty index from now on."""
        request.expect()
        if request.lines or (old := self._aliased(alias)) is None:
            raise UnknownRequest("a rollover with conditions, or of no alias")
        numbered = re.fullmatch(r"(.*)-(\d+)", old.name)
        if numbered is None:
            reason = f"index name [{old.name}] does not match pattern '^.*-\\d+$'"
            raise Refusal(400, "illegal_argument_exception", reason)
        new = f"{numbered[1]}-{int(numbered[2]) + 1:06}"
        if (options := old.aliases[alias]).get("is_write_index"):
            old.aliases[alias] = {"is_write_index": False}
        else:
            del old.aliases[alias]
        self._add_index(new, aliases={alias: options})
        done = {"old_index": old.name, "new_index": new, "rolled_over": True, "dry_run": False, "conditions": {}}
        return 200, {"acknowledged": True, "shards_acknowledged": True, **done}

    def _clone(self, source: Index, name: str, request: Request) -> Answer:
        request.expect()
        if source.settings.get("index.blocks.write") != "true":
            reason = f'index {source.name} must be read-only to resize index. use "index.blocks.write=true"'
            raise Refusal(400, "illegal_state_exception", reason)
        kept = ("index.uuid", "index.provided_name", "index.creation_date", "index.version.created")
        changes = {**source.settings, **flattened(request.body.get("settings", {}))}
        settings = {key: value for key, value in changes.items() if key not in kept}
        clone = self._add_index(name, settings=settings, mappings=copy.deepcopy(source.mappings))
        clone.documents = copy.deepcopy(source.documents)
        return 200, {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def _start_scroll(self, index: Index, request: Request) -> dict[str, Any]:
        scroll = Scroll(index, request.body, request.options["scroll"])
        self._scrolls[scroll.id] = scroll
        return scroll.next_page()

    def _scroll(self, request: Request) -> Answer:
        request.expect()
        body = request.body
        if request.method == "DELETE" and body.keys() == {"scroll_id"} and isinstance(body["scroll_id"], list):
            freed = [self._scrolls.pop(each) for each in body["scroll_id"] if each in self._scrolls]
            return 200 if freed else 404, {"succeeded": True, "num_freed": len(freed)}
        if request.method == "DELETE" or body.keys() != {"scroll", "scroll_id"}:
            raise UnknownRequest(f"a scroll with {', '.join(sorted(body))}")
        if (scroll := self._scrolls.get(body["scroll_id"])) is None:
            raise missing_scroll(body["scroll_id"])
        return 200, scroll.next_page()

    def _on_document(self, name: str, action: str, key: str, request: Request) -> Answer:
        match request.method, action:
            case "POST", "_clone" if key:
                return self._clone(self._readable(name, "index_or_alias"), key, request)
            case "GET", "_doc" if key:
                request.expect("_source")
                index = self._readable(name, "index_expression")
                index.check_readable()
                if (found := index.documents.get(key)) is None:
                    return 404, {"_index": index.name, "_id": key, "found": False}
                version = {"_version": found.version, "_seq_no": found.seq_no, "_primary_term": found.term}
                source = filtered(found.source, request.wanted(request.options.get("_source"), True))
                return 200, {"_index": index.name, "_id": key, **version, "found": True, "_source": source}
            case "DELETE", "_doc" if key:
                request.expect()
                answer = self._writable(name, require_alias=False).delete(key)
                return _status(answer), answer
            case "PUT", "_doc" | "_create" if key:
                request.expect("require_alias", "timeout", "if_seq_no", "if_primary_term")
                versions = writes.Versions(request.options)
                index = self._writable(name, request.is_set("require_alias"))
                answer = writes.put(index, key, versions, request.body, is_new=action == "_create")
                return _status(answer), answer
            case "POST", "_update" if key:
                request.expect(*_UPDATE)
                versions = writes.check_update(key, request.options, request.body)
                wanted = request.wanted(request.options.get("_source"), False)
                index = self._writable(name, request.is_set("require_alias"))
                self._check_copies(index, request)
                answer = writes.update(index, key, versions, request.body, wanted, self._script, self.now_ms())
                return _status(answer), answer
        raise UnknownRequest("no such endpoint")

    def _bulk(self, name: str, request: Request) -> dict[str, Any]:
        request.expect("require_alias", "timeout")
        if not request.raw_body.endswith("\n"):
            reason = "The bulk request must be terminated by a newline [\\n]"
            raise Refusal(400, "illegal_argument_exception", reason)
        answers = []
        for action, options, body in writes.bulk_items(request.lines):
            try:
                answer = self._bulk_item(name, action, options, body, request.is_set("require_alias"))
                answer["status"] = 404 if answer["result"] == "not_found" else _status(answer)
            except Refusal as refusal:
                index = self._found(name)
                answer = {"_index": index.name if index else name, "_id": options["_id"]}
                answer |= {"status": refusal.status, "error": refusal.error}
            answers.append({action: answer})
        failed = any("error" in answer for each in answers for answer in each.values())
        return {"took": 1, "errors": failed, "items": answers}

    def _bulk_item(
        self, name: str, action: str, options: dict[str, Any], body: dict[str, Any], require_alias: bool
    ) -> dict[str, Any]:
        known = {"_id", "_source", "require_alias", "retry_on_conflict", "if_seq_no", "if_primary_term"}
        if unknown := options.keys() - known:
            raise UnknownRequest(f"a bulk's item with {', '.join(sorted(unknown))}")
        key = options["_id"]
        index = self._writable(name, require_alias or options.get("require_alias", False))
        if action == "update":
            versions = writes.check_update(key, options, body)
            wanted = body.get("_source", options.get("_source", False))
            return writes.update(index, key, versions, body, wanted, self._script, self.now_ms())
        versions = writes.Versions(options)
        if action in ("index", "create"):
            return writes.put(index, key, versions, body, is_new=action == "create")
        index.check_version(key, versions.seq_no, versions.term)
        return index.delete(key)

    def _script(self, source: str) -> painless.Script:
        return self.extra_scripts[source] if source in self.extra_scripts else painless.known(source)[1]

    def _check_copies(self, index: Index, request: Request) -> None:
        if (wanted := int(request.options.get("wait_for_active_shards", 1))) > 1:
            have = f"(have 1, needed {wanted}). Timeout: [{request.options.get('timeout', '1m')}]"
            reason = f"[{index.name}][0] Not enough active copies to meet shard count of [{wanted}] {have}"
            raise Refusal(503, "unavailable_shards_exception", reason)

    def _aliased(self, alias: str) -> Index | None:
        """Return the only index of an alias, or the one that it writes to."""
        found = [index for index in self.indices.values() if alias in index.aliases]
        if len(found) > 1:
            found = [index for index in found if index.aliases[alias].get("is_write_index")]
            if len(found) != 1:
                raise UnknownRequest(f"the alias {alias} of several indices")
        return found[0] if found else None

    def _found(self, name: str) -> Index | None:
        return self.indices.get(name) or self._aliased(name)

    def _all_readable(self, name: str) -> list[Index]:
        if name.endswith("*"):
            return [index for index in self.indices.values() if index.name.startswith(name[:-1])]
        if aliased := [index for index in self.indices.values() if name in index.aliases]:
            return aliased
        return [self._readable(name, "index_or_alias")]

    def _readable(self, name: str, kind: str) -> Index:
        if (index := self._found(name)) is None:
            raise missing_index(name, **{"resource.type": kind})
        return index

    def _writable(self, name: str, require_alias: bool) -> Index:
        """Return the index of a write, which OpenSearch makes if it is missing."""
        if self.settings.get("cluster.blocks.read_only") == "true":
            block = "blocked by: [FORBIDDEN/6/cluster read-only (api)];"
            raise Refusal(403, "cluster_block_exception", block)
        if require_alias and self._aliased(name) is None:
            raise not_an_alias(name)
        index = self._found(name)
        if index is None:
            if self.settings.get("action.auto_create_index") == "false":
                reason = f"no such index [{name}] and [action.auto_create_index] is [false]"
                raise Refusal(404, "index_not_found_exception", reason, index=name, index_uuid="_na_")
            index = self._add_index(name)
        index.check_writable()
        return index


def _apply(settings: dict[str, str], changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        settings.pop(name, None)
        if value is not None:
            settings[name] = value


def _status(answer: dict[str, Any]) -> int:
    return 201 if answer["result"] == "created" else 200


def _on_paths(answer: Any, request: Request) -> Any:
    """Return the parts of an answer that ``filter_path`` names."""
    if (paths := request.options.get("filter_path")) is None:
        return answer
    return _kept(answer, [path.split(".") for path in paths.split(",")])


def _kept(answer: Any, paths: list[list[str]]) -> Any:
    if not isinstance(answer, dict) or any(not path for path in paths):
        return answer
    result = {}
    for name, value in answer.items():
        below = [path[1:] for path in paths if re.fullmatch(path[0].replace("*", ".*"), name)]
        if below and (kept := _kept(value, below)) != {}:
            result[name] = kept
    return result
