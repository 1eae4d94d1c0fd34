"""Secrets of a real server and its store are in no output, log, error or process list."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from aiohttp import web
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, sequences_pb2, sequences_pb2_grpc
from tests.support.command_line import run_here
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.cratedb.statements import without_ties
from tests.support.processes import IDALLOC, Server, environment, running, start_error

# Each test starts several processes, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(240)

# Part of every secret; the password needs percent-encoding.
PLANTED = "pLaNtEd"
PASSWORD = f"{PLANTED}Store:@/?#%"
WRONG = f"idalloc_{PLANTED}WrongToken0123456789abcdefghijklmnop"
BASIC = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()


class Crate(CrateEmulator):
    """The emulator, which can answer with rows that CrateDB never sends: a fault in the server."""

    def __init__(self) -> None:
        super().__init__()
        self.sends_invalid_rows = False
        self.require_password("alice", PASSWORD)

    def _execute(self, statement: str, args: list[Any], body: dict[str, Any]) -> web.Response:
        response = super()._execute(statement, args, body)
        if self.sends_invalid_rows and "RETURNING" in statement and response.text:
            answer = json.loads(response.text)
            ties = 1 + bool(without_ties(statement)[2]) + ("_seq_no, " in statement)
            answer["rows"] = [[*row[:ties], {}] for row in answer.get("rows", [])]
            return web.json_response(answer, status=response.status)
        return response


class Observed:
    """Collects every text that others could read."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, bytes]] = []

    def add(self, where: str, text: str | bytes) -> None:
        self._texts.append((where, text if isinstance(text, bytes) else text.encode()))

    def run(self, *command: str | Path, environ: dict[str, str] | None = None, code: int) -> str:
        """Run a command, and add its outputs and its command line."""
        done = subprocess.run(
            command, env=environ or environment(), capture_output=True, text=True, timeout=120, check=False
        )
        self.add(str(command), done.stdout + done.stderr)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def processes(self, pid: int) -> int:
        """Add what a process list shows of a process and its children; return their number."""
        for file in ("cmdline", "comm", "status"):
            self.add(f"{file} of {pid}", Path(f"/proc/{pid}/{file}").read_bytes())
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return 1 + sum(self.processes(int(child)) for child in children)

    def assert_no_secrets(self, *secrets: str) -> None:
        for secret in (PLANTED, BASIC, quote(PASSWORD, safe=""), *secrets):
            assert [where for where, text in self._texts if secret.encode() in text] == [], f"{secret} is disclosed"


class ObservedHere(Observed):
    """Runs the command in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        super().__init__()
        self._capfd = capfd

    def run(self, *command: str | Path, environ: dict[str, str] | None = None, code: int) -> str:
        """Run the command `idalloc` with these arguments, and add its outputs."""
        done = run_here(self._capfd, environ or environment(), *map(str, command))
        self.add(str(command), done.stdout + done.stderr)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr


@contextmanager
def calling(server: Server, authorization: str) -> Iterator[list[Any]]:
    """Yield a call of every kind with this credential."""
    metadata = (("authorization", authorization),)
    with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ids: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        sequences: Any = sequences_pb2_grpc.SequenceServiceStub(channel)
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        list_services = reflection_pb2.ServerReflectionRequest(list_services="")
        yield [
            lambda: ids.AllocateRange(
                pb.AllocateRangeRequest(sequence="a", id_count=500_000), metadata=metadata, timeout=60
            ),
            lambda: list(
                ids.StreamRanges(pb.StreamRangesRequest(sequence="b", total_id_count=5), metadata=metadata, timeout=60)
            ),
            lambda: sequences.GetSequence(sequences_pb2.GetSequenceRequest(name="a"), metadata=metadata, timeout=60),
            lambda: sequences.DeleteSequence(
                sequences_pb2.DeleteSequenceRequest(name="c"), metadata=metadata, timeout=60
            ),
            lambda: list(reflection.ServerReflectionInfo(iter([list_services]), metadata=metadata, timeout=60)),
        ]


def call_all(observed: Observed, server: Server, authorization: str) -> set[grpc.StatusCode]:
    """Make all calls, add their replies and errors, and return their statuses."""
    codes = set()
    with calling(server, authorization) as calls:
        for call in calls:
            try:
                observed.add("reply", str(call()))
                codes.add(grpc.StatusCode.OK)
            except grpc.RpcError as failed:
                error: Any = failed
                codes.add(error.code())
                observed.add("error", f"{error} {error.details()} {error.debug_error_string()}")
                for key, value in error.trailing_metadata() or ():
                    observed.add(f"trailer {key}", value)
    return codes


def new_token(observed: Observed, file: Path) -> str:
    """Create a token with all roles; only standard output has the token."""
    roles = [part for role in ("allocate", "read", "admin") for part in (f"--{role}", "*")]
    made = subprocess.run([IDALLOC, "token", "new", "boss", *roles], capture_output=True, text=True, check=True)
    file.write_text(made.stderr)
    observed.add("the entry", made.stderr)
    return made.stdout.strip()


@pytest.mark.test_long
@pytest.mark.parametrize(("workers", "way"), [(1, "environment"), (2, "file")])
async def test_no_secret_is_disclosed_by_a_failing_server(tmp_path: Path, workers: int, way: str) -> None:
    """No password, token or hash is in output, logs, errors or process lists, whatever fails."""
    observed = Observed()
    access = tmp_path / "access.toml"
    token = new_token(observed, access)
    digest = hashlib.sha256(token.encode()).hexdigest()
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    async with Crate() as crate:
        credentials, parameter = f":{quote(PASSWORD, safe='')}", ""
        if way == "file":
            credentials, parameter = "", f"?password_file={tmp_path}/password"
        store = f"crate://alice{credentials}@{crate.host}/{parameter}"
        settings = {"access_file": access, "workers": workers, "log_level": "debug", "store_timeout": "3s"}

        def scenario() -> None:
            environ = environment(store=store) | {"PYTHONFAULTHANDLER": "1", "PYTHONASYNCIODEBUG": "1"}
            with running(tmp_path, environ, store=None, outage_reserve="1s", **settings) as server:
                observed.add("serving", server.serving)
                assert observed.processes(server.process.pid) == (1 if workers == 1 else 1 + workers)
                assert call_all(observed, server, f"Bearer {token}") >= {grpc.StatusCode.OK}
                for authorization in (
                    f"Bearer {WRONG}",
                    WRONG,
                    f"Basic {BASIC}",
                    f"Bearer  {WRONG}",
                    f"bearer {WRONG},x",
                ):
                    assert grpc.StatusCode.OK not in call_all(observed, server, authorization)
                access.write_text(f"[[identity]]\nname = 'x'\ntoken_sha256 = ['{WRONG}']\npassword = '{PASSWORD}'\n")
                observed.run(*client(server), "allocate", "orders", environ=environment(token=WRONG), code=1)
                observed.run(*client(server), "allocate", "orders", "3", environ=environment(token=token), code=0)
                observed.run(*client(server), "node", "show", environ=environment(token=token), code=0)

                crate.require_password("alice", "another one")
                assert grpc.StatusCode.UNAVAILABLE in call_all(observed, server, f"Bearer {token}")
                crate.require_password("alice", PASSWORD)
                crate.sends_invalid_rows = True
                assert grpc.StatusCode.INTERNAL in call_all(observed, server, f"Bearer {token}")
                crate.sends_invalid_rows = False
                crate.inject(Fault("drop", times=-1))
                assert grpc.StatusCode.UNAVAILABLE in call_all(observed, server, f"Bearer {token}")
                children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
                for pid in map(int, children):
                    os.kill(pid, signal.SIGABRT)
                server.send(signal.SIGABRT)
                server.process.wait(30)
                assert server.process.stdout
                observed.add("standard output", server.process.stdout.read())
                log = server.log.read_text()
            observed.add("log", log)
            assert "Traceback" in log
            assert "Fatal Python error" in log
            assert "access_not_reloaded" in log

        await asyncio.to_thread(scenario)
    observed.assert_no_secrets(token, token.removeprefix("idalloc_")[:16], WRONG[-16:])
    # Only the access file, and the entry that `token new` prints, have the hash.
    assert digest not in log_of(tmp_path)


def client(server: Server) -> Sequence[str]:
    return (IDALLOC, "--server", server.address)


def log_of(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.glob("server-*.log"))


class TestStartup:
    """Output of refused starts, and of commands without a server."""

    @pytest.fixture
    def observed(self, capfd: pytest.CaptureFixture[str]) -> ObservedHere:
        return ObservedHere(capfd)

    @pytest.mark.parametrize(
        "url",
        [
            f"crate://alice:{quote(PASSWORD, safe='')}@127.0.0.1:1/",
            f"crate://alice:{PASSWORD}@127.0.0.1:1/",
            f"crate://127.0.0.1:1/?schema=doc&jwt={PLANTED}.b.c",
        ],
    )
    def test_a_flag_with_a_password_is_refused(self, tmp_path: Path, url: str, observed: ObservedHere) -> None:
        """A password on the command line is refused, since a process list would show it."""
        (tmp_path / "sequences.jsonl").write_text("")
        for verb in (
            ["serve", "--listen=127.0.0.1:0"],
            ["store", "export"],
            ["store", "import", f"{tmp_path}/sequences.jsonl", "--partial"],
            ["config", "show"],
        ):
            environ = environment(store=f"sqlite://{tmp_path}/ids.db")
            *_, line = observed.run(*verb, "--store", url, environ=environ, code=2).splitlines()
            error = start_error(line) if verb[0] == "serve" else line.removeprefix("idalloc: ")
            assert error.startswith("--store: a list of processes would show its password or token")
            assert "IDALLOC_STORE" in line
            assert "?password_file=/path" in line
        observed.assert_no_secrets()
        assert not (tmp_path / "ids.db").exists()

    @pytest.mark.parametrize(
        ("settings", "file"),
        [
            ({"store": f"crate://alice:{PASSWORD}@127.0.0.1:1/"}, ""),
            ({"store": f"crate://alice:{PLANTED}@127.0.0.1:x/"}, ""),
            ({"store": f"crate://127.0.0.1:1/?jwt={PLANTED}%0A"}, ""),
            ({"store": f"alice:{PLANTED}@127.0.0.1"}, ""),
            ({"store": f"mysql://alice:{PLANTED}@127.0.0.1/"}, ""),
            ({"store_password": PLANTED}, ""),
            ({}, f"store = ['crate://alice:{PLANTED}@127.0.0.1:1/']"),
            ({}, f"[store]\npassword = '{PLANTED}'"),
            ({}, f"store_password = '{PLANTED}'"),
            ({}, f"store = 'crate://alice:{PLANTED}@127.0.0.1:1/"),
            ({}, f"store = crate://alice:{PLANTED}@127.0.0.1:1/"),
            ({"node_prefix": "x"}, f"store = 'crate://alice:{PLANTED}@127.0.0.1:1/'"),
        ],
    )
    def test_malformed_settings_disclose_no_secret(
        self, tmp_path: Path, settings: dict[str, str], file: str, observed: ObservedHere
    ) -> None:
        """An error about a malformed setting does not show its password."""
        (tmp_path / "idalloc.toml").write_text(file)
        line = observed.run(
            "config", "show", f"--config={tmp_path}/idalloc.toml", environ=environment(**settings), code=2
        )
        assert line.count("\n") == 1
        observed.assert_no_secrets()

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_config_show_discloses_no_secret(self, tmp_path: Path, form: list[str], observed: ObservedHere) -> None:
        """`idalloc config show` shows store and witness without their passwords or tokens."""
        (tmp_path / "password").write_text(PASSWORD)
        (tmp_path / "jwt").write_text(PLANTED)
        for store in (
            f"crate://alice:{quote(PASSWORD, safe='')}@127.0.0.1:1/",
            f"crate://127.0.0.1:1/?jwt={PLANTED}",
            f"crate://alice@127.0.0.1:1/?password_file={tmp_path}/password",
            f"crate://127.0.0.1:1/?jwt_file={tmp_path}/jwt",
        ):
            for setting in ("store", "witness"):
                environ = environment(store=f"sqlite://{tmp_path}/ids.db", token=WRONG) | environment(
                    **{setting: store}
                )
                shown = observed.run("config", "show", *form, environ=environ, code=0)
                assert "127.0.0.1:1/?schema=doc" in shown
        observed.assert_no_secrets()

    @pytest.mark.test_long
    async def test_a_failing_store_discloses_no_secret(self, tmp_path: Path) -> None:
        """A store that refuses the password, or sends invalid rows, discloses no secret."""
        observed = Observed()
        async with Crate() as crate:
            environ = environment(store=f"crate://alice:{quote(PASSWORD, safe='')}@{crate.host}/", store_timeout="1s")

            def start(workers: int, code: int) -> str:
                command = (sys.executable, "-m", "idalloc_server", "--listen=127.0.0.1:0", f"--workers={workers}")
                return observed.run(*command, environ=environ, code=code)

            def scenario() -> None:
                for workers in (1, 2):
                    crate.require_password("alice", "another one")
                    assert "check the host, the user and the password" in start(workers, 2)
                    crate.require_password("alice", PASSWORD)
                    crate.sends_invalid_rows = True
                    assert "Traceback" in start(workers, 1 if workers == 1 else 2)
                    crate.sends_invalid_rows = False
                observed.run(IDALLOC, "store", "export", environ=environ, code=0)

            await asyncio.to_thread(scenario)
        observed.assert_no_secrets()
