"""What a server announces once it serves."""

from __future__ import annotations

import pytest
import structlog

from idalloc_server.node.announcements import announce_serving


@pytest.mark.parametrize(
    ("address", "lines"),
    [("0.0.0.0:50051", 1), ("[::]:50051", 1), ("127.0.0.1:50051", 0), ("[::1]:50051", 0), ("unix:/run/ids.sock", 0)],
)
def test_reachable_grpc_port_is_warned_of(address: str, lines: int) -> None:
    """One line warns of a gRPC port that others reach without a proxy, with a page's address."""
    with structlog.testing.capture_logs() as logs:
        announce_serving(address, "sqlite:///ids.db", 0, {})
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["event"], line["address"]) for line in warnings] == [("grpc_without_proxy", address)] * lines
    assert all(line["see"].endswith("/docs/operations/grpc-without-proxy.md") for line in warnings)
