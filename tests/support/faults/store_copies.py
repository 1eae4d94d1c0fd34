"""Copies and restores a store under running nodes, and runs commands as an operator does."""

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.cratedb.cluster import TABLES, CrateCluster
from tests.support.processes import IDALLOC, Server, environment


@dataclass
class CopiedStore:
    """A store and its SQLite file, which is idalloc's own or the CrateDB emulator's."""

    url: str  # the setting ``store``
    file: Path

    def copy(self, name: str = "copy") -> Path:
        """Copy the store, and return the copy's file."""
        copy = self.file.with_name(f"{name}.db")
        _copy(self.file, copy)
        return copy

    def restore(self, copy: Path) -> None:
        """Write a copy into the live file, which keeps its inode."""
        _copy(copy, self.file)

    def replace_file(self, copy: Path) -> None:
        """Replace the live file by a copy, which has another inode."""
        copy.replace(self.file)


@dataclass
class CopiedOpenSearch:
    """A store in OpenSearch, whose documents are copied to a file and back, as by a snapshot."""

    url: str  # the setting ``store``
    folder: Path  # of the copies

    def copy(self, name: str = "copy") -> Path:
        """Copy the store, and return the copy's file."""
        copy = self.folder / f"{name}.json"
        copy.write_text(json.dumps({alias: self._documents(alias) for alias in self._aliases}))
        return copy

    def restore(self, copy: Path) -> None:
        """Write a copy into the live indices, and delete what it does not have."""
        for alias, documents in json.loads(copy.read_text()).items():
            lines: list[object] = [{"delete": {"_id": key}} for key in self._documents(alias).keys() - documents.keys()]
            for key, source in documents.items():
                lines += [{"index": {"_id": key}}, source]
            answer = self._send(f"{alias}/_bulk?require_alias=true", *lines)
            assert not answer["errors"], answer

    @property
    def _aliases(self) -> list[str]:
        prefix = urlsplit(self.url).query.removeprefix("prefix=")
        return [f"{prefix}-{suffix}" for suffix in ("sequences", "starts", "allocations")]

    def _documents(self, alias: str) -> dict[str, Any]:
        self._send(f"{alias}/_refresh")
        hits = self._send(f"{alias}/_search", {"size": 10_000})["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}

    def _send(self, path: str, *lines: object) -> dict[str, Any]:
        body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{urlsplit(self.url).netloc}/{path}", body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))


@dataclass
class CopiedCrateDB:
    """A store in a real CrateDB, which is copied and restored by snapshots of its tables."""

    cluster: CrateCluster
    folder: str  # a folder in ``path.repo`` of all nodes
    _repository: str = field(default_factory=lambda: f"idalloc_{uuid.uuid4().hex[:12]}")

    @property
    def url(self) -> str:
        """The setting ``store``."""
        return self.cluster.store

    def copy(self, name: str = "copy") -> Path:
        """Make a snapshot of the tables, and return its name, as a file of the repository."""
        location = f"{self.folder}/{self._repository}"
        self.cluster.sql(f"CREATE REPOSITORY {self._repository} TYPE fs WITH (location = '{location}')")
        self.cluster.sql(f"CREATE SNAPSHOT {self._repository}.{name} {_TABLES}")
        return Path(location, name)

    def restore(self, copy: Path) -> None:
        """Drop the tables, and restore the snapshot."""
        self.cluster.remove()
        self.cluster.sql(f"RESTORE SNAPSHOT {self._repository}.{copy.name} {_TABLES}")

    def drop(self) -> None:
        """Drop the tables and the repository."""
        self.cluster.remove()
        self.cluster.sql(f"DROP REPOSITORY {self._repository}")


_TABLES = f"TABLE {', '.join(f'{{0}}.{table}' for table in TABLES)} WITH (wait_for_completion = true)"


def _copy(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source, timeout=30)) as read,
        contextlib.closing(sqlite3.connect(target, timeout=30)) as written,
    ):
        read.backup(written)


@contextlib.contextmanager
def copied_store(kind: str, folder: Path) -> Iterator[CopiedStore]:
    """Yield a store: ``sqlite``, or ``cratedb``, the emulator in a process of its own."""
    if kind == "sqlite":
        yield CopiedStore(f"sqlite://{folder}/ids.db", folder / "ids.db")
        return
    file = folder / "crate.db"
    command = [sys.executable, "-m", "tests.support.cratedb.emulator", f"--file={file}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("crate://"), "the emulator did not start"
        yield CopiedStore(url, file)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run_cli(*arguments: object, exit_code: int = 0) -> str:
    """Run a command; return its standard output, or its error output if it must fail."""
    command = [IDALLOC, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == exit_code, f"{' '.join(command)}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stderr if exit_code else done.stdout


def values_before_restore(node: Server, sequence: str) -> list[int]:
    """Return ``seen`` of each store_went_backwards event of a node; 0 where there is none."""
    values = []
    for line in node.log.read_text().splitlines():
        if '"store_went_backwards"' in line and (event := json.loads(line))["sequence"] == sequence:
            found = re.match(r"value (-?\d+) in generation \d+", event["seen"])
            values.append(int(found[1]) if found else 0)
    return values
