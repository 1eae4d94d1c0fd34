"""The alerts are valid, lead to the runbook, and fire on written states (test_alerts.py: real)."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from idalloc_server.domain.allocation.reserve import LIMITS
from tests.support.alert_rules import ALERTS, MINUTES, RULES, Recording, firing, samples
from tests.support.environments import installed_program
from tests.support.manifests import DEPLOY
from tests.support.paths import ROOT

RUNBOOK = "docs/operations/runbook.md"
DAY = 86_400
NOW = 1_800_000_000.0

HEALTHY = """
# HELP idalloc_store_up Whether the store answers.
# TYPE idalloc_store_up gauge
idalloc_store_up 1.0
idalloc_witness_up 1.0
idalloc_reserve_seconds{sequence="orders"} 101.5
idalloc_sequence_exhausts_in_seconds{sequence="orders"} 8.64e+06
idalloc_ids_issued_total{sequence="orders"} 1e+06
idalloc_ids_issued_total{sequence=""} 0.0
idalloc_ids_burned_total{cause="expired"} 2000.0
idalloc_sequences_behind 0.0
idalloc_prefix_conflict 0.0
idalloc_certificate_expires_timestamp_seconds{file="tls_cert"} 1.805e+09
idalloc_auth_rejections_total{reason="UNAUTHENTICATED"} 2.0
"""
# A line of it, the line in the state, the alert that then fires, and the most minutes until then.
STATES = [
    ("idalloc_store_up 1.0", "idalloc_store_up 0.0", "IdallocStoreUnavailable", 1),
    ("witness_up 1.0", "witness_up 0.0", "IdallocWitnessUnavailable", 3),
    ("} 8.64e+06", f"}} {29 * DAY}", "IdallocSequenceExhaustsSoon", 6),
    ("} 2000.0", "} 200000.0", "IdallocBurnRateHigh", 2),
    ("behind 0.0", "behind 1.0", "IdallocStoreWentBackwards", 1),
    ("conflict 0.0", "conflict 1.0", "IdallocDuplicatePrefix", 2),
    ("} 1.805e+09", f"}} {NOW + 13 * DAY}", "IdallocCertificateExpires", 6),
    ("} 2.0", "} 100.0", "IdallocAuthFailures", 9),
]


def test_prometheus_accepts_the_files() -> None:
    """`promtool` accepts the rules and the configuration of the compose file."""
    promtool = installed_program("promtool")
    for command in (["rules", str(ALERTS)], ["config", "--syntax-only", str(DEPLOY / "prometheus/prometheus.yml")]):
        done = subprocess.run([promtool, "check", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """`promtool` parses each panel's query once Grafana has replaced its variables."""
    panels = json.loads((DEPLOY / "grafana/idalloc.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    filled = [query.replace("$__rate_interval", "1m").replace("$instance", ".*") for query in queries]
    assert [query for query in filled if "$" in query] == []
    file = tmp_path / "rules.json"  # JSON is YAML
    for wrong in (False, True):  # an open parenthesis shows that the check can fail
        expressions = [*filled, "sum("] if wrong else filled
        rules = [{"record": f"query_{at}", "expr": each} for at, each in enumerate(expressions)]
        file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        command = [installed_program("promtool"), "check", "rules", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) is wrong, done.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_leads_to_the_runbook(rule: dict[str, dict[str, str]]) -> None:
    """The link of each alert names a section of the runbook."""
    headings = re.findall(r"^##+ (.*)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page.endswith(f"/{RUNBOOK}")
    assert anchor in anchors
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_page_on_monitoring_lists_the_alerts() -> None:
    """Its table has each alert with the section of its link."""
    page = (ROOT / "docs/operations/monitoring.md").read_text()
    links = {rule["alert"]: rule["annotations"]["runbook_url"].rpartition("/")[2] for rule in RULES}
    assert dict(re.findall(r"^\| `(Idalloc\w+)` \|.*\[runbook\]\((.*)\) \|$", page, re.MULTILINE)) == links


def test_a_healthy_server_raises_no_alert(tmp_path: Path) -> None:
    """No alert fires for a server that issues ids, burns few, and rejects a call now and then."""
    assert Recording("", HEALTHY, 60, NOW).firing(tmp_path) == set()


@pytest.mark.parametrize(("line", "changed", "alert", "minutes"), STATES, ids=lambda each: str(each)[-30:])
def test_each_state_raises_its_alert(tmp_path: Path, line: str, changed: str, alert: str, minutes: int) -> None:
    """A change of one line raises the alert of that state in time, and never another one."""
    assert HEALTHY.count(line) == 1
    recording = Recording("", HEALTHY.replace(line, changed), 60, NOW)
    for at in (minutes, MINUTES):
        assert recording.firing(tmp_path, at) == {alert}


def test_a_low_reserve_matters_while_the_store_is_away(tmp_path: Path) -> None:
    """A reserve that still fills, after a start or a burst, raises no alert; a stuck one does."""
    low = HEALTHY.replace("} 101.5", "} 44.9")
    assert Recording("", low, 60, NOW).firing(tmp_path) == set()
    away = low.replace("up 1.0", "up 0.0", 1)
    assert Recording("", away, 60, NOW).firing(tmp_path) == {"IdallocReserveLow", "IdallocStoreUnavailable"}


def test_a_low_reserve_raises_its_alert_before_it_is_used_up(tmp_path: Path) -> None:
    """The alert fires while a reserve of 90 s still has ids, even if scraped every 15 s only."""
    series = [
        {"series": 'idalloc_store_up{instance="a"}', "values": "1 1 0x40"},
        {"series": 'idalloc_reserve_seconds{instance="a",sequence="orders"}', "values": "90 90 90-15x6 0x40"},
    ]
    assert "IdallocReserveLow" not in firing(series, 1, tmp_path)
    assert "IdallocReserveLow" in firing(series, 1.75, tmp_path)  # 15 s before the reserve is used up


def test_a_limited_reserve_is_not_low(tmp_path: Path) -> None:
    """A limited reserve is not low; a short one of another sequence or server is."""
    low = HEALTHY.replace("} 101.5", "} 9.0").replace("store_up 1.0", "store_up 0.0")
    away, both = {"IdallocStoreUnavailable"}, {"IdallocStoreUnavailable", "IdallocReserveLow"}
    limited = [f'idalloc_reserve_limited{{reason="{each}",sequence="orders"}} 1.0\n' for each in LIMITS]
    for lines in (limited[:1], limited):  # several workers may have several reasons
        text = low + "".join(lines)
        assert Recording("", text, 60, NOW).firing(tmp_path) == away
        other = f'{text}idalloc_reserve_seconds{{sequence="invoices"}} 9.0\n'
        assert Recording("", other, 60, NOW).firing(tmp_path) == both
    other_server = low + limited[0].replace('sequence="orders"', 'sequence="orders",pod="idalloc-2"')
    assert Recording("", other_server, 60, NOW).firing(tmp_path) == both


@pytest.mark.parametrize(
    ("forecasts", "minute", "fires"),
    [
        (["4000000x60"], 20, False),  # 46 days
        (["2000000x60"], 4, False),
        (["2000000x60"], 6, True),  # 23 days
        (["4000000x60", "4000000x60"], 20, True),  # two servers, 23 days together
        (["0x60"], 20, True),
        (["2000000x8 stale"], 6, False),  # a burst of two minutes
        (["2000000x40 stale _x19 2000000x40"], 14, True),  # a pause of five minutes
        (["2000000x40 stale"], 24, True),
        (["2000000x40 stale"], 26, False),
    ],
)
def test_exhaustion_is_forecast_while_in_use(tmp_path: Path, forecasts: list[str], minute: int, fires: bool) -> None:
    """The alert comes after 5 min of use, at the rate of all servers, and ends 15 min after it."""
    name = "idalloc_sequence_exhausts_in_seconds"
    series = [
        {"series": f'{name}{{sequence="orders",instance="{at}"}}', "values": values}
        for at, values in enumerate(forecasts)
    ]
    assert ("IdallocSequenceExhaustsSoon" in firing(series, minute, tmp_path)) is fires


def test_the_states_cover_all_alerts() -> None:
    """Each alert has a state above."""
    assert {"IdallocReserveLow", *(alert for *_, alert, _ in STATES)} == {rule["alert"] for rule in RULES}


def test_samples_keep_their_labels() -> None:
    """Labels may have spaces, braces and escaped quotes; comments are skipped; rates span 15 s."""
    text = '# TYPE a gauge\na{b="}\\" {c",d="e f"} 1.5e3\ng_total 7\n'
    assert samples(text) == {
        'a{b="}\\" {c",d="e f",instance="idalloc-1:50080"}': 1500,
        'g_total{instance="idalloc-1:50080"}': 7,
    }
    [_, counter] = Recording('g_total 5\na{b="x"} 9', text, 60).series()
    assert counter["values"].startswith("7.000000+0.500000x")
