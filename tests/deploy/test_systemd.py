"""The systemd unit is valid and hardened, and the server notifies it as `Type=notify` needs."""

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from idalloc_server.settings.model import Settings
from idalloc_server.workers.supervisor import STOP_MARGIN_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import environment, running

UNIT = ROOT / "deploy/systemd/idalloc.service"
# systemd-analyze calls up to 3.0 "OK"; higher is "MEDIUM" and worse.
MAX_EXPOSURE = 20  # in tenths


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze; skip the test where it is absent."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return a copy of the unit whose program and user exist on this machine."""
    text = UNIT.read_text()
    assert "/opt/idalloc/bin/idalloc serve" in text
    assert "User=idalloc\n" in text
    copy = tmp_path / UNIT.name
    copy.write_text(
        text.replace("/opt/idalloc/bin/idalloc serve", f"{sys.executable} serve").replace("User=idalloc", "User=daemon")
    )
    return copy


class TestUnit:
    def test_systemd_accepts_it(self, unit: Path) -> None:
        """`systemd-analyze verify` finds no unknown key, no wrong value and no missing program."""
        done = analyze("verify", "--man=no", str(unit))
        assert (done.returncode, done.stderr) == (0, "")

    def test_systemd_finds_an_unknown_key(self, unit: Path) -> None:
        """The check above can fail: a misspelled key is named."""
        unit.write_text(unit.read_text().replace("ProtectHome=", "ProtectHomes="))
        assert "ProtectHomes" in analyze("verify", "--man=no", str(unit)).stderr

    def test_it_is_hardened(self, unit: Path) -> None:
        """`systemd-analyze security` rates the unit as well protected."""
        done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(unit))
        if "unrecognized option" in done.stderr:
            pytest.skip("systemd-analyze is too old to check a file")
        assert done.returncode == 0, done.stdout.splitlines()[-1]

    def test_it_allows_enough_open_files(self) -> None:
        """The server raises its limit to the hard one, `LimitNOFILE`, enough for its settings."""
        limit = int(UNIT.read_text().partition("LimitNOFILE=")[2].split()[0])
        assert limit == 65_536

    def test_it_waits_until_the_server_kills_a_hanging_worker(self) -> None:
        """`TimeoutStopSec` exceeds the default `drain_timeout` and the supervisor's margin."""
        seconds = int(UNIT.read_text().partition("TimeoutStopSec=")[2].partition("s")[0])
        assert seconds > Settings().drain_timeout + STOP_MARGIN_SECONDS


class TestNotifications:
    @pytest.mark.parametrize(
        ("kind", "workers"), [("path", 1), ("abstract", 1), pytest.param("path", 2, marks=pytest.mark.test_long)]
    )
    def test_ready_and_stopping_are_sent_once(self, tmp_path: Path, kind: str, workers: int) -> None:
        """The server sends READY=1 once it serves and STOPPING=1 as it stops; workers nothing."""
        name = str(tmp_path / "notify") if kind == "path" else f"@{tmp_path}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(name.replace("@", "\0", 1) if kind == "abstract" else name)
            manager.settimeout(30)
            environ = environment() | {"NOTIFY_SOCKET": name}
            with running(tmp_path, environ, workers=workers) as server:
                assert manager.recv(100) == b"READY=1"
                server.send(signal.SIGTERM)
                assert manager.recv(100) == b"STOPPING=1"
                assert server.process.wait(30) == 0
            manager.setblocking(False)
            with pytest.raises(BlockingIOError):
                manager.recv(100)

    @pytest.mark.parametrize("name", ["/nowhere/notify", "vsock:2:1"])
    def test_a_server_without_a_service_manager_serves(self, tmp_path: Path, name: str) -> None:
        """A variable that names no socket of this machine changes nothing."""
        with running(tmp_path, environment() | {"NOTIFY_SOCKET": name}) as server:
            assert server.stop() == 0
