"""A fault scenario: real nodes on one store, logging clients, faults, and a verification."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idalloc._issued_log.format import ROW
from tests.support.processes import IDALLOC, Server, environment, serve_command, served_address
from tests.support.waiting import wait_until

# Between two calls of a thread in a short form, in seconds: calls without a pause would take the
# cores from the nodes that restart, and from the tests beside.
SHORT_PAUSE = 0.02
# Leases short enough to expire during a test.
SHORT_LEASES = {"lease_ttl": "3s", "store_timeout": "1s", "outage_reserve": "1s"}


@dataclass
class Summary:
    """The report that a client process prints when it ends."""

    calls: int  # successful calls
    ids: int  # ids received
    errors: dict[str, int]  # failed calls, by reason
    messages: dict[str, str]  # the first error message of each reason


@dataclass(eq=False)
class ClientProcess:
    """A running load client; see ``tests/support/faults/load_client.py``."""

    process: "subprocess.Popen[str]"
    log: Path  # its log of issued ids

    @property
    def records(self) -> int:
        """Approximate number of ranges received so far."""
        return self.log.stat().st_size // ROW.size if self.log.exists() else 0

    @property
    def reasons(self) -> set[str]:
        """Reasons of the calls that have failed so far."""
        file = self.log.with_name(f"reasons-{self.log.name}")
        return set(file.read_text().split()) if file.exists() else set()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.communicate()

    def stop(self, timeout: float = 60) -> Summary:
        """End the process after its current call, and return its report."""
        if self.process.poll() is None:
            self.process.terminate()
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, f"the client ended with {self.process.returncode}: {err}"
        return Summary(**json.loads(out))


@dataclass
class Verdict:
    """The result of ``idalloc verify``."""

    findings: dict[str, int]  # number of findings, by kind
    ids: int  # ids in the logs, including document ids
    missing: int  # granted ids of sequences that no client received
    burned: dict[str, int]  # missing ids that a node counted as burned, by cause
    unattributed: int  # missing ids that no node counted
    stall: float  # the longest time between two answers to one client, in seconds
    report: dict[str, Any]  # the verifier's whole output

    @property
    def clean(self) -> bool:
        """Whether the verifier found nothing wrong."""
        return not any(self.findings.values())


@dataclass
class Evidence:
    """A row of docs/operations/fault-tests.md."""

    what: str  # what was done, if the scenario's title does not say it
    ids: int  # ids issued
    faults: int  # faults injected
    duplicates: int  # ids in two records
    burned: int  # granted ids that no client received
    unattributed: int  # burned ids that no node counted
    stall: float  # the longest time between two answers to one client, in seconds
    note: str = ""  # other observations


@dataclass
class Scenario:
    """Starts nodes and clients, counts faults, verifies the logs. ``close`` ends all processes."""

    folder: Path  # the folder of logs, exports and the SQLite file
    full: bool  # whether this is the long form (``--full``)
    store: str = ""  # URL of the store of nodes that are not given another one
    # Rows for docs/operations/fault-tests.md.
    evidence: list[Evidence] = field(default_factory=list)
    _nodes: list[Server] = field(default_factory=list)
    _clients: list[ClientProcess] = field(default_factory=list)
    _faults: int = 0
    _exports: int = 0

    def __post_init__(self) -> None:
        self.store = self.store or f"sqlite://{self.folder}/ids.db"

    @property
    def store_name(self) -> str:
        """The kind of the store, for the evidence."""
        return {"sqlite": "SQLite", "crate": "CrateDB", "opensearch": "OpenSearch"}[self.store.partition(":")[0]]

    def pick(self, short: Any, full: Any) -> Any:
        """Return ``short`` or ``full``, by the form of the scenario."""
        return full if self.full else short

    def start_nodes(self, count: int, **settings: Any) -> list[Server]:
        """Start ``count`` servers at once, and wait until they serve; see ``launch_nodes``."""
        started = self.launch_nodes(count, **settings)
        for server in started:
            assert wait_until_serving(server), f"the node did not start: {server.log.read_text()}"
        return started

    def launch_nodes(
        self,
        count: int,
        *,
        python: Path = Path(sys.executable),
        module: str = "idalloc_server",
        arguments: list[str] | None = None,
        addresses: Sequence[str] = (),
        **settings: object,
    ) -> list[Server]:
        """Start ``count`` servers without waiting (see ``wait_until_serving``).

        Args:
            python: The Python that has the servers' version of idalloc.
            module: The server's module, or ``tests.support.faults.faulty_node``.
            arguments: Further arguments of the module.
            addresses: The servers' addresses; free ports by default.
            settings: The servers' settings; ``store`` is the scenario's by default.
        """
        settings = {"store": self.store} | settings
        for turn in range(count):
            log = self.folder / f"node-{len(self._nodes)}.log"
            command = serve_command(**settings, **({"listen": addresses[turn]} if addresses else {}))
            command[0], command[command.index("idalloc_server")] = str(python), module
            with log.open("w") as stderr:
                process = subprocess.Popen(
                    command + (arguments or []), stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
                )
            self._nodes.append(Server(process, "", "", log))
        return self._nodes[len(self._nodes) - count :]

    def start_node(self, **settings: Any) -> Server:
        """Start one server; see ``start_nodes``."""
        return self.start_nodes(1, **settings)[0]

    def start_client(
        self, *nodes: Server | str, log: str = "", module: str = "tests.support.faults.load_client", **options: object
    ) -> ClientProcess:
        """Start a load client, which calls until it is stopped or its limit is reached.

        Args:
            nodes: Servers or addresses; with several, gRPC uses the next one when one is
                unreachable.
            log: File name of its log; the suffix .jsonl selects JSON lines.
            module: The client's module.
            options: Options of ``tests/support/faults/load_client.py``; in the short form threads
                pause between their calls unless ``pause`` is among these.
        """
        if module.endswith("load_client"):
            options = {"pause": self.pick(SHORT_PAUSE, 0.0)} | options
        file = self.folder / (log or f"client-{len(self._clients)}.ids")
        addresses = [node if isinstance(node, str) else node.address for node in nodes]
        target = addresses[0] if len(addresses) == 1 else "ipv4:" + ",".join(addresses)
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps({"target": target, "log": str(file)} | options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        client = ClientProcess(process, file)
        self._clients.append(client)
        return client

    def count_faults(self, count: int = 1) -> None:
        """Add to the number of injected faults."""
        self._faults += count

    def wait_until(self, condition: Callable[[], bool], what: str, within: float = 60) -> None:
        """Poll a condition until it holds, and fail after ``within`` seconds."""
        wait_until(condition, what, within)

    def wait_for_records(self, clients: list[ClientProcess], more: int = 50, within: float = 60) -> None:
        """Wait until each client has received ``more`` further ranges."""
        goals = [client.records + more for client in clients]

        def reached() -> bool:
            for client in clients:
                assert client.process.poll() is None, f"a client ended: {client.process.communicate()}"
            return all(client.records >= goal for client, goal in zip(clients, goals, strict=True))

        self.wait_until(reached, f"{more} more ranges for each client", within)

    def export(self, store: str = "") -> Path:
        """Export the store, and return the file."""
        file = self.folder / f"export-{self._exports}.jsonl"
        self._exports += 1
        with file.open("w") as out:
            done = subprocess.run(
                [IDALLOC, "store", "export", "--store", store or self.store],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                timeout=60,
            )
        assert done.returncode == 0, done.stderr
        return file

    def verify(self, *, exported: bool = True, logs: list[Path] | None = None) -> Verdict:
        """Run ``idalloc verify`` on the logs of all clients and nodes.

        Args:
            exported: Whether to check the logs against an export of the store.
            logs: Further logs of issued ids.
        """
        files = [client.log for client in self._clients if client.log.exists()] + (logs or [])
        # A forked client has a log of its own.
        files += [child for file in files for child in sorted(file.parent.glob(f"{file.name}.*"))]
        files = [file for file in files if file.stat().st_size]  # a client killed at its start wrote no header
        # Nodes that were killed at their start, or refused to start, have no events to verify.
        files += [node.log for node in self._nodes if node.address and node.log.stat().st_size]
        if exported:
            files.append(self.export())
        done = subprocess.run(
            [IDALLOC, "verify", "--json", *map(str, files)],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=600,
        )
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        burned: dict[str, int] = {}
        for each in report["sequences"]:
            for cause, count in each["burned"].items():
                burned[cause] = burned.get(cause, 0) + count
        verdict = Verdict(
            findings=report["findings"],
            ids=report["ids"],
            missing=sum(each["missing"] for each in report["sequences"]),
            burned=burned,
            unattributed=sum(each["unattributed"] for each in report["sequences"]),
            stall=report["longestStallSeconds"],
            report=report,
        )
        assert done.returncode == (0 if verdict.clean else 1), done.stderr
        return verdict

    def prove(
        self,
        what: str = "",
        *,
        at_least: int = 1,
        note: str = "",
        exported: bool = True,
        logs: list[Path] | None = None,
    ) -> Verdict:
        """Verify the logs, assert that nothing is wrong, and record a row of fault-tests.md.

        Args:
            what: What was done, if the scenario has several rows.
            at_least: Minimum number of ids for a meaningful verification.
            note: Other observations.
            exported: See ``verify``.
            logs: See ``verify``.
        """
        verdict = self.verify(exported=exported, logs=logs)
        assert verdict.clean, verdict.report
        assert verdict.ids >= at_least
        self.evidence.append(
            Evidence(
                what,
                verdict.ids,
                self._faults,
                verdict.findings["duplicates"],
                verdict.missing,
                verdict.unattributed,
                verdict.stall,
                note,
            )
        )
        return verdict

    def close(self) -> None:
        """Kill all processes that the scenario started."""
        for process in [*(each.process for each in self._clients), *(each.process for each in self._nodes)]:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)  # a stopped process would not end
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()


def wait_until_serving(server: Server) -> bool:
    """Wait until a launched server serves or exits, and return whether it serves."""
    assert server.process.stdout
    server.serving = server.process.stdout.readline().strip()
    if not server.serving:
        server.process.wait()
        return False
    server.address = served_address(server.serving)
    return True
