"""CrateDB for a scenario, the emulator or a real one, behind a proxy that harms what passes."""

import http.client
import json
import os
import shlex
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from tests.faults.proxy import Weather

# A real CrateDB is named here: crate://user@host:4200,host2:4200/
URL = os.environ.get("IDALLOC_TEST_CRATEDB_URL", "")
# And here the command that harms its nodes. It is run with two words more: what to do, which is pause, resume, kill or
# start, and the name of the CrateDB node (as in sys.nodes). It returns when that is done.
HARM = os.environ.get("IDALLOC_TEST_CRATEDB_HARM", "")
TABLES = ("sequences", "start_timestamps", "allocations")


class Cratedb:
    """A cluster, in a schema of its own, which is removed at the end.

    Attributes:
        store: Its URL for a server.
        hosts: Its hosts.
    """

    def __init__(self, hosts: Sequence[str], user: str = "") -> None:
        self.hosts = list(hosts)
        self._schema = f"idalloc_test_{uuid.uuid4().hex[:12]}"
        self.store = self.url(self.hosts, user)
        self._user = user

    @classmethod
    def real(cls) -> Self:
        """The one that the environment names."""
        user, _, hosts = urlsplit(URL).netloc.rpartition("@")
        return cls(hosts.split(","), user)

    def url(self, hosts: Sequence[str], user: str = "") -> str:
        """The URL of the same tables by other hosts."""
        return f"crate://{f'{user}@' if user else ''}{','.join(hosts)}/?schema={self._schema}"

    def in_order(self, first: int) -> str:
        """The store's URL with another host in front: a server goes to the next one only where it must."""
        return self.url(self.hosts[first:] + self.hosts[:first], self._user)

    def sql(self, statement: str, *args: object, timeout: float = 60) -> list[list[Any]]:
        """Runs a statement past idalloc on the first host that answers; ``{}`` is the schema."""
        body = json.dumps({"stmt": statement.format(self._schema), "args": args}).encode()
        failure: Exception | None = None
        for host in self.hosts:
            headers = {"Content-Type": "application/json"}
            # urllib leaves the socket of a host that is silent to the garbage collector, which warns.
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
        """The name of the node that has the primary of the counters' table."""
        rows = self.sql(
            "SELECT n.name FROM sys.shards s JOIN sys.nodes n ON s.node['id'] = n.id"
            " WHERE s.schema_name = '{}' AND s.table_name = 'sequences' AND s.\"primary\""
        )
        return str(rows[0][0]) if rows else ""

    def master(self) -> str:
        """The name of the node that is the elected master."""
        rows = self.sql("SELECT n.name FROM sys.cluster c JOIN sys.nodes n ON c.master_node = n.id")
        return str(rows[0][0]) if rows else ""

    def nodes(self) -> list[str]:
        """The names of all nodes."""
        return [str(name) for (name,) in self.sql("SELECT name FROM sys.nodes ORDER BY name")]

    def writes(self, sequence: str) -> bool:
        """Whether a write of a row, which changes nothing in it, reaches all its copies at once."""
        try:
            self.sql('UPDATE "{}".sequences SET granted = granted WHERE name = ?', sequence, timeout=2)
        except OSError:
            return False
        return True

    def copies(self) -> int:
        """How many copies of the counters' table are up to date, where the cluster says that."""
        found = "schema_name = '{}' AND table_name = 'sequences' AND state = 'STARTED'"
        try:
            return int(self.sql(f"SELECT count(*) FROM sys.shards WHERE {found}", timeout=10)[0][0])
        except OSError:
            return 0

    def harm(self, what: Literal["pause", "resume", "kill", "start"], node: str) -> None:
        """Harms a node of a real cluster."""
        done = subprocess.run([*shlex.split(HARM), what, node], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{what} {node}: {done.stderr}"

    def remove(self) -> None:
        """Removes the tables."""
        for table in TABLES:
            self.sql(f'DROP TABLE IF EXISTS "{{}}"."{table}"')


class Proxied:
    """CrateDB behind a proxy. A context manager: at its end processes have ended.

    Args:
        hosts: How many addresses the proxy has: to a server it is a cluster of so many.

    Attributes:
        crate: The cluster as servers see it.
        seed: Of the proxy's dice.
    """

    def __init__(self, hosts: int = 1) -> None:
        self._hosts = hosts
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if URL:
                behind = Cratedb.real().hosts[0]
                user = urlsplit(URL).username or ""
            else:
                [behind, user] = [
                    _start(stack, "tests.support.cratedb.emulator").removeprefix("crate://").strip("/"),
                    "",
                ]
            told = json.loads(_start(stack, "tests.faults.proxy", f"--to={behind}", f"--hosts={self._hosts}"))
            print("the proxy's seed:", told["seed"])
            self._commands = f"http://127.0.0.1:{told['commands']}/"
            self.crate = Cratedb([f"127.0.0.1:{port}" for port in told["hosts"]], user)
            if URL:
                stack.callback(self.crate.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.harm()
        self._stack.close()

    def harm(self, *kinds: str, **weather: Any) -> Counter[str]:
        """Harms what passes from now on; see ``Weather``. Without kinds, no more.

        Returns:
            How much was harmed until now, by kind.
        """
        return self._command(vars(Weather(list(kinds), **weather)))

    @property
    def harmed(self) -> Counter[str]:
        """How much was harmed, by kind."""
        return self._command(None)

    def _command(self, command: object) -> Counter[str]:
        request = urllib.request.Request(self._commands, json.dumps(command).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Counter(json.load(answer))


def _start(stack: ExitStack, module: str, *arguments: str) -> str:
    """Starts a process that ends with the stack, and returns the first line that it prints."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.kill)
    line = process.stdout.readline()
    assert line, f"{module} did not start"
    return line.strip()
