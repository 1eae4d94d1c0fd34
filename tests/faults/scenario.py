"""One scenario: real nodes on one store, clients that log what they get, faults, and the verifier at the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idalloc._issued_log.format import ROW
from tests.support.processes import IDALLOC, Server, environment, serve_command

# Leases so short that a test can outlast them.
SHORT_LEASES = {"lease_ttl": "3s", "store_timeout": "1s", "outage_reserve": "1s"}


@dataclass
class Summary:
    """What a client process said at its end.

    Attributes:
        calls: How many of its calls were answered.
        ids: How many ids it got.
        errors: How many calls failed, by reason; each was followed by another one.
        messages: The first message of each reason.
    """

    calls: int
    ids: int
    errors: dict[str, int]
    messages: dict[str, str]


class ClientProcess:
    """A process of the SDK that calls without a pause and logs what it gets: see ``tests/faults/client.py``.

    Attributes:
        process: The process.
        log: Its log of issued ids.
    """

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def records(self) -> int:
        """About how many ranges it got by now."""
        return self.log.stat().st_size // ROW.size if self.log.exists() else 0

    def kill(self) -> None:
        """Ends it by SIGKILL, in whatever it is doing."""
        self.process.kill()
        self.process.communicate()

    def stop(self, timeout: float = 60) -> Summary:
        """Has it end after its present call."""
        if self.process.poll() is None:
            self.process.terminate()
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, f"the client ended with {self.process.returncode}: {err}"
        return Summary(**json.loads(out))


@dataclass
class Verdict:
    """What ``idalloc verify`` found.

    Attributes:
        findings: How many findings of each kind.
        told: The first ones in words.
        ids: How many ids are in the logs, document ids included.
        missing: How many ids of sequences nobody has.
        burned: Those of them that a node counted, by cause.
        unattributed: Those that none did.
        stall: The longest time, in seconds, between two answers of one client.
        report: All that the verifier printed.
    """

    findings: dict[str, int]
    told: list[str]
    ids: int
    missing: int
    burned: dict[str, int]
    unattributed: int
    stall: float
    report: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not any(self.findings.values())


@dataclass
class Evidence:
    """A line of docs/faults.md.

    Attributes:
        what: What was done, in a few words; empty if the scenario's title says it all.
        ids: How many ids were issued.
        faults: How many faults were injected.
        duplicates: How many ids were there twice.
        burned: How many ids nobody has, of those that were taken.
        unattributed: Those of them that no node counted.
        stall: The longest time without an answer, in seconds.
        note: What else was seen.
    """

    what: str
    ids: int
    faults: int
    duplicates: int
    burned: int
    unattributed: int
    stall: float
    note: str = ""


@dataclass
class Scenario:
    """Nodes, clients, faults, and the proof. ``close`` ends all processes.

    Attributes:
        folder: Where logs, exports and the SQLite file are.
        full: Whether this is the long form.
        store: The URL of the store that nodes share, unless they are told another one.
        evidence: What was proved.
    """

    folder: Path
    full: bool
    store: str = ""
    evidence: list[Evidence] = field(default_factory=list)
    _nodes: list[Server] = field(default_factory=list)
    _clients: list[ClientProcess] = field(default_factory=list)
    _faults: int = 0
    _exports: int = 0

    def __post_init__(self) -> None:
        self.store = self.store or f"sqlite://{self.folder}/ids.db"

    def pick(self, short: Any, full: Any) -> Any:
        """The one for the short form, the other for the long one."""
        return full if self.full else short

    def start_nodes(self, count: int, **settings: Any) -> list[Server]:
        """Starts so many servers at once, and waits until they serve; see ``begin_nodes``."""
        started = self.begin_nodes(count, **settings)
        for server in started:
            assert serves(server), f"the node did not start: {server.log.read_text()}"
        return started

    def begin_nodes(
        self,
        count: int,
        *,
        module: str = "idalloc_server",
        arguments: list[str] | None = None,
        addresses: Sequence[str] = (),
        **settings: object,
    ) -> list[Server]:
        """Starts so many servers at once; they may refuse to: ``serves`` waits for what becomes of one.

        Args:
            count: How many.
            module: What runs: the server, or one that can be harmed (``tests.faults.node``).
            arguments: Further arguments of the module.
            addresses: Where each of them listens; anywhere where there are none.
            settings: The server's settings; its store is the scenario's own unless said here.
        """
        settings = {"store": self.store} | settings
        for turn in range(count):
            log = self.folder / f"node-{len(self._nodes)}.log"
            command = serve_command(**settings, **({"listen": addresses[turn]} if addresses else {}))
            command[command.index("idalloc_server")] = module
            with log.open("w") as stderr:
                process = subprocess.Popen(
                    command + (arguments or []), stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
                )
            self._nodes.append(Server(process, "", "", log))
        return self._nodes[len(self._nodes) - count :]

    def start_node(self, **settings: Any) -> Server:
        """Starts one server; see ``start_nodes``."""
        return self.start_nodes(1, **settings)[0]

    def start_client(
        self, *nodes: Server | str, log: str = "", module: str = "tests.faults.client", **wishes: object
    ) -> ClientProcess:
        """Starts a client that calls until it is stopped, or for as long as it is told.

        Args:
            nodes: Servers, or their addresses; with several, gRPC goes to the next one where one is away.
            log: The name of its log in the folder; one that ends in .jsonl is JSON lines.
            module: What runs: the client for threads, or ``tests.faults.aio_client``.
            wishes: See ``tests/faults/client.py``.
        """
        file = self.folder / (log or f"client-{len(self._clients)}.ids")
        addresses = [node if isinstance(node, str) else node.address for node in nodes]
        target = addresses[0] if len(addresses) == 1 else "ipv4:" + ",".join(addresses)
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps({"target": target, "log": str(file)} | wishes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        client = ClientProcess(process, file)
        self._clients.append(client)
        return client

    def fault(self, count: int = 1) -> None:
        """Counts injected faults."""
        self._faults += count

    def wait_until(self, condition: Callable[[], bool], what: str, within: float = 60) -> None:
        """Waits for a condition, which must come true."""
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {within:g} s"
            time.sleep(0.02)

    def wait_for_records(self, clients: list[ClientProcess], more: int = 50, within: float = 60) -> None:
        """Waits until each client got so many ranges more."""
        goals = [client.records + more for client in clients]

        def reached() -> bool:
            for client in clients:
                assert client.process.poll() is None, f"a client ended: {client.process.communicate()}"
            return all(client.records >= goal for client, goal in zip(clients, goals, strict=True))

        self.wait_until(reached, f"{more} more ranges for each client", within)

    def export(self, store: str = "") -> Path:
        """Exports the store, as it is now."""
        file = self.folder / f"export-{self._exports}.jsonl"
        self._exports += 1
        with file.open("w") as out:
            done = subprocess.run(
                [IDALLOC, "export", "--store", store or self.store],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                timeout=60,
            )
        assert done.returncode == 0, done.stderr
        return file

    def verify(self, *, exported: bool = True, logs: list[Path] | None = None) -> Verdict:
        """Runs ``idalloc verify`` on all that clients and nodes logged.

        Args:
            exported: Whether the store's counters are looked at, too.
            logs: Further logs of issued ids.
        """
        files = [client.log for client in self._clients if client.log.exists()] + (logs or [])
        # What a fork of a client logs goes to a file of its own.
        files += [child for file in files for child in sorted(file.parent.glob(f"{file.name}.*"))]
        files = [file for file in files if file.stat().st_size]  # one that was killed at once wrote no header
        # One that was killed soon has said nothing, and one that refused to start no more than why.
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
            told=report["messages"],
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
        """Verifies, accepts no finding, and keeps the figures for docs/faults.md.

        Args:
            what: What was done, where a scenario has several parts.
            at_least: How many ids there must be, for the proof to be one.
            note: What else was seen.
            exported: See ``verify``.
            logs: See ``verify``.
        """
        verdict = self.verify(exported=exported, logs=logs)
        assert verdict.clean, verdict.told
        assert verdict.ids >= at_least
        self.evidence.append(
            Evidence(
                what,
                verdict.ids,
                self._faults,
                verdict.findings["twice"],
                verdict.missing,
                verdict.unattributed,
                verdict.stall,
                note,
            )
        )
        return verdict

    def close(self) -> None:
        """Ends all processes, by their ids."""
        for process in [*(each.process for each in self._clients), *(each.process for each in self._nodes)]:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)  # one that is stopped ends only then
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()


def serves(server: Server) -> bool:
    """Waits until a server that was begun serves, or ended; returns which."""
    assert server.process.stdout
    server.welcome = server.process.stdout.readline().strip()
    if "serves on " not in server.welcome:
        server.process.wait()
        return False
    server.address = server.welcome.split("serves on ")[1].split(",")[0]
    return True
