"""Checks of a start on OpenSearch: each refuses one thing, and names the next step."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.errors import StartRefused, StoreAnsweredError, StoreFailure
from idalloc_server.store.opensearch import setup
from idalloc_server.store.opensearch.http import OpenSearchHttp
from idalloc_server.store.opensearch.indices import SEQUENCES
from idalloc_server.store.opensearch.setup import StoredIndex, check
from idalloc_server.store.urls import open_store
from tests.support.fake_store import FakeClock
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn

ALIAS = SEQUENCES.alias("ids")


def stored(**settings: str) -> StoredIndex:
    named = {f"index.{name.replace('__', '.')}": value for name, value in settings.items()}
    return StoredIndex("ids-sequences-data", "uuid", SEQUENCES.fields, named)


class TestIndex:
    def test_missing_fields_are_accepted(self) -> None:
        """An index of an older version, or of another program, may lack fields."""
        fields = {name: mapping for name, mapping in SEQUENCES.fields.items() if name != "writes"}
        check(ALIAS, SEQUENCES, StoredIndex("i", "uuid", fields, {}), 1)

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            (
                {"number_of_shards": "2"},
                "one shard; reindex it into an index with one, and move the alias",
            ),
            ({"replication__type": "SEGMENT"}, "reindex it into an index with replication.type DOCUMENT"),
            ({"translog__durability": "ASYNC"}, f"run PUT /{ALIAS}/_settings"),
        ],
    )
    def test_an_unsafe_index_is_refused(self, settings: dict[str, str], why: str) -> None:
        """P1: an index that may lose an acknowledged write is refused, with the next step."""
        with pytest.raises(StartRefused) as caught:
            check(ALIAS, SEQUENCES, stored(**settings), 1)
        assert why in str(caught.value)

    @pytest.mark.parametrize(
        ("nodes", "replicas", "expand", "warned"),
        [
            (3, "0", "false", True),
            (3, "0", "0-2", False),
            (3, "1", "false", False),
            (1, "0", "false", False),
            (None, "0", "false", False),
        ],
    )
    def test_an_index_without_replicas_is_logged(
        self, nodes: int | None, replicas: str, expand: str, warned: bool
    ) -> None:
        """A start on several nodes warns of an index without replicas, with the next step."""
        with capture_logs() as logs:
            check(ALIAS, SEQUENCES, stored(number_of_replicas=replicas, auto_expand_replicas=expand), nodes)
        found = [log["next_step"] for log in logs if log["event"] == "index_without_replica"]
        assert found == [f'PUT /{ALIAS}/_settings {{"index.auto_expand_replicas": "0-2"}}'] * warned


class TestVersions:
    @pytest.mark.parametrize(
        ("distribution", "number", "accepted"),
        [
            ("opensearch", "2.17.0", True),
            ("opensearch", "3.8.0", True),
            ("opensearch", "2.16.9", False),
            ("opensearch", "unknown", False),
            ("elasticsearch", "8.9.0", True),
            ("elasticsearch", "9.1.2", True),
            ("elasticsearch", "8.8.2", False),
            ("elasticsearch", "7.17.0", False),
        ],
    )
    def test_an_old_version_is_refused(self, distribution: str, number: str, accepted: bool) -> None:
        """A version is refused with the oldest ones that can be used."""
        if accepted:
            setup.check_version(distribution, number)
        else:
            with pytest.raises(StartRefused, match=r"; upgrade the cluster to OpenSearch 2\.17 or newer"):
                setup.check_version(distribution, number)

    async def test_the_compatibility_mode_is_no_old_version(self) -> None:
        """An OpenSearch that calls itself 7.10.2 is judged by the versions of its nodes."""
        async with OpenSearchStandIn() as opensearch:
            opensearch.cluster.version = {"number": "7.10.2"}
            opensearch.cluster.node_versions = ["2.19.1"]
            with capture_logs() as logs:
                await start(opensearch)
            assert logs == []
            opensearch.cluster.node_versions = ["2.19.1", "2.11.0"]
            with pytest.raises(StartRefused, match=r"opensearch 2\.11\.0 cannot be used; upgrade the cluster"):
                await start(opensearch)

    async def test_a_hidden_compatibility_mode_is_named(self) -> None:
        """Without the nodes' versions, the error names the setting to remove, and no upgrade."""
        async with OpenSearchStandIn() as opensearch:
            opensearch.cluster.version = {"number": "7.10.2"}
            opensearch.inject(Fault("error", match="/_nodes/_all", status=403, type="security_exception"))
            with pytest.raises(
                StartRefused, match=r"override_main_response_version.*; run PUT /_cluster/sett"
            ) as caught:
                await start(opensearch)
        assert "upgrade" not in str(caught.value)

    async def test_one_old_node_is_refused(self) -> None:
        """Each node of the cluster runs scripts, so each version counts."""
        async with OpenSearchStandIn() as opensearch:
            opensearch.cluster.node_versions = ["3.8.0", "2.11.0"]
            with pytest.raises(StartRefused, match=r"opensearch 2\.11\.0 cannot be used"):
                await start(opensearch)

    async def test_elasticsearch_is_logged_as_untested(self) -> None:
        """A start on Elasticsearch works as on OpenSearch, and logs that it is untested."""
        async with OpenSearchStandIn() as opensearch:
            opensearch.cluster.version = {"number": "8.15.3"}
            opensearch.cluster.tagline = "You Know, for Search"
            opensearch.cluster.node_versions = ["8.15.3"]
            with capture_logs() as logs:
                await start(opensearch)
        assert [log["event"] for log in logs] == ["elasticsearch_is_untested"]


class TestPrivileges:
    @pytest.mark.parametrize(
        ("match", "message"),
        [
            (
                "PUT /idalloc-starts-data",
                "cannot create or complete the index of idalloc-starts: .*; or create it first",
            ),
            ("GET /idalloc-starts", "the settings of idalloc-starts cannot be read: .*; grant the user"),
            ("TOUCH", "the index of idalloc-sequences cannot be used: .*; grant the user read, write, refresh"),
            ("_refresh", "the index of idalloc-sequences cannot be used: .*; grant the user read, write, refresh"),
            ("_search", "the index of idalloc-sequences cannot be used: .*; grant the user read, write, refresh"),
            ("_bulk", "the index of idalloc-sequences cannot be used: .*; grant the user read, write, refresh"),
            ("GET / ", "the version of the cluster cannot be read: .*; grant the user the permission to monitor"),
            ("/_nodes/_local", "the clock of the cluster cannot be read: .*; grant the user the permission to monitor"),
        ],
    )
    async def test_a_missing_privilege_is_refused(self, match: str, message: str) -> None:
        """A start without a privilege is refused with what to grant."""
        async with OpenSearchStandIn() as opensearch:
            # The text of a request without a script ends after its path.
            opensearch.inject(Fault("error", match=match.rstrip(), times=-1, status=403, type="security_exception"))
            with pytest.raises(StartRefused, match=message):
                await start(opensearch)

    async def test_versions_of_nodes_may_be_hidden(self) -> None:
        """A user without the privilege to see the nodes can start."""
        async with OpenSearchStandIn() as opensearch:
            opensearch.inject(Fault("error", match="/_nodes/_all", status=403, type="security_exception"))
            await start(opensearch)
            assert "idalloc-sequences-data" in opensearch.cluster.indices

    async def test_a_wrong_password_is_refused(self) -> None:
        """A start with a wrong password names the setting, and no secret."""
        async with OpenSearchStandIn() as opensearch:
            opensearch.require_password("alice", "right")
            with pytest.raises(StartRefused, match="check the host, and the user and the password") as caught:
                await start(opensearch, "alice:wr0ng@")
        assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "query", "header"),
    [
        ("alice:s%2Fcret@", "", "Basic YWxpY2U6cy9jcmV0"),
        ("", "?api_key=abc%3D%3D", "ApiKey abc=="),
        ("", "?jwt=aaa.bbb.ccc", "Bearer aaa.bbb.ccc"),
        ("alice@", "?password_file={file}", "Basic YWxpY2U6aW4gYSBmaWxl"),
        ("", "?api_key_file={file}", "a token is printable ASCII without spaces"),
    ],
)
async def test_each_kind_of_credentials_is_sent(user: str, query: str, header: str, tmp_path: Path) -> None:
    """Users, API keys and tokens are in the header of every request."""
    file = tmp_path / "secret"
    file.write_text("in a file\n")
    async with OpenSearchStandIn() as opensearch:
        opensearch.authorization = header
        url = f"opensearch://{user}{opensearch.host}/{query.format(file=file)}"
        if header.startswith("a token"):
            with pytest.raises(StartRefused, match=header):
                open_store(url, FakeClock())
            return
        store = open_store(url, FakeClock())
        await store.open()
        assert await store.get("s") is None
        await store.close()


@pytest.mark.parametrize(
    ("status", "answer", "alive"),
    [
        (200, {"master_node": "node"}, True),
        (200, {"master_node": "node", "blocks": {"global": {"6": {}}}}, True),
        (403, {"error": {"type": "security_exception", "reason": "no permissions"}}, False),
        (200, {"master_node": "node", "blocks": {"global": {"1": {}}}}, False),
        (200, {"master_node": None, "blocks": {"global": {"2": {}}}}, False),
        (200, {}, False),
        (503, {"error": {"type": "cluster_manager_not_discovered_exception", "reason": "none"}}, False),
    ],
)
def test_a_host_without_a_cluster_manager_is_not_alive(status: int, answer: dict[str, Any], alive: bool) -> None:
    """P10: a node that was cut off answers reads as before; only its own state shows it."""
    read = OpenSearchHttp.ALIVE.read
    if alive:
        read("h:9200", status, json.dumps(answer).encode())
    else:
        with pytest.raises(StoreFailure):
            read("h:9200", status, json.dumps(answer).encode())


async def test_an_alias_of_two_indices_is_refused() -> None:
    """P1: a counter is in one index."""
    two: dict[str, dict[str, dict[str, object]]] = {
        f"ids-sequences-{number}": {"mappings": {}, "settings": {"index.uuid": "u"}} for number in (1, 2)
    }

    class Answers(OpenSearchHttp):
        async def send_read(self, request: Any) -> Any:
            return request.read("h:9200", 200, json.dumps(two).encode())

    with pytest.raises(StartRefused, match="is an alias of 2 indices: idalloc needs an alias of one index"):
        await setup._read_index(Answers(["h:9200"]), ALIAS)


async def test_a_start_without_an_answer_can_be_repeated() -> None:
    """A cluster that is not ready makes no start refused."""
    async with OpenSearchStandIn() as opensearch:
        opensearch.inject(Fault("error", match="PUT /idalloc-allocations-data", status=503))
        with pytest.raises(StoreFailure):
            await start(opensearch)
        opensearch.inject(Fault("error", match="GET /", status=503))
        with pytest.raises(StoreAnsweredError):
            await start(opensearch)
        await start(opensearch)
        assert opensearch.unknown == []


async def start(opensearch: OpenSearchStandIn, user: str = "") -> None:
    """Open a store, and close it."""
    store = open_store(f"opensearch://{user}{opensearch.host}/", FakeClock())
    try:
        await store.open()
    finally:
        await store.close()
