"""Real servers refuse invalid settings; flags override environment, files and defaults."""

import json
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from tests.support.processes import environment, running, serve_command, start_error


class TestInvalidSettings:
    """An invalid setting ends with exit code 2, and one line with its name and the next step."""

    @pytest.fixture(autouse=True)
    def capture(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def invalid(self, *, env: dict[str, str] | None = None, **settings: object) -> str:
        """Start a server that must refuse its settings; return its error."""
        flags = serve_command(**settings)[3:]
        return self._error(run_here(self.capfd, env or environment(), "serve", *flags))

    def refused(self, **settings: object) -> str:
        """Start a server that must refuse its address or its store; return its error."""
        return self._error(
            subprocess.run(serve_command(**settings), env=environment(), capture_output=True, text=True, timeout=50)
        )

    def _error(self, done: "subprocess.CompletedProcess[str]") -> str:
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        return start_error(done.stderr)

    def test_a_port_in_use_is_refused(self, tmp_path: Path) -> None:
        """A port of another server is refused."""
        with running(tmp_path) as server:
            line = self.refused(listen=server.address, store=f"sqlite://{tmp_path}/other.db")
        assert line.startswith("listen: ")
        assert "in use" in line

    def test_a_port_of_another_program_is_refused(self) -> None:
        """A port of another program is refused."""
        with closing(socket.create_server(("127.0.0.1", 0))) as taken:
            assert "in use" in self.refused(listen=f"127.0.0.1:{taken.getsockname()[1]}")

    def test_an_unknown_host_is_refused(self, tmp_path: Path) -> None:
        """A host name without an address is refused."""
        assert "listen" in self.refused(listen="no.such.host.invalid:50051", store=f"sqlite://{tmp_path}/ids.db")

    @pytest.mark.parametrize("value", ["-1", "65536", "seven", ""])
    def test_a_prefix_outside_its_range_is_refused(self, value: str) -> None:
        """A node_prefix outside 0 to 65535 is refused."""
        line = self.invalid(node_prefix=value)
        assert line.startswith("--node-prefix: ")

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("listen", "127.0.0.1"),
            ("listen", "127.0.0.1:99999"),
            ("lease_ttl", "10"),
            ("lease_ttl", "0s"),
            ("lease_ttl", "1s"),
            ("store_timeout", "99999999999h"),
            ("max_ids_per_call", "0"),
            ("prefix_conflict", "ignore"),
            ("auto_create_sequences", "perhaps"),
        ],
    )
    def test_an_invalid_value_is_refused(self, tmp_path: Path, setting: str, value: str) -> None:
        """An error about an invalid value names its setting."""
        settings: dict[str, Any] = {"store": f"sqlite://{tmp_path}/ids.db", setting: value}
        line = self.invalid(**settings)
        assert setting in line.replace("-", "_")

    @pytest.mark.test_long
    def test_a_port_in_use_on_one_address_is_refused(self, tmp_path: Path) -> None:
        """A host name with several addresses is refused if one of them is in use."""
        with running(tmp_path) as server:
            port = server.address.rpartition(":")[2]
            line = self.refused(listen=f"localhost:{port}", store=f"sqlite://{tmp_path}/other.db")
            assert "in use" in line

    def test_a_user_without_a_home_must_set_a_store(self) -> None:
        """Without a home folder, and so without a default store, the setting store is required."""
        program = (
            "import pathlib, runpy, sys\n"
            "def home(): raise RuntimeError('Could not determine home directory.')\n"
            "pathlib.Path.home = home\n"
            "sys.argv = ['idalloc_server', '--listen=127.0.0.1:0']\n"
            "runpy.run_module('idalloc_server', run_name='__main__')\n"
        )
        env = {name: value for name, value in environment().items() if name != "XDG_STATE_HOME"}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=50)
        assert done.returncode == 2
        assert start_error(done.stderr).startswith("store: ")

    def test_an_invalid_variable_is_named(self) -> None:
        """An error about an invalid environment variable names it."""
        assert self.invalid(env=environment(lease_ttl="soon")).startswith("IDALLOC_LEASE_TTL: ")

    def test_an_unknown_variable_is_refused(self) -> None:
        """An unknown environment variable IDALLOC_* is refused."""
        assert "IDALLOC_NODE_PREFX: there is no such setting" in self.invalid(env=environment(node_prefx="7"))

    def test_an_unreadable_file_is_refused(self, tmp_path: Path) -> None:
        """A configuration file that is missing or not TOML is refused."""
        broken = tmp_path / "broken.toml"
        broken.write_text("node_prefix = = 7")
        assert "is not TOML" in self.invalid(config=broken)
        assert "No such file" in self.invalid(config=tmp_path / "missing.toml")

    def test_an_unknown_setting_in_a_file_is_refused(self, tmp_path: Path) -> None:
        """An unknown setting in the configuration file is refused."""
        file = tmp_path / "idalloc.toml"
        file.write_text("node_prefx = 7")
        assert f"node_prefx in {file}: there is no such setting" in self.invalid(config=file)

    def test_former_names_are_flags(self) -> None:
        """The former name of access_file turns authentication on; a removed flag has no effect.

        ``config show`` warns of each in one line, with its next step.
        """
        flags = ("--access=x.toml", "--max-connections-per-address=0")
        done = run_here(self.capfd, environment(), "config", "show", *flags)
        assert done.returncode == 0, done.stderr
        assert 'access_file = "x.toml"  # --access\n' in done.stdout
        assert "max_connections" not in done.stdout
        assert done.stderr.splitlines() == [
            "idalloc: --access is deprecated; use --access-file",
            "idalloc: --max-connections-per-address is deprecated; "
            "remove it: an address has at most a quarter of a port's connections",
        ]

    @pytest.mark.parametrize("store", ["redis://localhost", "ids.db", "sqlite://ids.db", "crate://", "mysql://h/"])
    def test_an_unknown_store_url_is_refused(self, store: str) -> None:
        """A store URL with an unknown scheme, or without what its scheme needs, is refused."""
        line = self.invalid(store=store)
        assert line.startswith("store: ")

    def test_another_programs_database_is_refused(self, tmp_path: Path) -> None:
        """A file that is not a database, or another program's database, is refused."""
        (tmp_path / "notes.db").write_text("not a database, but long enough to be taken for one " * 20)
        assert self.refused(store=f"sqlite://{tmp_path}/notes.db").startswith("store: ")
        with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
            shop.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
        assert self.refused(store=f"sqlite://{tmp_path}/shop.db").startswith("store: ")

    @pytest.mark.test_long
    def test_prefix_conflict_refuse_refuses_a_prefix_in_use(self, tmp_path: Path) -> None:
        """P6: with prefix_conflict = refuse, a prefix in use is refused until its holder stops."""
        store = f"sqlite://{tmp_path}/ids.db"
        with running(tmp_path, node_prefix=4) as server:
            line = self.refused(store=store, node_prefix=4, prefix_conflict="refuse")
            assert line.startswith("node_prefix: ")
            assert server.stop() == 0
        with running(tmp_path, node_prefix=4, prefix_conflict="refuse") as server:
            assert server.stop() == 0
        with running(tmp_path, node_prefix=4, prefix_conflict="refuse") as server:
            server.stop(signal.SIGKILL)  # it still holds the prefix
        assert "in use" in self.refused(store=store, node_prefix=4, prefix_conflict="refuse")


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A flag overrides the environment, which overrides the file, which overrides the default."""
    file = tmp_path / "idalloc.toml"
    durations = 'lease_ttl = "90s"\noutage_reserve = "30s"\nstore_timeout = "1m"\n'
    file.write_text(f"node_prefix = 1\n{durations}auto_create_sequences = false\n")
    environ = environment(node_prefix="2", lease_ttl="2m", store="crate://me:secret@db:4200/?schema=ids")
    command = ["config", "show", f"--config={file}", "--node-prefix=3"]
    done = run_here(capfd, environ, *command)
    assert done.returncode == 0
    shown = dict(line.split("  # ")[0].split(" = ", 1) for line in done.stdout.splitlines())
    assert shown["node_prefix"] == "3"
    assert shown["lease_ttl"] == '"120s"'
    assert shown["store_timeout"] == '"60s"'
    assert shown["auto_create_sequences"] == "false"
    assert shown["max_ids_per_call"] == "1000000"
    assert "secret" not in done.stdout
    assert "--node-prefix" in done.stdout
    assert "IDALLOC_LEASE_TTL" in done.stdout
    as_json = run_here(capfd, environ, *command, "--json")
    assert json.loads(as_json.stdout)["node_prefix"] == 3
    assert "secret" not in as_json.stdout
