"""No alert fires on healthy nodes: starts, restarts, a limited reserve, a burst, a scale-down."""

import time
from pathlib import Path

import pytest

import idalloc
from tests.support.alert_rules import ALERTS, RULES
from tests.support.documents import free_port
from tests.support.faults.scenario import Scenario
from tests.support.processes import Server
from tests.support.prometheus import scraping
from tests.support.waiting import hold_for

NODES = 3
# Of the run: when the burst begins, when the nodes are restarted, and when one is stopped for good.
BURST, RESTARTS, SCALE_DOWN = 0.2, 0.4, 0.7
BURST_SECONDS = 10
SCRAPE_SECONDS = 5


@pytest.mark.timeout(1_500)
@pytest.mark.scenario(16, "no alert while nothing is wrong")
def test_no_alert_fires_while_nothing_is_wrong(scenario: Scenario, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """What operators and callers do on healthy nodes raises no alert in a real Prometheus."""
    seconds = pytestconfig.getoption("--soak", None) or scenario.pick(30, 120)
    addresses, ports = ([f"127.0.0.1:{free_port()}" for _ in range(NODES)] for _ in range(2))

    def start(at: int) -> Server:
        """Start a node at the address that it has for the whole run."""
        return scenario.start_node(listen=addresses[at], http_listen=ports[at], node_prefix=at + 1, workers=1 + at % 2)

    nodes = [start(at) for at in range(NODES)]
    with idalloc.Client(addresses[0]) as client:
        client.sequences.create("limited", max_lease_size=5_000)
    began = time.monotonic()

    def wait_for(share: float) -> None:
        hold_for(max(0.0, began + share * seconds - time.monotonic()), "the next part of the run")

    with scraping(tmp_path, ports, ALERTS, SCRAPE_SECONDS) as prometheus:
        clients = [
            scenario.start_client(*addresses, threads=2, pause=0.01),
            scenario.start_client(*addresses, sequence="limited", id_count=1_000, pause=0.01),
            scenario.start_client(*addresses, module="tests.support.faults.churn_client", pause=0.05),
        ]
        wait_for(BURST)
        clients.append(scenario.start_client(*addresses, sequence="burst", id_count=1_000_000, seconds=BURST_SECONDS))
        wait_for(RESTARTS)
        for at, node in enumerate(nodes):
            assert node.stop() == 0
            nodes[at] = start(at)
        wait_for(SCALE_DOWN)
        assert nodes[-1].stop() == 0
        wait_for(1.0)
        span = f"[{time.monotonic() - began:.0f}s]"
        fired = {
            each["metric"]["alertname"]
            for each in prometheus.query(f'max_over_time(ALERTS{{alertstate="firing"}}{span})')
        }
        rules = {each["name"]: each["health"] for each in prometheus.ask("rules")["groups"][0]["rules"]}
        # What could have raised alerts was there.
        [limited] = prometheus.query(f'max(max_over_time(idalloc_reserve_limited{{sequence="limited"}}{span}))')
        [low] = prometheus.query(f"min(min_over_time(idalloc_reserve_seconds{span}))")
        [burst] = prometheus.query(f'max(max_over_time(idalloc_ids_issued_total{{sequence="burst"}}{span}))')
    assert fired == set()
    assert rules == dict.fromkeys((each["alert"] for each in RULES), "ok")
    assert float(limited["value"][1]) == 1
    assert float(low["value"][1]) < 45
    assert float(burst["value"][1]) >= 1_000_000
    for each in clients:
        each.stop()
    scenario.prove(
        f"{seconds:g} s, {NODES} nodes",
        at_least=1_000_000,
        note=f"{len(rules)} alerts, none fired; the shortest reserve was {float(low['value'][1]):.1f} s",
    )
