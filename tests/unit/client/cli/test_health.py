"""`idalloc health`: exit codes, the store's error, and the hand-written messages."""

import json
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from idalloc.cli import _health
from tests.support.command_line import Command
from tests.support.fake_server import FakeServer


def test_health_sets_exit_code(server: FakeServer, run: Command) -> None:
    """health exits with 0 only if the service is SERVING."""
    assert run("health") == "SERVING\n"
    name = "a" * 200  # protobuf encodes this length in two bytes
    server.health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    assert run.error_line(1, "health", name).startswith("NOT_SERVING")
    assert run.error_line(1, "health", "nope") == f"SERVICE_UNKNOWN: nope at {server.target}"
    assert run.error_line(1, "--server", "127.0.0.1:1", "health").startswith("SERVER_UNREACHABLE: ")


@pytest.mark.parametrize("service", ["", "a", "é" * 63, "a" * 127, "a" * 128, "a" * 20_000])
def test_health_request_is_encoded_as_protobuf(service: str) -> None:
    """The hand-written request parses as a HealthCheckRequest."""
    assert health_pb2.HealthCheckRequest.FromString(_health._request(service)).service == service


def test_health_reports_failing_store_and_error(server: FakeServer, run: Command) -> None:
    """The store's error is reported; the exit code is 0 while the server serves from leases."""
    server.health.set("store", health_pb2.HealthCheckResponse.NOT_SERVING)
    server.node.store_error = "cannot connect"
    reply = {"status": "SERVING", "failing": {"store": "cannot connect"}}
    assert json.loads(run("health", "--json")) == reply
    assert run.error_line(1, "health", "store").startswith("NOT_SERVING")
    server.fail_next("GetNode", "PERMISSION_DENIED", grpc.StatusCode.PERMISSION_DENIED)
    assert json.loads(run("health", "--json"))["failing"] == {"store": "see the server's log"}


@pytest.mark.parametrize("number", health_pb2.HealthCheckResponse.ServingStatus.values())
def test_health_reply_is_decoded_as_protobuf(server: FakeServer, run: Command, number: Any) -> None:
    """The hand-written decoder reads every status of a HealthCheckResponse."""
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(number)
    server.health.set("orders", number)
    assert (run("health", "orders") if name == "SERVING" else run.error_line(1, "health", "orders")).startswith(name)
