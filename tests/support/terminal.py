"""A reader's terminals: shell commands, Python code and background servers in one folder."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.waiting import wait_until

SERVER = re.compile(r"^(?:\w+=\S+ )*(?:nohup )?(?:[\w./-]*idalloc serve|make run)\b(?!.*--help)", re.MULTILINE)
LISTEN = re.compile(r"--listen[ =](\S+)")
# Printed after the output, since servers in the background may hold the terminal open.
END = "<end of output>"
# Reads code between two equal lines, runs it, and prints that line and whether it failed.
PYTHON = """
import sys, traceback
names = {"__name__": "__main__"}
while end := sys.stdin.readline():
    failed = 0
    try: exec(compile("".join(iter(sys.stdin.readline, end)), "page", "exec"), names)
    except BaseException: failed = 1; traceback.print_exc()
    print(end.strip(), failed, flush=True)
"""


class Program:
    """A program in a pseudo terminal of its own, where idalloc prints tables."""

    def __init__(self, command: list[str], folder: Path, environ: Mapping[str, str]) -> None:
        master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )
        os.close(slave)
        self._bytes = bytearray()
        self._reader = threading.Thread(target=self._read, args=[master])
        self._reader.start()

    def _read(self, master: int) -> None:
        with suppress(OSError):  # at the end
            while read := os.read(master, 65536):
                self._bytes += read
        os.close(master)

    def printed(self) -> str:
        """Return its output up to now."""
        return self._bytes.decode(errors="replace")

    def write(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process.stdin
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end_input(self) -> None:
        """Press Ctrl-D."""
        assert self.process.stdin
        self.process.stdin.close()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)

    def close(self) -> None:
        """End it, and what it started in the background."""
        # The terminal is open as long as one of them runs, and no other group has the number.
        if self.process.poll() is None or self._reader.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.end_input()
        self.process.wait()
        self._reader.join()


class Terminal:
    """A reader in the folder ``folder``/page."""

    def __init__(self, folder: Path, ports: Mapping[int, int]) -> None:
        self.folder = folder / "page"
        self.ports = ports  # the page's ports, and the free ones that take their place
        self.path = f"{Path(sys.executable).parent}:{ROOT}/.build/bin:{os.environ['PATH']}"
        self._state, home, address = folder / "state", folder / "home", f"127.0.0.1:{ports[50051]}"
        self._programs: list[Program] = []
        self._servers: dict[str, Program] = {}
        self._python: Program | None = None
        self.folder.mkdir()
        home.mkdir()
        self._state.touch()
        folders = {"PATH": self.path, "HOME": str(home), "XDG_STATE_HOME": f"{home}/.local/state"}
        # `make run` turns the HTTP port on at this address.
        http = {"http_listen": f"127.0.0.1:{ports[50080]}"} if 50080 in ports else {}
        self._environment = (
            environment(listen=address, server=address, **http) | folders | {"COLUMNS": "120", "NO_COLOR": "1"}
        )

    def shell(self, commands: str, shown_lines: int = 0, seconds: float = 60) -> tuple[int, str]:
        """Run commands; return the exit code and what they print.

        Args:
            commands: Commands. If the last one starts a server, it runs on in the background.
            shown_lines: How many lines of such a server's output to wait for, and to return.
            seconds: When to give up.
        """
        commands = self.with_free_ports(commands).strip()
        joined = commands.replace("\\\n", " ")
        servers = len(SERVER.findall(joined))
        in_front = SERVER.match(joined.splitlines()[-1]) is not None and not joined.endswith("&")
        address = (LISTEN.findall(joined) or [""])[-1]
        if in_front and address in self._servers:
            self._servers.pop(address).interrupt()
        # Variables and the folder last.
        # A server ends after later blocks: it must not bring back the variables of its start.
        state = "/dev/null" if in_front else self._state
        at_exit = f"{{ export -p; echo cd '\"$PWD\"'; }} >{state}; echo '{END}'"
        program = self._start("bash", "-ec", f". {self._state}\ntrap {shlex.quote(at_exit)} EXIT\n{commands}")
        program.end_input()
        if in_front:
            self._servers[address] = program

        def serves() -> bool:
            printed = program.printed()
            return printed.count("serves on ") >= servers and printed.count("\n") >= shown_lines

        wait_until(lambda: END in program.printed() or (in_front and serves()), commands, seconds)
        printed, ended, _ = self.with_page_ports(program.printed()).partition(END)
        code = program.process.wait(seconds) if ended else 0
        if servers and not code:
            wait_until(serves, f"serving: {commands}", seconds)
        lines = printed.splitlines(keepends=True)
        return code, "".join(lines if ended else lines[:shown_lines])

    def python(self, code: str) -> tuple[bool, str]:
        """Run Python code in the page's interpreter; return its success and its output."""
        if self._python is None:
            self._python = self._start(sys.executable, "-uc", PYTHON)
        program, start = self._python, len(self._python.printed())
        end = f"<end {start}>"
        program.write(f"{end}\n{self.with_free_ports(code)}\n{end}\n")
        wait_until(lambda: re.search(f"{end} [01]", program.printed()) or program.process.poll() is not None, code)
        printed, _, failed = program.printed()[start:].partition(end)
        return failed.strip() == "0", self.with_page_ports(printed)

    def stop_servers(self) -> None:
        """Press Ctrl-C where servers run in front of a terminal."""
        for address in [*self._servers]:
            self._servers.pop(address).interrupt()

    def kill_servers(self) -> None:
        """Kill the same servers."""
        for address in [*self._servers]:
            self._servers.pop(address).close()

    def with_free_ports(self, text: str) -> str:
        """Replace the page's ports by free ones."""
        for port, free in self.ports.items():
            text = re.sub(rf":{port}\b", f":{free}", text)
        return text

    def with_page_ports(self, text: str) -> str:
        """Replace free ports by those of the page."""
        for port, free in self.ports.items():
            text = re.sub(rf":{free}\b", f":{port}", text)
        return text

    def close(self) -> None:
        """End all programs of the page."""
        for program in self._programs:
            program.close()

    def _start(self, *command: str) -> Program:
        self._programs.append(Program([*command], self.folder, self._environment))
        return self._programs[-1]
