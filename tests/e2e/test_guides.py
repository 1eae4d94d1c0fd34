"""The commands of the guides run as written; tables in them are those of the code."""

import json
import re
from pathlib import Path

import grpc
import pytest

from idalloc._core.rpc_errors import TLS_CAUSES
from idalloc.cli import _UNREACHABLE_HINTS
from idalloc.v1 import id_allocator_pb2, id_allocator_pb2_grpc
from idalloc_server.auth.authorize import RULES
from tests.support.cratedb.tables_of_users import table_with_a_row
from tests.support.documents import blocks, free_port, run_page
from tests.support.paths import ROOT
from tests.support.processes import running
from tests.support.trace_collector import Collector, Span

GUIDES = ROOT / "docs" / "guides"
RETRY_WAITS = ("initialBackoff", "maxBackoff", "backoffMultiplier")


@pytest.mark.parametrize(
    "name",
    [
        "languages",
        "envoy",
        *(
            pytest.param(name, marks=pytest.mark.test_long)
            for name in ("access-control", "verify", "migration", "tls", "load-tests")
        ),
    ],
)
def test_guides_do_what_they_say(name: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command of a guide succeeds, or prints the error that the guide shows."""
    stopped = ["store export"] if name == "verify" else []
    run_page(f"docs/guides/{name}.md", tmp_path, subtests, stopped_before=stopped)


@pytest.mark.test_long
def test_deployment_works_on_a_running_server(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The guide's settings files are valid; both Python clients reach one of two servers."""
    with running(tmp_path) as server:
        ports = {50051: int(server.address.rpartition(":")[2])}
        run_page("docs/guides/deployment.md", tmp_path, subtests, files=["protos"], ports=ports)


@pytest.mark.test_long
def test_choosing_a_key_passes_the_ids_of_a_table(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each command of the guide succeeds, the advance past a table of CrateDB, too."""
    with table_with_a_row("doc.shipments", 1_234_600, tmp_path) as crate:
        run_page("docs/guides/choosing-a-key.md", tmp_path, subtests, ports={4200: crate})


def test_the_policy_of_the_languages_guide_awaits_a_lone_server(tmp_path: Path) -> None:
    """The guide's policy is the protos' but for its waits; a call with it outlasts a start."""
    page = (GUIDES / "languages.md").read_text()
    shown = next(each.text for each in blocks(page) if each.language == "json")
    policy, shipped = json.loads(shown), json.loads((ROOT / "protos/idalloc/v1/service_config.json").read_text())
    waits = {name: policy["methodConfig"][0]["retryPolicy"][name] for name in RETRY_WAITS}
    shipped["methodConfig"][0]["waitForReady"] = True
    shipped["methodConfig"][0]["retryPolicy"] |= waits
    assert policy == shipped
    options = [("grpc.service_config", shown), ("grpc.initial_reconnect_backoff_ms", 100)]
    listen = f"127.0.0.1:{free_port()}"
    with grpc.insecure_channel(listen, options) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        call = stub.AllocateRange.future(id_allocator_pb2.AllocateRangeRequest(sequence="orders"), timeout=60)
        with running(tmp_path, listen=listen):
            assert call.result().range.first_id == 1


def test_the_tls_guide_has_the_client_s_messages() -> None:
    """The table of failed connections has each cause the client names, and its next step."""
    page = (GUIDES / "tls.md").read_text()
    table = page.partition("## When the connection fails")[2].partition("\n\nIn Python")[0]
    assert {*re.findall(r"^\| `(.*?) \(…\); (.*?)`", table, re.MULTILINE)} == {
        (cause, _UNREACHABLE_HINTS[kind]) for _, kind, cause in TLS_CAUSES
    }


def test_the_table_of_roles_has_every_rpc() -> None:
    """Each RPC is in the row of the role that the server requires."""
    page = (GUIDES / "access-control.md").read_text()
    rows = dict(re.findall(r"^\| `(allocate|read|admin)` \| (.*) \|$", page, re.MULTILINE))
    assert {role: {*re.findall(r"`(\w+)`", row)} for role, row in rows.items()} == {
        role: {method.rpartition("/")[2] for method, rule in RULES.items() if rule.role == role} for role in rows
    }


@pytest.mark.test_long
def test_tracing_exports_spans_as_the_page_says(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The server of the page exports the call that the page's program makes."""
    with Collector() as collector:
        ports = {4317: int(collector.endpoint.rpartition(":")[2])}

        def calls() -> list[Span]:
            return [span for span in collector.spans if span.name == "idalloc.v1.IdAllocatorService/AllocateRange"]

        run_page(
            "docs/operations/tracing.md",
            tmp_path,
            subtests,
            ports=ports,
            finally_true=lambda: len(calls()) > 0,
        )
        assert [span.attributes["idalloc.sequence"] for span in calls()] == ["orders"]


def test_monitoring_shows_what_the_server_answers(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Probes and metrics answer as the page on monitoring shows."""
    run_page("docs/operations/monitoring.md", tmp_path, subtests, files=["deploy"])
