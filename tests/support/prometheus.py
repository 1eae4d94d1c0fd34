"""A real Prometheus that scrapes servers under test."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.documents import free_port
from tests.support.environments import installed_program
from tests.support.waiting import wait_until


@dataclass
class Prometheus:
    """A running Prometheus."""

    address: str  # where it serves, host:port

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer of its HTTP API; None if it does not answer."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of a query at the present time."""
        found = self.ask("query", query=expression)
        return list(found["result"]) if found else []

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets that were scraped."""
        found = self.ask("targets")
        return [each for each in found["activeTargets"] if each["health"] != "unknown"] if found else []


@contextmanager
def scraping(folder: Path, targets: list[str], rules: Path | None = None, seconds: int = 1) -> Iterator[Prometheus]:
    """Run Prometheus until the end of the block; skip the test if it is not installed.

    Args:
        targets: What it scrapes, host:port.
        rules: A file of rules.
        seconds: How often it scrapes, and evaluates the rules.
    """
    program, address = installed_program("prometheus"), f"127.0.0.1:{free_port()}"
    config = {
        "global": {"scrape_interval": f"{seconds}s", "evaluation_interval": f"{seconds}s"},
        "rule_files": [str(rules)] if rules else [],
        "scrape_configs": [{"job_name": "idalloc", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        prometheus = Prometheus(address)
        wait_until(lambda: len(prometheus.targets()) == len(targets), "a scrape of each target", 120)
        yield prometheus
    finally:
        process.terminate()
        process.wait(30)
