"""Programs that get the Go client from a module proxy on disk, on servers with TLS and tokens."""

import json
import os
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.languages.conftest import Secrets
from tests.packages.go_module import Consumer
from tests.support.certificates import Certificates
from tests.support.documents import Block, blocks
from tests.support.paths import ROOT
from tests.support.processes import Server, environment, running
from tests.support.waiting import wait_until

# With cold caches a build downloads its compiler and its packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

TOTAL = 1_000_000
PAGE = blocks((ROOT / "docs/guides/go.md").read_text())
PROGRAM, *FRAGMENTS = [block for block in PAGE if block.language == "go"]
GUIDE = """package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/status"

	idalloc "example.com/idalloc/client/go"
	"example.com/idalloc/client/go/idallocv1"
)

var _, _ = errors.Is, status.Code
var _ *idallocv1.Sequence

func run(ctx context.Context, client *idalloc.Client) error {
%s
return nil
}

func main() {
	client, err := idalloc.New("127.0.0.1:50051")
	if err == nil {
		err = run(context.Background(), client)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
"""


def settings(secrets: Secrets) -> dict[str, str]:
    """Return the environment of the program."""
    return environment() | {"CA": str(secrets.ca), "TOKEN_FILE": str(secrets.token_file)}


def test_every_call_of_the_package_works(go_program: Path, secrets: Secrets, tmp_path: Path) -> None:
    """Each method gets ids from a server with TLS and a token; the hook counts them."""
    with running(tmp_path, **secrets.settings) as server:
        done = subprocess.run(
            [go_program, "calls", server.address], env=settings(secrets), capture_output=True, text=True, timeout=100
        )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["texts"] == ["INV-0001", "INV-0002"]
    first, last, *again = got["range"]
    assert last - first == 99
    assert again == [first, last]
    batch_first, *others = got["batch"]
    assert batch_first > last
    assert others == [True, 5]
    assert len(set(got["doc_ids"])) == 3
    assert {len(each) for each in got["doc_ids"]} == {28}
    assert got["stream"] == [50_000, 50_000]
    assert got["allocate_stream"] == 16 * 20 * 2
    assert got["error"] == ["INVALID_REQUEST", "id_count", True]
    assert got["received"] == {
        "AllocateRange": 202,
        "BatchAllocateRanges": 15,
        "GenerateDocId": 3,
        "StreamRanges": 50_000,
        "StreamDocIds": 50_000,
        "AllocateStream": 16 * 20 * 3,
    }


def test_a_client_certificate_is_presented(go_program: Path, tmp_path: Path) -> None:
    """A server that requires client certificates answers a client with one, and no other."""
    certificates = Certificates(tmp_path)
    served, shown = certificates.client("127.0.0.1"), certificates.client("billing")
    with running(tmp_path, tls_cert=served.cert, tls_key=served.key, tls_client_ca=certificates.ca) as server:
        command = (go_program, "calls", server.address)
        with_one = environment() | {"CA": str(certificates.ca), "CERT": str(shown.cert), "KEY": str(shown.key)}
        done = subprocess.run(command, env=with_one, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["texts"] == ["INV-0001", "INV-0002"]
        without = environment() | {"CA": str(certificates.ca)}
        refused = subprocess.run(command, env=without, capture_output=True, text=True, timeout=100)
    assert refused.returncode == 1
    assert refused.stderr.startswith("SERVER_UNREACHABLE: "), refused.stderr


def test_a_pool_issues_no_id_twice_while_servers_are_killed(go_program: Path, secrets: Secrets, tmp_path: Path) -> None:
    """P1: no id of 1,000,000 comes twice while servers are killed in turn; errors are typed."""
    out = tmp_path / "ids"
    with ExitStack() as stack:
        servers = [stack.enter_context(running(tmp_path, **secrets.settings)) for _ in range(2)]
        target = ",".join(server.address for server in servers)
        with out.open("w") as stdout:
            user = subprocess.Popen([go_program, "pool", target, str(TOTAL)], env=settings(secrets), stdout=stdout)
        stack.callback(user.kill)
        kills = 0
        while took_more(user, out) and kills < 20:
            servers[kills % 2] = replaced(stack, servers[kills % 2], tmp_path, secrets)
            kills += 1
        assert user.wait(timeout=300) == 0
    lines = out.read_text().splitlines()
    ids = [int(line) for line in lines if not line.startswith("error")]
    assert len(ids) == len(set(ids)) == TOTAL
    assert kills >= 3
    assert "error untyped" not in lines


def took_more(user: subprocess.Popen[bytes], out: Path) -> bool:
    """Wait until the program has taken some thousand ids; return False if it has ended."""
    size = out.stat().st_size
    wait_until(lambda: user.poll() is not None or out.stat().st_size > size + 500_000, "more ids", seconds=100)
    return user.poll() is None


def replaced(stack: ExitStack, server: Server, folder: Path, secrets: Secrets) -> Server:
    """Kill a server, and start another one on its address."""
    server.stop(signal.SIGKILL)
    return stack.enter_context(running(folder, listen=server.address, **secrets.settings))


def test_each_block_of_the_guide_runs(go_consumer: Consumer, secrets: Secrets, tmp_path: Path) -> None:
    """The Go of docs/guides/go.md compiles in the consumer, and prints what the page shows."""
    assert [block.text for block in PAGE if block.language != "go"] == [f"go get {go_consumer.path}@latest\n"]
    body = "\n".join(
        f"err{number} := func() error {{\n{each.text}{ending(each)}}}()\nif err{number} != nil {{ return err{number} }}"
        for number, each in enumerate(FRAGMENTS)
    )
    sources = {"first": PROGRAM.text, "guide": GUIDE % body}
    with ExitStack() as stack:
        folders = [tmp_path / "plain", tmp_path / "secure"]
        for folder in folders:
            folder.mkdir()
        plain = stack.enter_context(running(folders[0]))
        secure = stack.enter_context(running(folders[1], **secrets.settings))
        places = {
            "127.0.0.1:50051": plain.address,
            "idalloc.example:50051": secure.address,
            '"ca.pem"': json.dumps(str(secrets.ca)),
            '"token"': json.dumps(str(secrets.token_file)),
        }
        for name, source in sources.items():
            for shown, place in places.items():
                source = source.replace(shown, place)
            file = go_consumer.folder / name / "main.go"
            file.parent.mkdir()
            file.write_text(source)
            built = go_consumer.build(f"./{name}")
            done = subprocess.run([built], capture_output=True, text=True, timeout=100, env=dict(os.environ))
            assert done.returncode == 0, done.stdout + done.stderr
            shown_blocks = [PROGRAM] if name == "first" else FRAGMENTS
            assert done.stdout.split("\n")[:-1] == [line for each in shown_blocks for line in prints(each)]


def ending(block: Block) -> str:
    """Return what ends the function that a block becomes."""
    return "" if re.search(r"^return", block.text.splitlines()[-1]) else "return nil\n"


def prints(block: Block) -> list[str]:
    """Return the lines that a block prints: `// 1, 2` for several of one call."""
    found = re.findall(r"fmt\.Println\(.*\) // (.*)$", block.text, re.MULTILINE)
    return [line for shown in found for line in shown.split(", ")]
