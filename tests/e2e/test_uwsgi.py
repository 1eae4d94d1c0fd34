"""uWSGI forks workers without Python's fork hooks after the application has allocated ids."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from urllib.request import urlopen

import pytest

import idalloc
from tests.support.environments import uwsgi
from tests.support.paths import ROOT
from tests.support.processes import environment, running

CLIENT = Path(idalloc.__file__).parents[1]
WORKERS = 3

# uWSGI may have to be compiled first.
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no uWSGI here"),
    pytest.mark.timeout(400),
    pytest.mark.test_long,
]


@pytest.fixture(scope="module")
def program() -> Path:
    return uwsgi()


@pytest.mark.parametrize("fork_support", [True, False], ids=["fork-support", "no-support"])
@pytest.mark.parametrize("threads", [[], ["--enable-threads"]], ids=["plain", "threads"])
def test_uwsgi_workers_issue_no_ids_of_their_master(
    program: Path, tmp_path: Path, threads: list[str], fork_support: bool
) -> None:
    """P8: ids that uWSGI's master holds when it forks are issued by none of its workers."""
    command = [
        str(program),
        *["--master", "--processes", str(WORKERS), "--need-app", "--die-on-term"],
        *["--http-socket", "127.0.0.1:0", "--pythonpath", str(ROOT), "--pythonpath", sysconfig.get_path("purelib")],
        *["--pythonpath", str(CLIENT), "--module", "tests.support.uwsgi_app", *threads],
    ]
    with running(tmp_path) as server:
        env = environment(server=server.address) | {
            "GRPC_ENABLE_FORK_SUPPORT": str(int(fork_support)),
            "GRPC_VERBOSITY": "NONE",
            "RECEIVED_FOLDER": str(tmp_path),
            "WORKERS": str(WORKERS),
        }
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            lines: list[str] = []
            try:
                for line in process.stderr:
                    lines.append(line)
                    if f"spawned uWSGI worker {WORKERS} " in line:
                        break
                [port] = [line.split("127.0.0.1:")[1].split()[0] for line in lines if "bound to TCP address" in line]
                with ThreadPoolExecutor(WORKERS) as callers:
                    url = f"http://127.0.0.1:{port}/"
                    answers = [callers.submit(lambda: urlopen(url, timeout=60).read()) for _ in range(WORKERS)]
                    assert {answer.result() for answer in answers} == {b"done\n"}
            finally:
                os.kill(process.pid, signal.SIGTERM)
                lines += process.stderr
                print("".join(lines))
    master = json.loads((tmp_path / "master.json").read_text())
    workers = [json.loads(path.read_text()) for path in tmp_path.glob("worker-*.json")]
    assert len(master) == 900
    assert len(workers) == WORKERS
    if fork_support:
        assert all(len(worker) == 900 for worker in workers)
    else:
        assert all(len(worker) == 1 and "GRPC_ENABLE_FORK_SUPPORT=1" in worker[0] for worker in workers)
        workers = []
    ids = list(chain(master, *workers))
    assert all(isinstance(each, int) for each in ids)
    assert len(set(ids)) == len(ids)
