"""The programs of examples/{go,java,node,python} on real servers, sharing one sequence."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.test_http import LOOPBACK, metrics
from tests.languages.conftest import Builds, Secrets
from tests.languages.programs import RANGE_SIZE, REQUESTED_IDS, WAYS, Language, Program
from tests.support.faults.resources import memory_peak
from tests.support.goaway import serving_goaway
from tests.support.issued_log import Record
from tests.support.processes import IDALLOC, Server, environment, running
from tests.support.waiting import hold_for, wait_until

# With cold caches a build downloads its compiler and its packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

TOTAL = 5_000_000
# Small ranges and chunks: some range is always due, and no stream fits a connection's buffers.
RANGE_LIMIT = 1000
POOL, STREAM, DOC_IDS = WAYS.index("pool"), WAYS.index("stream"), WAYS.index("doc-ids")
MAX_MEMORY = 300 * 2**20  # more than an idle JVM has
BEYOND_NUMBER = 2**53 + 1  # the first integer that JavaScript's Number rounds


@contextmanager
def programs(languages: list[Language], folder: Path, *arguments: str) -> Iterator[list[Program]]:
    """Run the programs of some languages until the end of the block."""
    started = [Program(each, folder, *arguments) for each in languages]
    try:
        yield started
    finally:
        for program in started:
            program.stop()


def test_an_example_builds_and_passes_its_own_tests(language: Language) -> None:
    """Each example compiles, and its own tests of the pool pass."""
    assert not language.missing()


def test_connections_that_begin_with_goaway_cost_little(language: Language, tmp_path: Path) -> None:
    """A program fails with little memory if its server ends each connection at once."""
    peaks = [0]
    with serving_goaway() as target, programs([language], tmp_path, "--server", target) as [program]:

        def has_ended() -> bool:
            with suppress(OSError, ValueError):  # it ends meanwhile
                peaks.append(memory_peak(program.process.pid))
            return not program.is_running or peaks[-1] > MAX_MEMORY

        wait_until(has_ended, "its error", seconds=120)
        assert peaks[-1] < MAX_MEMORY
        assert program.process.returncode == 1
        assert program.errors.startswith(("SERVER_UNREACHABLE", "DEADLINE_EXCEEDED"))  # the pool has a timeout


def test_a_hung_server_of_two_stops_no_pool(language: Language, tmp_path: Path) -> None:
    """P1: while one of two servers is stopped by a signal, a pool goes on with the other's ids."""
    with (
        running(tmp_path, max_ids_per_call=RANGE_LIMIT) as one,
        running(tmp_path, max_ids_per_call=RANGE_LIMIT) as other,
        programs([language], tmp_path, "--server", f"{one.address},{other.address}", "--total", str(TOTAL)) as [
            program
        ],
    ):
        wait_until(lambda: program.log.exists() and len(program.records) > 20, "ranges", seconds=120)
        for hung in (one, other):
            hung.process.send_signal(signal.SIGSTOP)
            enough = 2 * program.log.stat().st_size
            wait_until(partial(is_larger, program.log, enough), "ranges while one hangs", seconds=60)
            hung.process.send_signal(signal.SIGCONT)
        ranges = [record for record in program.records if not record.doc_ids]
    ids = {value for record in ranges for value in record.ids}
    assert len(ids) == sum(record.id_count for record in ranges)


def is_larger(file: Path, size: int) -> bool:
    return file.stat().st_size > size


class KilledServer:
    """A server that is killed and started again on its address while programs use it."""

    def __init__(self, stack: ExitStack, folder: Path, **settings: object) -> None:
        self._stack, self._folder, self._settings = stack, folder, settings
        self.server = stack.enter_context(running(folder, **settings))
        self.kills = 0
        self._hit: set[tuple[str, int]] = set()

    def kill(self, users: list[Program]) -> None:
        """End the server, and start another one on its address and store."""
        if self.kills % 3 == 1:  # some of them are stopped: that breaks streams too, but lets short ones end
            self.server.stop()
        else:
            self._hit |= {place(each) for each in users}
            self.server.stop(signal.SIGKILL)
        self.kills += 1
        self.server = self._stack.enter_context(
            running(self._folder, **self._settings | {"listen": self.server.address})
        )

    def kill_in_each_stream(self, users: list[Program]) -> None:
        """Kill the server once in each stream, or in several at once, until all programs ended."""
        sizes: dict[tuple[str, int], int] = {}

        def is_in_stream(program: Program) -> bool:
            if place(program)[1] not in (STREAM, DOC_IDS) or place(program) in self._hit:
                return False
            size = program.log.stat().st_size
            return size > sizes.setdefault(place(program), size)  # the stream has begun

        while any(each.is_running for each in users):
            wait_until(
                lambda: (
                    any(is_in_stream(each) for each in users if each.is_running)
                    or not any(each.is_running for each in users)
                ),
                "the next stream",
                seconds=300,
            )
            running_ones = [each for each in users if each.is_running]
            if running_ones:
                self.kill(running_ones)


def place(program: Program) -> tuple[str, int]:
    """Return a program's language, and in which of its ways it is."""
    return program.language.name, len(program.ways)


def test_all_languages_at_once_while_the_server_is_killed(
    builds: Builds, secrets: Secrets, tmp_path: Path, summary: list[str]
) -> None:
    """P1: programs in all languages share a sequence beyond 2^53; broken streams repeat no id."""
    languages = builds.all()
    with ExitStack() as stack:
        lone = KilledServer(stack, tmp_path, max_ids_per_call=RANGE_LIMIT, drain_timeout="0s", **secrets.settings)
        with secrets.client(lone.server) as client:
            client.sequences.create("orders", start=BEYOND_NUMBER)
        arguments = [*secrets.arguments(lone.server), "--total", str(TOTAL)]
        users = stack.enter_context(programs(languages, tmp_path, *arguments))
        wait_until(lambda: all(len(each.records) > 20 for each in users), "all pools have ranges")
        lone.kill(users)
        lone.kill_in_each_stream(users)
        for user in users:
            assert user.process.returncode == 0, f"{user.language.name}: {user.errors}"
            check_output(user)
            check_streams(user)
        assert lone.server.stop() == 0
    assert lone.kills >= 3
    verify(users, tmp_path, summary, lone.kills)


def check_output(program: Program) -> None:
    """Check that a program printed its ways, with all ids and exactly those of its log."""
    ways = program.ways
    assert [(each.name, each.count) for each in ways] == list(
        zip(WAYS, (TOTAL, RANGE_SIZE, REQUESTED_IDS, RANGE_SIZE, TOTAL, TOTAL), strict=True)
    )
    pool, unary, _, request_id, *_ = ways
    numbers = [record for record in program.records if not record.doc_ids]
    ranges = {(record.ids[0], record.ids[-1]) for record in numbers}
    assert pool.ids[0] == numbers[0].first >= BEYOND_NUMBER
    assert {unary.ids, request_id.ids} <= ranges
    assert any(pool.ids[1] in record.ids for record in numbers)


def check_streams(program: Program) -> None:
    """Check that a kill broke a stream, the rest was requested, and all ids are in the log."""
    records = program.records
    last_unary = max(index for index, record in enumerate(records) if record.request)
    streams = records[last_unary + 1 :]
    streamed = [record for record in streams if not record.doc_ids]
    doc_ids = [record for record in streams if record.doc_ids]
    requests = {kind: len({record.asked for record in each}) for kind, each in enumerate((streamed, doc_ids))}
    print(program.language.name, requests, flush=True)
    assert sum(record.id_count for record in streamed) >= TOTAL
    assert sum(record.id_count for record in doc_ids) >= TOTAL
    assert max(requests.values()) > 1, f"no stream of {program.language.name} was broken"


def verify(users: list[Program], folder: Path, summary: list[str], kills: int) -> None:
    """Prove from the logs and the store that no id was issued twice."""
    export = folder / "export.jsonl"
    command = [IDALLOC, "store", "export", f"--store=sqlite://{folder}/ids.db"]
    export.write_text(subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout)
    logs = [str(user.log) for user in users]
    done = subprocess.run(
        [IDALLOC, "verify", *logs, str(export)], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert done.returncode == 0, done
    proved = re.search(
        r"^PROVED for ([\d,]+) ids in .* none issued twice.* none beyond the export", done.stdout, re.MULTILINE
    )
    assert proved, done.stdout
    used = sum(way.count for user in users for way in user.ways)
    assert used == len(users) * (3 * TOTAL + 2 * RANGE_SIZE + REQUESTED_IDS)
    assert int(proved[1].replace(",", "")) >= used
    names = ", ".join(sorted(user.language.name for user in users))
    summary.append(f"{len(users)} languages ({names}), {used:,} ids, 0 twice; the server was ended {kills} times")


def test_requests_of_several_sequences_share_a_stream(language: Language, tmp_path: Path) -> None:
    """Two sequences and document ids share a stream; a request that fails does not end it."""
    with (
        running(tmp_path, http_listen=LOOPBACK) as server,
        programs([language], tmp_path, "--server", server.address, "--total", "10") as [program],
    ):
        assert program.process.wait(timeout=100) == 0, program.errors
        values = metrics(server)
    assert {code: values.get(f"idalloc_stream_answers_total {code}") for code in ("OK", "INVALID_ARGUMENT")} == {
        "OK": 3,
        "INVALID_ARGUMENT": 1,
    }
    [way] = [each for each in program.ways if each.name == "allocate-stream"]
    [orders] = [record for record in program.records if not record.doc_ids and record.first == int(way.first)]
    [lines] = [record for record in program.records if record.name == "orders-lines"]
    [doc_ids] = [record for record in program.records if record.doc_ids and record.texts[-1] == way.last]
    assert [(record.name, record.id_count) for record in (orders, lines)] == [("orders", 2), ("orders-lines", 5)]
    assert (doc_ids.id_count, way.count) == (3, REQUESTED_IDS)
    [failed] = [line for line in program.output.splitlines() if " failed: " in line]
    assert re.fullmatch(r"allocate-stream: .+ failed: INVALID_REQUEST: id_count: must be .+ not 2147483648.*", failed)


@pytest.fixture(scope="module")
def strict_server(secrets: Secrets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that creates no sequence by itself."""
    folder = tmp_path_factory.mktemp("strict")
    with running(folder, auto_create_sequences=False, **secrets.settings) as server:
        yield server


def run(language: Language, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*language.program, *arguments]
    return subprocess.run(command, cwd=language.folder, env=environment(), capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        ("token", "UNAUTHENTICATED"),
        ("ca", "UNAVAILABLE|SERVER_UNREACHABLE"),  # gRPC's code, or the name that the SDK gives it
        ("sequence", "SEQUENCE_NOT_FOUND"),
    ],
)
def test_an_error_is_one_line_with_its_reason(
    fault: str, reasons: str, language: Language, strict_server: Server, secrets: Secrets, tmp_path: Path
) -> None:
    """A wrong token, an untrusted CA or an unknown sequence is one line on stderr, and exit 1."""
    token_file = tmp_path / "token"
    token_file.write_text(f"idalloc_{'x' * 43}")
    arguments = {
        "token": secrets.arguments(strict_server, token_file=token_file),
        "ca": secrets.arguments(strict_server, ca=Secrets(tmp_path).ca),
        "sequence": secrets.arguments(strict_server),
    }[fault]
    done = run(language, *arguments, "--total", "10", "--sequence", "nowhere")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert re.fullmatch(rf"({reasons}): \S.*\n", done.stderr), done.stderr


@pytest.mark.parametrize("total", ["0", "many"])
def test_a_wrong_argument_is_exit_code_2(language: Language, total: str) -> None:
    """A wrong --total is a usage error: exit code 2, and a text that names the option."""
    done = run(language, "--total", total)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "total" in done.stderr


def test_a_pause_past_the_lease_drops_ids(language: Language, tmp_path: Path) -> None:
    """P4: a process that is paused past the lease uses none of the ids that it held."""
    lease_ttl, total = 3, 2_000_000
    with running(tmp_path, lease_ttl=f"{lease_ttl}s", outage_reserve="1s", store_timeout="1s") as server:
        arguments = ["--server", server.address, "--total", str(total)]
        for attempt in range(10):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            with programs([language], folder, *arguments) as [program]:
                held = pause_with(program, total)
                if not held:
                    continue  # it was faster
                hold_for(lease_ttl + 0.5, "the lease ends while the program is paused")
                program.process.send_signal(signal.SIGCONT)
                assert program.process.wait(timeout=100) == 0, program.errors
                numbers = [record for record in program.records if not record.doc_ids]
                [used_last] = [record for record in numbers if program.ways[POOL].ids[1] in record.ids]
            # It held more ids than needed, yet its last id is of a range requested after the pause.
            assert used_last.asked - held[-1].answered > lease_ttl * 1e9
            return
    pytest.fail("the program was never paused while its pool held all ids that it needed")


def pause_with(program: Program, total: int) -> list[Record]:
    """Pause a program when its pool has all ids it needs; return their records, or none if used."""
    wait_until(lambda: program.records or not program.is_running, "its first range")
    held: list[Record] = []
    while program.is_running:
        program.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_paused(program), "the pause")
        if program.ways:
            return []
        if held:  # for a step: the pool has taken the last range over from its request
            return held
        records = program.records
        if sum(record.id_count for record in records) >= total:
            held = records
        program.process.send_signal(signal.SIGCONT)
        hold_for(0.004, "the program runs in short steps")
    return []


def is_paused(program: Program) -> bool:
    """Return whether all threads of a program are paused, or it has ended."""
    stats = Path(f"/proc/{program.process.pid}/task").glob("*/stat")
    return not program.is_running or all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in stats)
