"""Thousands of X Protocol connections: memory is bounded, and gRPC's callers are served."""

import asyncio
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from idalloc_xproto import frames
from idalloc_xproto.listener import LOGIN_SECONDS
from tests.faults.test_overload import Overload
from tests.support.faults.resources import ResourceMonitor
from tests.support.faults.scenario import Scenario
from tests.support.waiting import wait_until
from tests.xproto.support.client import connected

pytestmark = pytest.mark.parametrize("transport", ["grpcio", "native"])

NUMBER = 4000
MOST = 4096  # sessions of a process that may open enough files
ESTABLISHED = "01"  # in /proc/net/tcp
# Memory of a connection; measured: 11 kB.
SESSION_MB = 0.02


@pytest.fixture
def overload(scenario: Scenario, transport: str, max_connections: int) -> Iterator[Overload]:
    """A node with the port, and a client of gRPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 4 * max_connections  # of which connections of the port may have a quarter
    if hard != resource.RLIM_INFINITY and hard < files:
        pytest.skip(f"a process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * NUMBER), hard))
    limited = scenario.folder / "python"
    limited.write_text(f'#!/bin/sh\nulimit -n {files} && exec "{sys.executable}" "$@"\n')
    limited.chmod(0o700)
    try:
        node = scenario.start_node(python=limited, transport=transport, xproto_listen="127.0.0.1:0")
        bystander = scenario.start_client(
            node, sequence="payments", mode="ranges,ids,stream,docids", timeout=20, pause=0.01
        )
        scenario.wait_for_records([bystander], 100)
        with ResourceMonitor(node.process.pid) as watch:
            yield Overload(scenario, node, transport, watch, bystander, "tests.xproto.support.sessions")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_connections(overload: Overload) -> int:
    """Return how many connections to the port the server has not closed."""
    port = int(overload.node.xproto.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(f":{port:04X}") and state == ESTABLISHED for _, local, _, state, *_ in rows)


async def added_ids(overload: Overload) -> list[str]:
    """Add a document, and return the ids."""
    async with connected(overload.node.xproto) as client:
        await client.create_collection()
        return (await client.add("{}")).ids


@pytest.mark.scenario(10, "connections of X DevAPI clients")
@pytest.mark.parametrize("max_connections", [MOST])
def test_thousands_of_sessions_use_bounded_memory(overload: Overload) -> None:
    """4,000 sessions at once use bounded memory; their end frees all descriptors."""
    number = overload.scenario.pick(300, NUMBER)
    with overload.attack("x_sessions", number, target=overload.node.xproto, until="session") as attack:
        overload.scenario.count_faults(number)
        assert attack.seen == {str(frames.AUTHENTICATE_OK): number}
        assert len(asyncio.run(added_ids(overload))) == 1
        # They are open until the attack ends, and are counted now and then.
        wait_until(lambda: overload.watch.peak.descriptors >= number, "the monitor counts their descriptors")
        assert attack.end() == number
    overload.assert_memory(SESSION_MB * number)
    overload.assert_resources_released()
    overload.prove(f"{number:,} sessions")


@pytest.mark.scenario(10, "connections of X DevAPI clients")
@pytest.mark.parametrize("max_connections", [MOST])
@pytest.mark.parametrize("until", ["hello", "half a login"])
def test_logins_that_never_end_are_closed(overload: Overload, until: str) -> None:
    """4,000 connections whose login never ends use bounded memory, and are closed."""
    number = overload.scenario.pick(300, NUMBER)
    with overload.attack("x_sessions", number, target=overload.node.xproto, until=until) as attack:
        overload.scenario.count_faults(number)
        last = frames.NOTICE if until == "hello" else frames.AUTHENTICATE_CONTINUE
        assert attack.seen == {str(last): number}
        assert len(asyncio.run(added_ids(overload))) == 1

        assert open_connections(overload) > 0
        overload.scenario.wait_until(
            lambda: open_connections(overload) == 0, "the end of the connections", within=LOGIN_SECONDS + 30
        )
        assert attack.end() == 0
    overload.assert_memory(SESSION_MB * number)
    overload.assert_resources_released()
    overload.prove(f"{number:,} logins that never end, {until}")


@pytest.mark.scenario(10, "connections of X DevAPI clients")
@pytest.mark.parametrize("max_connections", [100])
def test_connections_beyond_the_limit_are_refused(overload: Overload, max_connections: int) -> None:
    """Of 4,000 connections those beyond a quarter of the files get an error, and use no memory."""
    number = overload.scenario.pick(300, NUMBER)
    with overload.attack("x_sessions", number, target=overload.node.xproto, until="session") as attack:
        overload.scenario.count_faults(number)
        assert attack.seen == {
            str(frames.AUTHENTICATE_OK): max_connections,
            str(frames.ERROR): number - max_connections,
        }
        assert attack.end() == max_connections
    overload.assert_memory(SESSION_MB * max_connections)
    overload.assert_resources_released()
    assert len(asyncio.run(added_ids(overload))) == 1
    overload.prove(f"{number:,} connections, of which {max_connections} have a session")
