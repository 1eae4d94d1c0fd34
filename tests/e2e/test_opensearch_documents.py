"""What guides and runbook say about OpenSearch, run as written on a real one."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import run_page
from tests.support.opensearch.real import RELEASES, OpenSearchNode, missing
from tests.support.operations import Operator, operator

RUNBOOK = "docs/operations/runbook.md"
STOP_CLIENTS = "Stop the clients of a counter document"
IMPORT = 'idalloc store import --from-elasticsearch "opensearch://${OPENSEARCH#*//}/$INDEX"'
# The port of OpenSearch in the pages.
PORT = 9200

# The first start of OpenSearch fetches its jars.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(900), pytest.mark.xdist_group("opensearch-documents")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchNode]:
    """A real OpenSearch; skips the test without Java or Maven."""
    release = RELEASES["3.8.0"]
    if reason := missing(release):
        pytest.skip(reason)
    with OpenSearchNode(release, tmp_path_factory.mktemp("opensearch")) as started:
        yield started


@pytest.fixture
def ports(node: OpenSearchNode) -> Iterator[dict[int, int]]:
    """Where the OpenSearch of the pages is; its indices are removed after the test."""
    yield {PORT: int(node.host.rpartition(":")[2])}
    names = [each["index"] for each in send(node, "GET", "/_cat/indices?format=json")]
    send(node, "DELETE", f"/{','.join(names)}?ignore_unavailable=true")


@pytest.fixture
def by_the_runbook(ports: dict[int, int], tmp_path: Path) -> Iterator[Operator]:
    """An operator who has read the runbook's first section, and whose store is OpenSearch."""
    with operator(RUNBOOK, tmp_path, ports) as made:
        made.run_all("Before you begin")
        # A new OpenSearch on a busy machine takes seconds to create an index.
        made.set(IDALLOC_STORE_TIMEOUT="20s", IDALLOC_LEASE_TTL="21s")
        made.set(IDALLOC_STORE=f"opensearch://127.0.0.1:{PORT}/?prefix=idalloc")
        made.serve()
        yield made


def send(node: OpenSearchNode, method: str, path: str, body: object = None) -> Any:
    """Send a request, and return the answer."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{node.host}{path}", content, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def advance_counter(node: OpenSearchNode, count: int) -> int:
    """Take ids as the recipe's clients do, and return the last one."""
    script = {"source": "ctx._source.value += params.n", "params": {"n": count}}
    body = {"script": script, "upsert": {"value": count}}
    answer = send(node, "POST", "/counters/_update/orders?_source=value&retry_on_conflict=10", body)
    return int(answer["get"]["_source"]["value"])


@pytest.mark.parametrize("name", ["opensearch", "migration"])
def test_guides_work_on_opensearch(name: str, ports: dict[int, int], tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command of a guide succeeds on OpenSearch, or prints the error that the guide shows."""
    run_page(f"docs/guides/{name}.md", tmp_path, subtests, not_run={}, ports=ports)


def test_clients_of_a_counter_are_stopped(by_the_runbook: Operator, node: OpenSearchNode) -> None:
    """P1: after the runbook's block no old client takes ids; the sequence continues past them."""
    advance_counter(node, 40)
    count, block, refused, take_over = by_the_runbook.blocks(STOP_CLIENTS)
    before = by_the_runbook.run(count)
    assert advance_counter(node, 2) == 42
    assert by_the_runbook.run(count) != before
    assert "accepts writes, so nothing was imported" in by_the_runbook.shell(IMPORT, code=1)
    assert '"shards_acknowledged":true' in by_the_runbook.run(block)
    assert "cluster_block_exception" in by_the_runbook.run(refused)
    assert by_the_runbook.run(take_over).endswith("\n43\r\n")


def test_a_program_that_went_on_is_passed(by_the_runbook: Operator) -> None:
    """P5: the sequence continues past the ids that an old client took after the import."""
    by_the_runbook.take()
    assert by_the_runbook.run_all("A program continued after the import").endswith("\n1234568\r\n")


def test_a_counter_document_is_taken_back(by_the_runbook: Operator, node: OpenSearchNode) -> None:
    """P1: the recipe continues past the ids of idalloc, once its block is removed."""
    advance_counter(node, 40)
    *_, take_over = [by_the_runbook.run(each) for each in by_the_runbook.blocks(STOP_CLIENTS)]
    assert take_over.endswith("\n41\r\n")
    assert "last value" in by_the_runbook.run_all("Go back to a counter document")
    assert advance_counter(node, 1) == 1234568


def test_an_edited_row_is_corrected(by_the_runbook: Operator, node: OpenSearchNode) -> None:
    """SEQUENCE_INVALID: a row without last_value is refused, then continues past a new value."""
    by_the_runbook.take()
    send(node, "POST", "/idalloc-sequences/_update/orders", {"doc": {"last_value": None}})
    by_the_runbook.refused("SEQUENCE_INVALID")
    *_, fix = by_the_runbook.blocks("`SEQUENCE_INVALID`")
    assert int(by_the_runbook.run(fix).splitlines()[-1]) > 1234567
