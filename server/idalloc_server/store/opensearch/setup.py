"""Creates idalloc's indices at the first start, and refuses an unsafe cluster or index.

Every step reads first and creates only what is missing. Any number of processes may start at once,
and a user without the privilege to create indices can start if they are complete. An alias that is
missing later is refused: an empty index in its place would begin all sequences again.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from idalloc_server.domain.errors import StartRefused, StoreAnsweredError, StoreRefused
from idalloc_server.store import packed_settings
from idalloc_server.store.cluster.connections import Request
from idalloc_server.store.cluster.transport import raise_if_server_failed
from idalloc_server.store.opensearch import checks
from idalloc_server.store.opensearch.answers import INDEX_EXISTS, AliasMissing, read_answer
from idalloc_server.store.opensearch.checks import StoredIndex
from idalloc_server.store.opensearch.http import OpenSearchHttp
from idalloc_server.store.opensearch.indices import Index
from idalloc_server.store.opensearch.opened_indices import OpenedIndex
from idalloc_server.store.opensearch.requests import MAX_HITS, Requests, json_body

_log = structlog.get_logger(__name__)

_MIN_OPENSEARCH = (2, 17)
# Older ones may retry an item of _bulk without end.
_MIN_ELASTICSEARCH = (8, 9)
_SUPPORTED = "OpenSearch 2.17 or newer, or to Elasticsearch 8.9 or newer, which is not tested"
_END_COMPATIBILITY_MODE = (
    'run PUT /_cluster/settings {"persistent": {"compatibility.override_main_response_version": null}}, or grant the '
    "user the cluster permission cluster:monitor/nodes/info"
)
_MAX_ATTEMPTS = 3
# The settings that name a lifecycle policy, and the request that removes it.
_ISM_POLICY = "index.plugins.index_state_management.policy_id"
_POLICY_SETTINGS = {
    _ISM_POLICY: "POST /_plugins/_ism/remove/{}",
    "index.opendistro.index_state_management.policy_id": "POST /_plugins/_ism/remove/{}",
    "index.lifecycle.name": "POST /{}/_ilm/remove",
}
_HTTP_FORBIDDEN = 403


def _request(method: str, path: str, parse: Any, body: object = None, none_for: tuple[str, ...] = ()) -> Request[Any]:
    subject = "" if path.startswith("/_") else path.partition("?")[0].strip("/").removesuffix("-data")
    read = partial(read_answer, parse=parse, subject=subject, none_for=none_for)
    return Request(method, path, None if body is None else json_body(body), read, subject)


class _Release(NamedTuple):
    """The release that a cluster reports."""

    distribution: str
    number: str
    in_compatibility_mode: bool  # an OpenSearch that reports a version of Elasticsearch


def _release(answer: Any) -> _Release:
    number, distribution = str(answer["version"]["number"]), answer["version"].get("distribution")
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


async def set_up(http: OpenSearchHttp, requests: Requests, prefix: str, indices: Sequence[Index]) -> None:
    """Check the cluster and create the indices and fields that are missing.

    ``requests`` gets what is found. The order of ``indices`` is that of their creation: if the last
    one exists, all were created once.

    Raises:
        StartRefused: The version, an index or a privilege of the user is unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    nodes = await _check_versions(http)
    await _check_state(http)
    await _check_clock(http)
    await _create_missing(http, requests, prefix, indices)
    for index in indices:
        alias = index.alias(prefix)
        found = await _read_index(http, alias)
        if found is None:
            raise _missing(alias)
        await _check_policy(http, found)
        requests.set_window(index, int(found.settings.get("index.max_result_window", MAX_HITS)))
        for field, mapping in checks.check(alias, index, found, nodes).items():
            await _send_creation(http, _put_field(alias, field, mapping), alias)
        has_nonce = await _add_optional(http, alias, index, "nonce", found)
        requests.opened.add(alias, OpenedIndex(found.name, found.uuid), has_nonce=has_nonce)
        if "demand" in index.optional:
            requests.keeps_demand = await _add_optional(http, alias, index, "demand", found)
        await _check_privileges(http, requests, index, alias)
    http.set_identity_check(requests.opened.check_request())


def check_version(distribution: str, number: str) -> None:
    """Refuse a version that is too old.

    Raises:
        StartRefused: The version is unsupported or unknown.
    """
    found = re.match(r"(\d+)\.(\d+)", number)
    parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if parts < (_MIN_OPENSEARCH if distribution == "opensearch" else _MIN_ELASTICSEARCH):
        raise StartRefused("store", f"{distribution} {number} cannot be used; upgrade the cluster to {_SUPPORTED}")


async def _check_versions(http: OpenSearchHttp) -> int | None:
    """Check all nodes' versions; return their number, or None if the user may not see them."""
    release = await _read_release(http)
    if not release.in_compatibility_mode:
        check_version(release.distribution, release.number)
    if release.distribution != "opensearch":
        _log.warning("elasticsearch_is_untested", version=release.number)
    versions = await _read_node_versions(http, release)
    if versions is None:
        return None
    for version in versions:
        check_version(release.distribution, version)
    return len(versions)


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


async def _check_state(http: OpenSearchHttp) -> None:
    """Raise ``StoreFailure`` until the cluster has a manager, and its state with the indices."""
    try:
        await http.send_read(http.ALIVE)
    except StoreRefused as error:
        raise StartRefused("store", f"the state of the cluster cannot be read: {error}") from error


async def _check_clock(http: OpenSearchHttp) -> None:
    try:
        await http.send_read(CLOCK)
    except StoreRefused as error:
        raise StartRefused("store", f"the clock of the cluster cannot be read: {error}") from error


async def _create_missing(http: OpenSearchHttp, requests: Requests, prefix: str, indices: Sequence[Index]) -> None:
    """Create the indices if none of them was in use.

    While the last one is missing, a start may not have finished, and it may not be created if
    another index has documents.
    """
    last = indices[-1]
    for _ in range(_MAX_ATTEMPTS):
        if await _read_index(http, last.alias(prefix)) is not None:
            return
        for index in indices:
            alias = index.alias(prefix)
            if await _read_index(http, alias) is None:
                path = f"/{index.new_name(prefix)}"
                create = _request("PUT", path, dict, index.definition(prefix), none_for=(INDEX_EXISTS,))
                await _send_creation(http, create, alias)
            elif index is not last and await _has_documents(http, requests, index):
                raise StartRefused(
                    "store",
                    f"the alias {last.alias(prefix)} is missing, but {alias} has documents; restore it from a snapshot,"
                    " or choose another prefix (?prefix=…)",
                )
    if await _read_index(http, last.alias(prefix)) is None:
        raise StartRefused(
            "store",
            f"the index {last.new_name(prefix)} exists without the alias {last.alias(prefix)}; add the alias if the "
            "index is idalloc's, or choose another prefix (?prefix=…)",
        )


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


async def _add_optional(http: OpenSearchHttp, alias: str, index: Index, field: str, found: StoredIndex) -> bool:
    """Add an optional field; without the privilege for that, log it and return False."""
    mapping = index.optional[field]
    if found.fields.get(field, {}).get("type") == mapping["type"]:
        return True
    put = _put_field(alias, field, mapping)
    try:
        await http.send_write(put)
    except StoreRefused as error:
        if field == "nonce":
            event, why = "nonces_are_off", "answers that a proxy mixed up are recognized by their key and index only"
        else:
            event, why = "demand_not_kept", packed_settings.WITHOUT_DEMAND
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


def _put_field(alias: str, field: str, mapping: Mapping[str, Any]) -> Request[Any]:
    return _request("PUT", f"/{alias}/_mapping", dict, {"properties": {field: mapping}})


async def _has_documents(http: OpenSearchHttp, requests: Requests, index: Index) -> bool:
    await http.send_read(requests.refresh(index))
    count = await http.send_read(requests.count(index))
    return count > 0


async def _check_privileges(http: OpenSearchHttp, requests: Requests, index: Index, alias: str) -> None:
    """Check the privileges by writes of a row that does not exist, and a search.

    Raises:
        StartRefused: The user lacks a privilege, or the index is blocked or closed.
    """
    try:
        await http.send_write(requests.touch_missing(index))
        await http.send_write(requests.change_missing(index))
        await http.send_read(requests.refresh(index))
        await http.send_read(requests.count(index))
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


def _missing(alias: str) -> StartRefused:
    return StartRefused(
        "store",
        f"the alias {alias} is missing, but others of idalloc are there; restore it from a snapshot, since an empty "
        "one would issue ids again",
    )
