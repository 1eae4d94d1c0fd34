"""What deploy/ contains, as Python objects."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/idalloc"
# Names of metrics; those of the process are prometheus_client's.
METRIC = re.compile(r"\b(?:idalloc|grpc_server|process)_[a-z_]+\b")


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.safe_load(path.read_text())


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression names."""
    return set(METRIC.findall(re.sub(r'"[^"]*"', '""', expression)))
