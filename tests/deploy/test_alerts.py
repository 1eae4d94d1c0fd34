"""Each alert fires on a real server's /metrics; dashboard and alerts name only its metrics."""

import json
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography import x509

from idalloc.v1 import id_allocator_pb2 as pb
from tests.support.alert_rules import Recording
from tests.support.certificates import issue
from tests.support.faults.store_copies import CopiedStore
from tests.support.manifests import DEPLOY, metrics_of, read_yaml
from tests.support.processes import IDALLOC, Server, environment, idalloc, locked, running
from tests.support.prometheus import scraping
from tests.support.server_calls import connect, id_allocator
from tests.support.waiting import hold_for, wait_until

# Each starts several processes; some wait for the store's outage or for a lease.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(300)]

DAY = 86_400
# Short, so that a state comes soon. A test that needs the default reserve leaves them out.
SHORT = {"lease_ttl": "3s", "store_timeout": "1s", "outage_reserve": "1s"}


@contextmanager
def serving(folder: Path, **settings: object) -> Iterator[Server]:
    with running(folder, **({"http_listen": "127.0.0.1:0"} | settings)) as server:
        yield server


def scrape(server: Server, token: str = "") -> str:
    """Return /metrics."""
    context = ssl._create_unverified_context()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(server.http + "metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return str(answer.read().decode())


def record(server: Server, act: Callable[[], object], token: str = "") -> Recording:
    """Record what the metrics are after an act, and how the counters grew over it."""
    first, start = scrape(server, token), time.monotonic()
    act()
    hold_for(2, "counters are sampled each second")
    return Recording(first, scrape(server, token), time.monotonic() - start)


def value(server: Server, name: str) -> list[float]:
    """Return the values of all series of a metric."""
    return [float(found) for found in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", scrape(server), re.MULTILINE)]


def test_a_server_at_work_raises_no_alert(tmp_path: Path) -> None:
    """A server that issues ids fires nothing, and scrapes of it have series."""
    with serving(tmp_path) as server:
        recording = record(server, lambda: [idalloc(server, "allocate", "orders", "20000") for _ in range(3)])
        assert "idalloc_build_info" in recording.last
        assert recording.firing(tmp_path) == set()


def test_a_locked_store_is_away(tmp_path: Path) -> None:
    """A store that another process locks raises IdallocStoreUnavailable."""
    with serving(tmp_path, **SHORT) as server:
        idalloc(server, "allocate", "orders")
        with locked(tmp_path / "ids.db"):
            idalloc(server, "--timeout", "3s", "allocate", "other")
            wait_until(lambda: value(server, "idalloc_store_up") == [0], "the store is down in the metrics")
            recording = record(server, lambda: None)
        assert "IdallocStoreUnavailable" in recording.firing(tmp_path)


def test_a_locked_witness_is_down(tmp_path: Path) -> None:
    """A witness that another process locks raises IdallocWitnessUnavailable."""
    with serving(tmp_path, witness=f"sqlite://{tmp_path}/witness.db", **SHORT) as server:
        idalloc(server, "allocate", "orders")
        assert value(server, "idalloc_witness_up") == [1]
        with locked(tmp_path / "witness.db"):
            idalloc(server, "--timeout", "3s", "allocate", "other")
            wait_until(lambda: value(server, "idalloc_witness_up") == [0], "the witness is down in the metrics")
            recording = record(server, lambda: None)
        assert "IdallocWitnessUnavailable" in recording.firing(tmp_path)


@pytest.mark.timeout(600)
def test_an_outage_uses_up_the_reserve(tmp_path: Path) -> None:
    """A sequence in steady use falls below the alert's 45 s while the store is away."""
    with serving(tmp_path, outage_reserve="60s") as server:
        texts = [""]

        def reserve() -> float:
            idalloc(server, "allocate", "orders", "20000")
            texts.append(scrape(server))
            found = re.findall(r'^idalloc_reserve_seconds{sequence="orders"} (\S+)$', texts[-1], re.MULTILINE)
            return float(found[0]) if found else float("nan")

        wait_until(lambda: reserve() > 50, "the reserve is filled", 120)
        with locked(tmp_path / "ids.db"):
            wait_until(
                lambda: reserve() < 45 and re.search(r"^idalloc_store_up(?:{.*})? 0\.0$", texts[-1], re.MULTILINE),
                "a part of the reserve is used up, and a refill has failed",
                240,
            )
        recording = Recording(texts[-2], texts[-1], 1)
        assert {"IdallocReserveLow", "IdallocStoreUnavailable"} <= recording.firing(tmp_path)


def test_a_small_sequence_is_exhausted_soon(tmp_path: Path) -> None:
    """A sequence whose forecast is below 30 days raises IdallocSequenceExhaustsSoon."""
    with serving(tmp_path, **SHORT) as server:
        create = ("sequences", "create", "orders", "--max-value", "1000000")
        # On a slow machine the store may take longer than SHORT allows.
        wait_until(
            lambda: (
                idalloc(server, *create).returncode == 0
                or idalloc(server, "sequences", "show", "orders").returncode == 0
            )
        )

        texts = [""]

        def has_forecast() -> bool:
            idalloc(server, "allocate", "orders", "1000")
            texts.append(scrape(server))
            return 'idalloc_sequence_exhausts_in_seconds{sequence="orders"}' in texts[-1]

        wait_until(has_forecast, "the forecast is on the page")
        recording = Recording(texts[-2], texts[-1], 1)
        assert "IdallocSequenceExhaustsSoon" in recording.firing(tmp_path)


def test_expired_leases_are_a_burn_rate(tmp_path: Path) -> None:
    """Leases that expire with most of their ids unused raise IdallocBurnRateHigh."""
    with serving(tmp_path, **SHORT) as server:
        stopped, calls = threading.Event(), list[int]()

        def use(channel: grpc.Channel) -> None:
            while not stopped.is_set():
                with suppress(grpc.RpcError):  # a lease that expired before the answer
                    request = pb.AllocateRangeRequest(sequence="orders", id_count=100_000)
                    id_allocator(channel).AllocateRange(request, timeout=20)
                    calls.append(1)

        def burn() -> None:
            before = sum(value(server, "idalloc_ids_burned_total"))
            server.send(signal.SIGSTOP)
            try:
                hold_for(3.5, "the lease ends during the pause")
            finally:
                stopped.set()
                server.send(signal.SIGCONT)
            using.result(30)
            idalloc(server, "allocate", "orders")
            wait_until(lambda: sum(value(server, "idalloc_ids_burned_total")) > before, "ids are burned")

        # Ids from before the pause do not count: a slow machine issues many more than a lease has.
        with connect(server) as channel, ThreadPoolExecutor() as pool:
            using = pool.submit(use, channel)
            try:
                wait_until(lambda: len(calls) >= 100, "the leases grow with the rate")
                recording = record(server, burn)
            finally:
                stopped.set()
        assert "IdallocBurnRateHigh" in recording.firing(tmp_path)


def test_a_restored_store_went_backwards(tmp_path: Path) -> None:
    """A store that is restored from a copy under a server raises IdallocStoreWentBackwards."""
    with serving(tmp_path, **SHORT) as server:
        store = CopiedStore(f"sqlite://{tmp_path}/ids.db", tmp_path / "ids.db")
        idalloc(server, "allocate", "orders")
        copy = store.copy()

        def behind() -> bool:
            idalloc(server, "allocate", "orders", "1000")
            return value(server, "idalloc_sequences_behind") == [1]

        idalloc(server, "allocate", "orders", "100000")
        store.restore(copy)
        wait_until(behind, "the server notices")
        assert "IdallocStoreWentBackwards" in record(server, lambda: None).firing(tmp_path)


def test_two_servers_with_one_prefix_conflict(tmp_path: Path) -> None:
    """A server that starts with the prefix of another live one raises IdallocDuplicatePrefix."""
    with serving(tmp_path, node_prefix=7), serving(tmp_path, node_prefix=7) as second:
        wait_until(lambda: value(second, "idalloc_prefix_conflict") == [1], "the conflict is in the metrics")
        assert "IdallocDuplicatePrefix" in record(second, lambda: None).firing(tmp_path)


def test_a_certificate_that_expires_soon(tmp_path: Path) -> None:
    """A certificate with an hour left raises IdallocCertificateExpires."""
    issued = issue(trustme.CA(), x509.DNSName("localhost"), seconds=3600)
    (tmp_path / "server.pem").write_bytes(issued.cert)
    (tmp_path / "server.key").write_bytes(issued.key)
    with serving(tmp_path, tls_cert=tmp_path / "server.pem", tls_key=tmp_path / "server.key") as server:
        assert record(server, lambda: None).firing(tmp_path) == {"IdallocCertificateExpires"}


def test_wrong_tokens_are_auth_failures(tmp_path: Path) -> None:
    """A caller that repeats a wrong token raises IdallocAuthFailures; the role read may scrape."""
    access = tmp_path / "access.toml"
    made = subprocess.run([IDALLOC, "token", "new", "ops", "--read", "*"], capture_output=True, text=True, check=True)
    access.write_text(made.stderr)
    script = (
        "import idalloc, sys\n"
        "with idalloc.Client(sys.argv[1], token='idalloc_wrong-' + 'x' * 40) as client:\n"
        "    for _ in range(50):\n"
        "        try: client.allocate_range('orders', 1)\n"
        "        except idalloc.IdallocError: pass\n"
    )
    with serving(tmp_path, access_file=access) as server:
        command = [str(Path(IDALLOC).with_name("python")), "-c", script, server.address]
        recording = record(server, lambda: subprocess.run(command, env=environment(), check=True), made.stdout.strip())
        assert recording.firing(tmp_path) == {"IdallocAuthFailures"}


def named_metrics() -> dict[str, set[str]]:
    """Return the metrics that each alert and each panel of the dashboard names."""
    rules = read_yaml(DEPLOY / "prometheus/alerts.yaml")["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana/idalloc.json").read_text())["panels"]
    found = {rule["alert"]: metrics_of(rule["expr"]) for rule in rules}
    queries = {each["title"]: " ".join(target["expr"] for target in each["targets"]) for each in panels}
    return found | {title: metrics_of(query) for title, query in queries.items()}


def test_named_metrics_are_on_the_page(tmp_path: Path) -> None:
    """Each metric that an alert or a panel names has a type on /metrics of a server."""
    with serving(tmp_path) as server:
        types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", scrape(server), re.MULTILINE))
    histograms = {name for name, kind in types.items() if kind == "histogram"}
    known = {*types} | {f"{name}{suffix}" for name in histograms for suffix in ("_bucket", "_count", "_sum")}
    assert {title: names - known for title, names in named_metrics().items() if names - known} == {}


def test_prometheus_scrapes_a_server(tmp_path: Path) -> None:
    """Prometheus scrapes a real server without an error, and finds its version."""
    with serving(tmp_path) as server, scraping(tmp_path, [server.http.split("/")[2]]) as prometheus:
        [found] = prometheus.targets()
        assert (found["health"], found["lastError"]) == ("up", "")
        # A query finds the samples a moment after the target is up.
        wait_until(lambda: prometheus.query("idalloc_build_info"), "the samples of the scrape")
        [result] = prometheus.query("idalloc_build_info")
        assert result["metric"]["version"] == json.loads(server.serving)["version"]
