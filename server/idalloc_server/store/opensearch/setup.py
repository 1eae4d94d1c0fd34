"""Creates idalloc's indices at the first start, and refuses an unsafe cluster or index.

Every step reads first and creates only what is missing. Any number of processes may start at once,
and a user without the privilege to create indices can start if they are complete.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import structlog

from idalloc_server.domain.errors import StartRefused, StoreAnsweredError, StoreRefused
from idalloc_server.domain.store.identity import SEQUENCES, Part
from idalloc_server.store.cluster.http_connections import Request
from idalloc_server.store.cluster.http_transport import raise_if_server_failed
from idalloc_server.store.opensearch.http import INDEX_EXISTS, AliasMissing, OpenSearchHttp, read_answer
from idalloc_server.store.opensearch.indices import Index
from idalloc_server.store.opensearch.requests import MAX_HITS, Requests
from idalloc_server.store.opensearch.results import OpenedIndex
from idalloc_server.store.stored_rows import WITHOUT_DEMAND

_log = structlog.get_logger(__name__)

_MIN_OPENSEARCH = (2, 17)
# Older ones may retry an item of _bulk without end.
_MIN_ELASTICSEARCH = (8, 9)
_SUPPORTED = "OpenSearch 2.17 or newer, or to Elasticsearch 8.9 or newer, which is not tested"
_END_COMPATIBILITY_MODE = (
    'run PUT /_cluster/settings {"persistent": {"compatibility.override_main_response_version": null}}, or grant the '
    "user the cluster permission cluster:monitor/nodes/info"
)
# The settings that name a lifecycle policy, and the request that removes it.
_ISM_POLICY = "index.plugins.index_state_management.policy_id"
_POLICY_SETTINGS = {
    _ISM_POLICY: "POST /_plugins/_ism/remove/{}",
    "index.opendistro.index_state_management.policy_id": "POST /_plugins/_ism/remove/{}",
    "index.lifecycle.name": "POST /{}/_ilm/remove",
}
_HTTP_FORBIDDEN = 403
_BLOCKS = ("read", "write", "read_only", "read_only_allow_delete", "metadata")


@dataclass(frozen=True)
class StoredIndex:
    """An index of the cluster."""

    name: str
    uuid: str  # its UUID, which no other index has
    fields: Mapping[str, Mapping[str, Any]]  # the mapping of each field
    settings: Mapping[str, Any]  # its settings, with defaults, by their full names
    # The options of ``_source`` and ``_routing`` in its mapping; empty for the default.
    meta_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aliases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the options of each alias
    meta: Mapping[str, Any] = field(default_factory=dict)  # the ``_meta`` of its mapping

    @property
    def store(self) -> str:
        """The name of the store that it belongs to; empty without one."""
        return str(self.meta.get("store", ""))

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting in lower case, by its name without ``index.``."""
        return str(self.settings.get(f"index.{name}", default)).lower()


def check(alias: str, index: Index, found: StoredIndex, nodes: int | None) -> None:
    """Check an existing index.

    If the cluster has several nodes, an index without replicas logs a warning.

    Raises:
        StartRefused: The index cannot be used.
    """
    for problem in _problems_of_settings(alias, found):
        raise StartRefused("store", f"the index {found.name}: {problem}")
    if re.search(r"-\d+$", found.name):
        moved = f"{alias}-data"
        swap = [{"remove": {"index": found.name, "alias": alias}}, {"add": {"index": moved, "alias": alias}}]
        _log.warning(
            "index_can_roll_over",
            why="after a rollover of its alias every call is refused, since sequences would begin again",
            index=found.name,
            next_step=f'stop all servers, then send PUT /{found.name}/_settings {{"index.blocks.write": true}}, '
            f'POST /{found.name}/_clone/{moved} {{"settings": {{"index.blocks.write": null}}}} and '
            f"POST /_aliases {json.dumps({'actions': swap})}",
        )
    has_replica = (
        found.setting("number_of_replicas") != "0" or found.setting("auto_expand_replicas", "false") != "false"
    )
    if nodes is not None and nodes > 1 and not has_replica:
        _log.warning(
            "index_without_replica",
            why="its rows are lost with its node",
            index=found.name,
            next_step=f'PUT /{alias}/_settings {{"index.auto_expand_replicas": "0-2"}}',
        )
    for problem in _problems_of_mapping(index, found):
        raise StartRefused("store", f"the index {found.name}: {problem}")


def _problems_of_settings(alias: str, found: StoredIndex) -> Iterator[str]:
    # Lists and exports would lack the rows that searches of the alias leave out.
    for option in ("filter", "search_routing"):
        if option in found.aliases.get(alias, {}):
            plain = {"actions": [{"add": {"index": found.name, "alias": alias}}]}
            yield (
                f"its alias {alias} has a {option}, which hides rows; replace the alias by one without it: "
                f"POST /_aliases {json.dumps(plain)}"
            )
    put = f"run PUT /{alias}/_settings"
    if found.setting("translog.durability", "request") != "request":
        yield (
            "a crash loses acknowledged writes, as its translog.durability is async; "
            f'{put} {{"index.translog.durability": "request"}}'
        )
    for block in _BLOCKS:
        if found.setting(f"blocks.{block}", "false") == "true":
            yield f'its block {block} is set; free the disk if it is full, then {put} {{"index.blocks.{block}": null}}'
    if found.setting("replication.type") == "segment":
        yield (
            "its replication.type is SEGMENT, whose replicas lag behind the primary; reindex it into an index with "
            "replication.type DOCUMENT, and move the alias"
        )
    if found.setting("number_of_shards", "1") != "1":
        yield "it must have one shard; reindex it into an index with one, and move the alias"
    for pipeline in ("default_pipeline", "final_pipeline"):
        if found.setting(pipeline, "_none") != "_none":
            yield f'its {pipeline} could change rows; {put} {{"index.{pipeline}": "_none"}}'


def _problems_of_mapping(index: Index, found: StoredIndex) -> Iterator[str]:
    # An index template may lose fields, or need more than a row's key.
    source = found.meta_fields.get("_source", {})
    routing = found.meta_fields.get("_routing", {})
    loses_fields = source.get("enabled") is False or source.get("includes") or source.get("excludes")
    for name, meta, is_wrong in (("_source", source, loses_fields), ("_routing", routing, routing.get("required"))):
        if is_wrong:
            yield (
                f"the {name} of its mapping, {json.dumps(meta)}, loses or hides rows; remove it from the index "
                "template, then delete the index if it has no documents, or choose another prefix (?prefix=…)"
            )
    for name, mapping in index.fields.items():
        existing = found.fields.get(name, mapping)
        for option in ("type", "coerce"):
            if option in mapping and existing.get(option) != mapping[option]:
                wrong = "its default" if existing.get(option) is None else str(existing[option]).lower()
                yield (
                    f"its field {name} must have {option} {str(mapping[option]).lower()}, not {wrong}; "
                    "choose another prefix (?prefix=…)"
                )


def _request(method: str, path: str, parse: Any, body: object = None, none_for: tuple[str, ...] = ()) -> Request[Any]:
    subject = "" if path.startswith("/_") else path.partition("?")[0].strip("/").removesuffix("-data")
    read = partial(read_answer, parse=parse, subject=subject, none_for=none_for)
    return Request(method, path, None if body is None else json.dumps(body).encode(), read=read, subject=subject)


class _Release(NamedTuple):
    """The release that a cluster reports."""

    distribution: str
    number: str
    in_compatibility_mode: bool  # an OpenSearch that reports a version of Elasticsearch


def _release(answer: Any) -> _Release:
    number = str(answer["version"]["number"])
    distribution = answer["version"].get("distribution")
    if distribution is None and "OpenSearch" in str(answer.get("tagline")):
        return _Release("opensearch", number, in_compatibility_mode=True)
    return _Release(str(distribution or "elasticsearch"), number, in_compatibility_mode=False)


def _stored_indices(answer: Any) -> list[StoredIndex]:
    return [
        StoredIndex(
            name=name,
            uuid=str(content["settings"]["index.uuid"]),
            fields=dict(content["mappings"].get("properties", {})),
            settings={**content.get("defaults", {}), **content["settings"]},
            meta_fields={field: dict(content["mappings"].get(field, {})) for field in ("_source", "_routing")},
            aliases=content.get("aliases", {}),
            meta=content["mappings"].get("_meta", {}),
        )
        for name, content in answer.items()
    ]


_VERSION: Request[_Release] = _request("GET", "/", _release)
_NODES: Request[list[str]] = _request(
    "GET",
    "/_nodes/_all/process?filter_path=nodes.*.version",
    lambda answer: [node["version"] for node in answer["nodes"].values()],
)
# The clock of the node that answers.
CLOCK: Request[float] = _request(
    "GET",
    "/_nodes/_local/stats/process?filter_path=nodes.*.timestamp",
    lambda answer: max(node["timestamp"] for node in answer["nodes"].values()) / 1000,
)


async def check_cluster(http: OpenSearchHttp) -> int | None:
    """Check the versions, the state and the clock of the cluster.

    Returns:
        The number of its nodes; None if the user may not see them.

    Raises:
        StartRefused: A version or a privilege of the user is unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    release = await _read_release(http)
    if not release.in_compatibility_mode:
        check_version(release.distribution, release.number)
    if release.distribution != "opensearch":
        _log.warning("elasticsearch_is_untested", version=release.number)
    versions = await _read_node_versions(http, release)
    for version in versions or ():
        check_version(release.distribution, version)
    # Fails until the cluster has a manager, and its state with the indices.
    for request, what in ((http.ALIVE, "state"), (CLOCK, "clock")):
        try:
            await http.send_read(request)
        except StoreRefused as error:
            raise StartRefused("store", f"the {what} of the cluster cannot be read: {error}") from error
    return None if versions is None else len(versions)


async def inspect(http: OpenSearchHttp, requests: Requests, index: Index, *, nodes: int | None) -> Part:
    """Check an index, and return what it has of a store. A missing one has nothing.

    Raises:
        StartRefused: The index is unsuitable, or cannot be read.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    alias = index.alias(requests.prefix)
    found = await _read_index(http, alias)
    has_rows = False
    if found is not None:
        await _check_policy(http, found)
        check(alias, index, found, nodes)
        with usable(alias):
            await http.send_read(requests.refresh(index))
            has_rows = await http.send_read(requests.count(index)) > 0
    lacks = [name for name in index.fields if found is None or name not in found.fields]
    store = found.store if found else ""
    return Part(index.part, f"the index of {alias}", index.fields.keys(), lacks, store=store, has_rows=has_rows)


async def set_up(
    http: OpenSearchHttp, requests: Requests, index: Index, *, nodes: int | None, store: str | None
) -> str:
    """Give ``requests`` what is found of an index.

    Unless ``store`` is None, create it if it is missing, add missing fields, and give it the name
    of its store; empty for an index without one.

    Returns:
        The name of the store that it holds; another process may have created it.

    Raises:
        StartRefused: A privilege of the user is missing, or the index is unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    alias = index.alias(requests.prefix)
    found = await _read_index(http, alias)
    if found is None and store is not None:
        found = await _create(http, requests.prefix, index, store)
        await _check_policy(http, found)
        check(alias, index, found, nodes)
    if found is None:
        raise StartRefused("store", f"the alias {alias} is missing; put it back")
    requests.windows[index.suffix] = int(found.settings.get("index.max_result_window", MAX_HITS))
    put_mapping = partial(_request, "PUT", f"/{alias}/_mapping", dict)
    for name, mapping in index.fields.items() if store is not None else ():
        if name not in found.fields:
            await _send_creation(http, put_mapping({"properties": {name: mapping}}), alias)
    has = {
        field: found.fields.get(field, {}).get("type") == mapping["type"]
        or (
            store is not None
            and await _send_optional(http, put_mapping({"properties": {field: mapping}}), found, field)
        )
        for field, mapping in index.optional.items()
    }
    requests.opened[alias] = OpenedIndex(found.name, found.uuid, has_nonce=has["nonce"])
    requests.keeps_demand = has.get("demand", requests.keeps_demand)
    with usable(alias):  # the user has all privileges
        for write in requests.change_missing(index):
            await http.send_write(write)
        await http.send_read(requests.refresh(index))
        await http.send_read(requests.count(index))
    # Another process may have created the sequences: then theirs is the name.
    if not store or found.store == store or (found.store and index.part == SEQUENCES):
        return found.store
    named = put_mapping({"_meta": {**found.meta, "store": store}})
    return store if await _send_optional(http, named, found, "name") else found.store


async def _create(http: OpenSearchHttp, prefix: str, index: Index, store: str) -> StoredIndex:
    alias = index.alias(prefix)
    name = index.new_name(prefix)
    definition = index.definition(prefix, store)
    await _send_creation(http, _request("PUT", f"/{name}", dict, definition, none_for=(INDEX_EXISTS,)), alias)
    if (found := await _read_index(http, alias)) is None:
        raise StartRefused(
            "store",
            f"the index {name} exists without the alias {alias}; add the alias if the index is idalloc's, or choose "
            "another prefix (?prefix=…)",
        )
    return found


def check_version(distribution: str, number: str) -> None:
    """Refuse a version that is too old.

    Raises:
        StartRefused: The version is unsupported or unknown.
    """
    found = re.match(r"(\d+)\.(\d+)", number)
    parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if parts < (_MIN_OPENSEARCH if distribution == "opensearch" else _MIN_ELASTICSEARCH):
        raise StartRefused("store", f"{distribution} {number} cannot be used; upgrade the cluster to {_SUPPORTED}")


async def _read_release(http: OpenSearchHttp) -> _Release:
    try:
        return await http.send_read(_VERSION)
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)
        if error.http_status == _HTTP_FORBIDDEN and isinstance(error, StoreRefused):
            raise StartRefused("store", f"the version of the cluster cannot be read: {error}") from error
        raise StartRefused(
            "store", f"check the host, and the user and the password or api_key of the URL: {error}"
        ) from error


async def _read_node_versions(http: OpenSearchHttp, release: _Release) -> list[str] | None:
    """Return every node's version, or None if the user may not see them.

    Raises:
        StartRefused: They are unknown, and the cluster is in compatibility mode.
    """
    try:
        return await http.send_read(_NODES)
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)
        if release.in_compatibility_mode:
            raise StartRefused(
                "store",
                f"the cluster calls itself {release.number} by compatibility.override_main_response_version, and the "
                f"versions of its nodes cannot be read: {error}; {_END_COMPATIBILITY_MODE}",
            ) from error
        return None


async def _read_index(http: OpenSearchHttp, alias: str) -> StoredIndex | None:
    """Return what an alias refers to, or None if there is none.

    Raises:
        StartRefused: It is an index, or refers to several, or cannot be read.
    """
    path = f"/{alias}?include_defaults=true&flat_settings=true"
    try:
        found: list[StoredIndex] = await http.send_read(_request("GET", path, _stored_indices))
    except AliasMissing:
        return None
    except StoreRefused as error:
        raise StartRefused("store", f"the settings of {alias} cannot be read: {error}") from error
    names = [each.name for each in found]
    if alias in names or len(names) != 1:
        problem = "an index, not an alias" if alias in names else f"an alias of {len(names)} indices"
        raise StartRefused(
            "store", f"{alias} is {problem}: idalloc needs an alias of one index; choose another prefix (?prefix=…)"
        )
    return found[0]


async def _check_policy(http: OpenSearchHttp, found: StoredIndex) -> None:
    """Refuse an index with a lifecycle policy, which may roll it over or delete it."""
    policies = {found.settings.get(name): remove for name, remove in _POLICY_SETTINGS.items()}
    explain = _request("GET", f"/_plugins/_ism/explain/{found.name}", lambda answer: answer.get(found.name) or {})
    try:
        managed = await http.send_read(explain)
    except (StoreAnsweredError, StoreRefused) as error:
        # 400 or 404: the cluster has no such plugin.
        raise_if_server_failed(error)
        if error.http_status == _HTTP_FORBIDDEN:
            _log.warning(
                "lifecycle_policy_unknown",
                index=found.name,
                error=str(error),
                next_step="grant the user cluster:admin/opendistro/ism/managedindex/explain, or look for a policy: "
                f"GET /_plugins/_ism/explain/{found.name}",
            )
    else:
        policies[managed.get(_ISM_POLICY)] = _POLICY_SETTINGS[_ISM_POLICY]
    for policy in filter(None, policies):
        raise StartRefused(
            "store",
            f"the index {found.name} has the lifecycle policy {policy!r}, which may replace or delete it: run "
            f"{policies[policy].format(found.name)}",
        )


async def _send_optional(http: OpenSearchHttp, put: Request[Any], found: StoredIndex, what: str) -> bool:
    """Change a mapping; without the privilege for that, log that ``what`` is off, return False."""
    event = "store_name_not_kept"
    why = "an exchange of this index for another one is not noticed by a start"
    if what == "nonce":
        event = "nonces_are_off"
        why = "answers that a proxy mixed up are recognized by their key and index only"
    elif what == "demand":
        event = "demand_not_kept"
        why = WITHOUT_DEMAND
    try:
        await http.send_write(put)
    except StoreRefused as error:
        _log.warning(
            event,
            why=why,
            index=found.name,
            error=str(error),
            next_step=f"send {put.method} {put.path} {(put.body or b'').decode()} once as an administrator, then "
            "restart the servers",
        )
        return False
    return True


@contextmanager
def usable(alias: str) -> Iterator[None]:
    """Raise ``StartRefused`` if the user lacks a privilege, or the index is blocked or closed."""
    try:
        yield
    except StoreRefused as error:
        raise StartRefused("store", f"the index of {alias} cannot be used: {error}") from error


async def _send_creation(http: OpenSearchHttp, request: Request[Any], alias: str) -> None:
    """Send a request that creates something; a refusal is one of the start."""
    try:
        await http.send_write(request)
    except StoreRefused as error:
        raise StartRefused(
            "store", f"cannot create or complete the index of {alias}: {error}; or create it first as another user"
        ) from error
