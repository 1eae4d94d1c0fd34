"""A real OpenSearch with its security plugin: TLS, credentials, and the documented role."""

import asyncio
import base64
import hmac
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog
import trustme

from idalloc_server.backup.counter_index import read_documents
from idalloc_server.domain.errors import StartRefused, StoreAnsweredError, StoreRefused, StoreUnreachable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Demand, RecordedAllocation
from idalloc_server.domain.store.retention import Retention
from idalloc_server.store.cluster.http_connections import Request
from idalloc_server.store.opensearch.http import read_answer
from idalloc_server.store.opensearch.indices import INDICES
from idalloc_server.store.urls import open_index, open_store
from tests.support.fake_store import FakeClock
from tests.support.opensearch.real import SECURED, missing
from tests.support.opensearch.secured import JWT_KEY, PASSWORD, USER, SecuredNode
from tests.support.paths import ROOT
from tests.support.store_rows import grant, requested_row
from tests.support.waiting import until

# Its first start fetches the jars.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(900), pytest.mark.xdist_group("opensearch-secured")]

GUIDE = (ROOT / "docs" / "guides" / "opensearch.md").read_text()
[ROLE] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL) if "permissions" in block]
# What the groups of the documented role contain and the server needs after the first start.
CLUSTER = ("cluster:monitor/main", "cluster:monitor/state", "cluster:monitor/nodes/stats", "indices:data/write/bulk")
INDEX = (
    "indices:admin/get",
    "indices:admin/refresh*",
    "indices:data/read/search",
    "indices:data/write/bulk*",
    "indices:data/write/delete",
    "indices:data/write/index",
    "indices:data/write/update",
)
# What the import of an index needs.
IMPORT_CLUSTER = ("indices:data/read/scroll",)
IMPORT_INDEX = ("indices:monitor/settings/get", "indices:admin/refresh*", "indices:data/read/search")
FIRST_START = ("indices:admin/create", "indices:admin/aliases")
SECRET = f"{USER}:{quote(PASSWORD, safe='')}@"

Open = Callable[..., Awaitable[Store]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """A node with the plugin; skips the tests without Java or Maven."""
    if reason := missing(SECURED):
        pytest.skip(f"{reason}, nor is its security plugin")
    with SecuredNode(tmp_path_factory.mktemp("secured")) as started:
        started.put_role(ROLE)
        yield started


@pytest.fixture
async def opened(node: SecuredNode) -> AsyncIterator[Open]:
    """Open stores, with the CA and the user by default."""
    stores: list[Store] = []
    own = f"idalloc-{uuid.uuid4().hex[:8]}"
    node.put_role(ROLE)

    async def open_it(user: str = SECRET, query: str = f"&ca={node.certificates.ca}", prefix: str = own) -> Store:
        store = open_store(f"opensearch://{user}{node.host}/?prefix={prefix}{query}", FakeClock(), timeout=20)
        stores.append(store)
        await store.open()
        return store

    yield open_it
    for store in stores:
        await store.close()
    # aiohttp closes a connection with TLS later, and on a busy machine after the end of the test.
    transports: Mapping[int, object] = getattr(asyncio.get_running_loop(), "_transports", {})
    await until(
        lambda: all(getattr(each, "_sock", None) is None for each in list(transports.values())),
        "all connections are closed",
    )


async def use(store: Store) -> None:
    """Call everything that a server does."""
    await store.create(requested_row("s"))
    assert (await grant(store, "s", 10)).last_value == 10
    assert [row.name for row in await store.list("", "", 9, with_deleted=True, with_periods=False)] == ["s"]
    await store.record([RecordedAllocation("r", "s", 1, 10, 1, 1, "", 0, "node")])
    assert await store.recorded("r")
    newest = await store.newest_recorded()
    assert newest
    assert await store.forget_recorded(Retention([(newest, 1e6)], 1.0), 10) == 1
    claim = await store.claim_start(3, 1000, "me", 60.0)
    assert await store.claimed_starts() == {3: claim.start_timestamp}
    assert await store.now()


async def test_the_documented_role_is_enough(opened: Open) -> None:
    """The role of the guide creates the indices and runs all requests of a server."""
    await use(await opened())
    await opened()


async def test_the_least_permissions_are_enough(node: SecuredNode, opened: Open) -> None:
    """After a first start by another user, a start and all requests need only these permissions."""
    await opened()
    node.grant(CLUSTER, INDEX)
    await use(await opened())


async def test_an_older_index_serves_with_the_least_permissions(node: SecuredNode, opened: Open) -> None:
    """P10: a user who may not change the mapping of an older index serves without the demand."""
    prefix = f"idalloc-{uuid.uuid4().hex[:8]}"
    for index in INDICES.values():
        made = index.definition(prefix)
        for field in index.optional:
            del made["mappings"]["properties"][field]
        node.request("PUT", f"/{index.new_name(prefix)}", made)
    node.grant(CLUSTER, INDEX)
    with structlog.testing.capture_logs() as lines:
        store = await opened(prefix=prefix)
    [line] = [line for line in lines if line["event"] == "demand_not_kept"]
    assert "no permissions for [indices:admin/mapping/put]" in line["error"]
    await use(store)
    granted = await store.grant("s", 1, 1000, demand=Demand(12.5, 10, 1_700_000_000))
    assert granted is not None
    assert (granted.granted, granted.demand) == (1, None)


@pytest.mark.parametrize("lacking", [*CLUSTER, *INDEX])
async def test_each_missing_permission_is_named(node: SecuredNode, opened: Open, lacking: str) -> None:
    """A user without one permission cannot start, and the error names that permission."""
    await opened()
    node.grant([each for each in CLUSTER if each != lacking], [each for each in INDEX if each != lacking])
    with pytest.raises(StartRefused) as caught:
        await opened()
    step = str(caught.value).rpartition("; ")[2]
    if lacking in CLUSTER:
        assert step == f"grant the user the cluster permission {lacking}"
    else:
        named = re.fullmatch(r"grant the user (\S+) on idalloc-[0-9a-f]+-(sequences|starts)\*", step)
        assert named, step
        assert named[1].startswith(lacking.rstrip("*"))


async def test_a_first_start_names_its_permissions(node: SecuredNode, opened: Open) -> None:
    """A user who may not create indices is refused with the permissions; nothing is created."""
    node.grant(CLUSTER, INDEX)
    needed = re.escape(f"grant the user {', '.join(FIRST_START)} on ")
    with pytest.raises(StartRefused, match=f"{needed}.*; or create it first as another user"):
        await opened()
    node.grant(CLUSTER, [*INDEX, *FIRST_START])
    await use(await opened())


@pytest.mark.parametrize("lacking", ["", *IMPORT_CLUSTER, *IMPORT_INDEX])
async def test_an_import_names_a_missing_permission(node: SecuredNode, lacking: str) -> None:
    """An import of an index needs only these permissions; the error names a missing one."""
    index = f"recipe-{uuid.uuid4().hex[:8]}"
    node.grant(["*"], ["*"])
    url = f"opensearch://{SECRET}{node.host}/{index}?ca={node.certificates.ca}"
    http, _ = open_index(url)
    given = [[each for each in permissions if each != lacking] for permissions in (IMPORT_CLUSTER, IMPORT_INDEX)]
    try:
        await http.send_read(Request("PUT", f"/{index}/_doc/a", b'{"value": 7}', partial(read_answer, parse=dict)))
        node.grant(*given)
        if not lacking:
            assert len(await read_documents(http, index, clients_stopped=True)) == 1
            return
        what = f"the cluster permission {lacking}" if lacking in IMPORT_CLUSTER else lacking.rstrip("*")
        with pytest.raises(StoreRefused, match=re.escape(f"; grant the user {what}")):
            await read_documents(http, index, clients_stopped=True)
    finally:
        await http.close()


async def test_another_prefix_is_refused(opened: Open) -> None:
    """A prefix outside of the role's patterns is refused by name."""
    with pytest.raises(StartRefused, match=r"grant the user indices:admin/get on other-sequences\*$"):
        await opened(prefix="other")


async def test_a_permission_lost_while_running_is_named(node: SecuredNode, opened: Open) -> None:
    """STORE_REFUSED: the server continues once it has the permission; no id is lost or repeated."""
    store = await opened()
    await store.create(requested_row("s"))
    assert (await grant(store, "s", 10)).last_value == 10
    node.grant(CLUSTER, [each for each in INDEX if "update" not in each])
    with pytest.raises(StoreRefused, match=r"; grant the user indices:data/write/update on idalloc-\w+-sequences\*$"):
        await store.grant("s", 10, 1000)
    node.put_role(ROLE)
    assert (await grant(store, "s", 10)).last_value == 20


async def test_a_changed_password_is_first_unavailable(node: SecuredNode, opened: Open) -> None:
    """STORE_UNAVAILABLE: nothing is applied; the server continues with the right password."""
    store = await opened()
    await store.create(requested_row("s"))
    node.put_role(ROLE, password="an-Other-long-passw0rd")
    with pytest.raises(StoreAnsweredError, match="answered 401: Unauthorized"):
        await store.grant("s", 10, 1000)
    node.put_role(ROLE)
    assert (await grant(store, "s", 10)).last_value == 10


@pytest.mark.parametrize(
    ("user", "query"),
    [
        (f"{USER}:wr0ng@", ""),
        ("", ""),
        ("", "&api_key=wr0ng"),
        ("", "&jwt=wr0ng"),
    ],
    ids=["password", "none", "api key", "token"],
)
async def test_wrong_credentials_are_refused(node: SecuredNode, opened: Open, user: str, query: str) -> None:
    """A start with wrong credentials names what to check, and shows no secret."""
    with pytest.raises(StartRefused, match=r"check the host, and the user and the password.*answered 401") as caught:
        await opened(user, f"&ca={node.certificates.ca}{query}")
    assert "wr0ng" not in str(caught.value)


async def test_a_password_file_is_accepted(node: SecuredNode, opened: Open, tmp_path: Path) -> None:
    """The password may be in a file, with any characters."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    await use(await opened(f"{USER}@", f"&ca={node.certificates.ca}&password_file={file}"))


async def test_a_token_is_accepted(node: SecuredNode, opened: Open, tmp_path: Path) -> None:
    """A JSON Web Token in a file takes the place of user and password."""
    file = tmp_path / "token"
    file.write_text(token())
    node.map_role("backend")
    await use(await opened("", f"&ca={node.certificates.ca}&jwt_file={file}"))


async def test_an_untrusted_certificate_gets_no_password(opened: Open, tmp_path: Path) -> None:
    """A node whose certificate another CA signed is refused with the next step."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    for query in (f"&ca={tmp_path / 'other.pem'}", "&tls=true"):
        with pytest.raises(StoreUnreachable, match=r"its certificate is refused: .*; set ca in the URL to the file"):
            await opened(query=query)


def token() -> str:
    """Return a token of a user with the role ``backend``."""
    parts = [{"alg": "HS512", "typ": "JWT"}, {"sub": "someone", "roles": "backend"}]
    head = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    return f"{head}.{encoded(hmac.digest(JWT_KEY, head.encode(), 'sha512'))}"


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()
