"""CrateDB clusters for tests: the emulator, or a real one, also behind a proxy with faults."""

import http.client
import json
import os
import shlex
import subprocess
import urllib.request
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from tests.support.cratedb.fault_proxy import ProxyFaults
from tests.support.processes import start_module

# URL of a real CrateDB: crate://user@host:4200,host2:4200/
URL = os.environ.get("IDALLOC_TEST_CRATEDB_URL", "")
# Command that disrupts nodes of the real CrateDB. It gets two more arguments: pause, resume, kill
# or start, and the name of a node as in sys.nodes. It returns when that is done.
HARM_COMMAND = os.environ.get("IDALLOC_TEST_CRATEDB_HARM", "")
TABLES = ("sequences", "start_timestamps", "allocations")


class CrateCluster:
    """A cluster with its own schema; ``remove`` drops the tables."""

    def __init__(self, hosts: Sequence[str], user: str = "") -> None:
        self.hosts = list(hosts)  # HOST:PORT of each node
        self._schema = f"idalloc_test_{uuid.uuid4().hex[:12]}"
        self.store = self.url(self.hosts, user)  # the store's URL for a server
        self._user = user

    @classmethod
    def real(cls) -> Self:
        """Return the cluster of ``IDALLOC_TEST_CRATEDB_URL``."""
        user, _, hosts = urlsplit(URL).netloc.rpartition("@")
        return cls(hosts.split(","), user)

    def url(self, hosts: Sequence[str], user: str = "") -> str:
        """Return the store's URL for a subset of the hosts."""
        return f"crate://{f'{user}@' if user else ''}{','.join(hosts)}/?schema={self._schema}"

    def url_preferring(self, first: int) -> str:
        """Return the store's URL with another host first, which a server then prefers."""
        return self.url(self.hosts[first:] + self.hosts[:first], self._user)

    def sql(self, statement: str, *args: object, timeout: float = 60) -> list[list[Any]]:
        """Run a statement on the first host that answers; ``{}`` stands for the schema.

        Raises:
            OSError: No host executed the statement.
        """
        body = json.dumps({"stmt": statement.format(self._schema), "args": args}).encode()
        failure: Exception | None = None
        for host in self.hosts:
            headers = {"Content-Type": "application/json"}
            # urllib leaves the socket of a silent host to the garbage collector, which warns.
            with closing(http.client.HTTPConnection(host, timeout=timeout)) as connection:
                try:
                    connection.request("POST", "/_sql", body, headers)
                    answer = connection.getresponse()
                    if answer.status == http.client.OK:
                        rows: list[list[Any]] = json.load(answer)["rows"]
                        return rows
                    failure = OSError(f"{host} answered {answer.status}: {answer.read()!r}")
                except OSError as error:
                    failure = error
        assert failure
        raise failure

    def primary(self) -> str:
        """Return the name of the node with the primary shard of the table ``sequences``."""
        rows = self.sql(
            "SELECT n.name FROM sys.shards s JOIN sys.nodes n ON s.node['id'] = n.id"
            " WHERE s.schema_name = '{}' AND s.table_name = 'sequences' AND s.\"primary\""
        )
        return str(rows[0][0]) if rows else ""

    def master(self) -> str:
        """Return the name of the elected master."""
        rows = self.sql("SELECT n.name FROM sys.cluster c JOIN sys.nodes n ON c.master_node = n.id")
        return str(rows[0][0]) if rows else ""

    def nodes(self) -> list[str]:
        """Return the names of all nodes."""
        return [str(name) for (name,) in self.sql("SELECT name FROM sys.nodes ORDER BY name")]

    def is_writable(self, sequence: str) -> bool:
        """Whether a write of a sequence's row succeeds within 2 s; the row keeps its values."""
        try:
            self.sql('UPDATE "{}".sequences SET granted = granted WHERE name = ?', sequence, timeout=2)
        except OSError:
            return False
        return True

    def started_copies(self) -> int:
        """Return the number of started shard copies of the table ``sequences``; 0 if the cluster
        does not answer.
        """
        found = "schema_name = '{}' AND table_name = 'sequences' AND state = 'STARTED'"
        try:
            return int(self.sql(f"SELECT count(*) FROM sys.shards WHERE {found}", timeout=10)[0][0])
        except OSError:
            return 0

    def disrupt(self, action: Literal["pause", "resume", "kill", "start"], node: str) -> None:
        """Disrupt a node of a real cluster, or restore it."""
        done = subprocess.run([*shlex.split(HARM_COMMAND), action, node], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{action} {node}: {done.stderr}"

    def remove(self) -> None:
        """Drop the tables."""
        for table in TABLES:
            self.sql(f'DROP TABLE IF EXISTS "{{}}"."{table}"')


class FaultProxy:
    """A fault-injecting proxy in a process of its own, as a context manager that ends it.

    Args:
        behind: HOST:PORT of each node behind it.
        hosts: Number of addresses of the proxy, which servers see as nodes of a cluster.
    """

    hosts: list[str]  # HOST:PORT of each address

    def __init__(self, behind: Sequence[str], hosts: int = 1) -> None:
        self._arguments = [f"--to={','.join(behind)}", f"--hosts={hosts}"]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            proxy = json.loads(start_module(stack, "tests.support.cratedb.fault_proxy", *self._arguments))
            print("the proxy's seed:", proxy["seed"])
            self._commands = f"http://127.0.0.1:{proxy['commands']}/"
            self.hosts = [f"127.0.0.1:{port}" for port in proxy["hosts"]]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.inject()
        self._stack.close()

    def inject(self, *kinds: str, **options: Any) -> Counter[str]:
        """Replace the proxy's faults by these ``ProxyFaults``; without kinds, end all faults.

        Returns:
            The number of faults injected so far, by kind.
        """
        return self._command(vars(ProxyFaults(list(kinds), **options)))

    @property
    def injected(self) -> Counter[str]:
        """The number of faults injected so far, by kind."""
        return self._command(None)

    def _command(self, command: object) -> Counter[str]:
        request = urllib.request.Request(self._commands, json.dumps(command).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Counter(json.load(answer))


class ProxiedCrate(FaultProxy):
    """A CrateDB behind a fault-injecting proxy. With a real cluster, each address stands for one of
    its nodes.

    Args:
        hosts: Number of addresses of the proxy.
        real: Whether to use the real cluster of ``IDALLOC_TEST_CRATEDB_URL``, not the emulator.
    """

    def __init__(self, hosts: int = 1, real: bool = bool(URL)) -> None:
        self._before = ExitStack()
        self._real = real
        if real:
            behind, user = CrateCluster.real().hosts, urlsplit(URL).username or ""
        else:
            started = start_module(self._before, "tests.support.cratedb.emulator")
            behind, user = [started.removeprefix("crate://").strip("/")], ""
        self._user = user
        super().__init__(behind, hosts)

    def __enter__(self) -> Self:
        with self._before as before:
            super().__enter__()
            self.crate = CrateCluster(self.hosts, self._user)  # the cluster as servers see it
            self._stack.push(before.pop_all())
            if self._real:
                self._stack.callback(self.crate.remove)
        return self
