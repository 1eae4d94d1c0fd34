"""Prometheus' rules on a recorded state, in promtool's virtual time."""

import json
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.environments import installed_program
from tests.support.manifests import DEPLOY, read_yaml

ALERTS = DEPLOY / "prometheus/alerts.yaml"
RULES: list[dict[str, Any]] = read_yaml(ALERTS)["groups"][0]["rules"]
INTERVAL = 15
# Longer than the longest range plus `for` of a rule.
MINUTES = 30
_SAMPLE = re.compile(r"([a-z_][a-z0-9_]*)(?:\{(.*)\})? (\S+)", re.IGNORECASE)
_COUNTER = ("_total", "_bucket", "_count", "_sum")


@dataclass
class Recording:
    """What one server answered to two scrapes."""

    first: str  # the text of the first one; empty for a server that had just started
    last: str  # the text of the last one
    seconds: float  # the time between them
    at: float = field(default_factory=time.time)  # the Unix time of the last one

    def series(self) -> list[dict[str, str]]:
        """Return promtool's input: gauges stay as they are, counters go on at the recorded rate."""
        before, found = samples(self.first), []
        for name, value in samples(self.last).items():
            rate = 0.0
            metric = name.partition("{")[0]
            if metric.endswith(_COUNTER):
                rate = max(0.0, value - before.get(name, 0.0)) / self.seconds
            if metric.endswith("_timestamp_seconds"):
                value -= self.at  # promtool's time begins at 0
            values = f"{value:f}+{rate * INTERVAL:f}x{MINUTES * 60 // INTERVAL}"
            found.append({"series": name, "values": values})
        return found

    def firing(self, folder: Path, minutes: float = MINUTES) -> set[str]:
        """Return the alerts that fire once the state has lasted for ``minutes``."""
        return firing(self.series(), minutes, folder)


def firing(series: list[dict[str, str]], minute: float, folder: Path) -> set[str]:
    """Return the alerts that fire at a time.

    promtool prints what it got if it differs from what a test expects, so this expects an
    impossible alert.

    Args:
        series: promtool's input.
        folder: Where the test is written.
    """
    test = {
        "expr": "group by (alertname) (ALERTS{alertstate='firing'})",
        "eval_time": f"{60 * minute:.0f}s",
        "exp_samples": [{"labels": '{alertname="none"}', "value": 0}],
    }
    content = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": f"{INTERVAL}s",
        "tests": [{"interval": f"{INTERVAL}s", "input_series": series, "promql_expr_test": [test]}],
    }
    file = folder / "rules.json"
    file.write_text(json.dumps(content))  # JSON is YAML
    command = [installed_program("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    got = done.stderr.rpartition("got:")[2]
    assert got, done.stdout + done.stderr
    assert "parse error" not in done.stderr, done.stderr
    return set(re.findall(r'alertname="(\w+)"', got))


def samples(text: str) -> dict[str, float]:
    """Return a scrape's samples by name with labels, as Prometheus stores those of one server."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            assert sample, f"not a sample: {line}"
            name, labels, value = sample.groups()
            labels = f"{labels}," if labels else ""
            found[f'{name}{{{labels}instance="idalloc-1:50080"}}'] = float(value)
    return found
