"""Random files and environments are read, or refused with the documented error."""

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc.verify._logs import InvalidFile
from idalloc.verify._spans import MemoryLimits
from idalloc.verify._verdict import to_json, to_text, verify
from idalloc_server.auth import access_file
from idalloc_server.backup import export_file
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Reset, Sequence, name_of_period
from idalloc_server.domain.store.records import Row
from idalloc_server.settings import sources
from idalloc_server.settings.installed import installed
from idalloc_server.settings.persisted import NAMES, NodeSettingsFile
from tests.fuzz.inputs import ODD_TEXTS, TEXTS, TRIED, mutated, tries
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.planted_logs import Planted, PlantedLog

SETTINGS = sorted(installed().settings.model_fields)
# Valid and odd values of settings in TOML.
LITERALS = [
    "0", "1", "-1", "65535", "65536", "9223372036854775808", "9" * 5_000, "0x1F", "1_000", "1.5", "-0.0", "nan", "inf",
    "1e400", "true", "false", '""', '"0s"', '"30s"', '"2m"', '"500ms"', '"24h"', '"25h"', '"1e5s"', '"-1s"',
    '"\\u0661s"', f'"{"9" * 400}s"', '"127.0.0.1:0"', '"[::1]:50051"', '"\\u0000:1"', '":1"', '"a:b:1"', '"a:99999"',
    '"grpcio"', '"native"', '"warn"', '"debug"',
    '"sqlite:///x"', '"crate://a:b@c:4200/?x=%zz"', '"crate://["', '"crate://a:b@[::1:4200"', '"sqlite://["',
    '"\\u0000"', '"x\\ny"',
    "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "2026-02-30", "[]", '["x"]', "[[1], [2]]", "{}", "{a = 1}",
    "'''\nx'''", "[" * 1_500 + "]" * 1_500, "[" * 1_500, "{a=" * 1_500, '"\\ud800"', '"\\q"', '"', "",
]  # fmt: skip
TOML_TEXTS = TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False))
VALUES = st.sampled_from(LITERALS) | TOML_TEXTS | st.integers().map(str) | st.floats().map(str)


def toml(names: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Return files of valid TOML, damaged TOML, and noise."""
    keys = names | TEXTS.map(json.dumps) | st.just("a.b")
    lines = st.tuples(keys, VALUES).map(" = ".join)
    tables = st.sampled_from(["[identity]", "[[identity]]", "[[quota]]", "[[quota]]", "[a.b]", "[[", "# x", ""])
    pairs = st.lists(lines | tables, max_size=6).map("\n".join).map(str.encode)
    return pairs | pairs | mutated(pairs) | st.binary(max_size=40)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_any_settings_file_is_read_or_refused(folder: Path, tried: str) -> None:
    """A settings file with any content is loaded or refused as StartRefused."""
    file = folder / "idalloc.toml"

    @tries(80)
    @given(toml(st.sampled_from(SETTINGS)))
    def check(content: bytes) -> None:
        TRIED[tried] += 1
        file.write_bytes(content)
        with suppress(StartRefused):
            sources.load({}, str(file), {"XDG_STATE_HOME": str(folder)})

    check()


def test_any_environment_is_read_or_refused(folder: Path, tried: str) -> None:
    """Settings of any value, as variables or flags, are loaded or refused as StartRefused."""
    # An environment holds any byte but zero; Python decodes what is not UTF-8 with surrogates.
    odd = st.binary(max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
    valid = st.sampled_from([each.strip('"') for each in LITERALS if "\\" not in each and "\n" not in each])
    # Without IDALLOC_CONFIG: the test above is about files.
    names = st.sampled_from([f"IDALLOC_{name.upper()}" for name in SETTINGS])
    hosts = (odd | TEXTS).map(lambda host: f"{host}:50051")

    @tries(80)
    @given(st.dictionaries(names, odd | valid | hosts, max_size=4), st.booleans())
    def check(environ: dict[str, str], as_flags: bool) -> None:
        TRIED[tried] += 1
        flags = {name.removeprefix("IDALLOC_").lower(): value for name, value in environ.items()} if as_flags else {}
        with suppress(StartRefused):
            sources.load(flags, None, {"XDG_STATE_HOME": str(folder)} | ({} if as_flags else environ))

    check()


def test_any_access_file_is_read_or_refused(tried: str) -> None:
    """An access file with any content is parsed or refused as StartRefused."""
    names = [
        "name",
        "token_sha256",
        "certificate",
        "allocate",
        "read",
        "admin",
        "ids_per_second",
        "streams",
        "sequence",
    ]
    valid = b'[[identity]]\nname = "a"\ntoken_sha256 = ["%s"]\nallocate = ["*"]\n' % (b"0f" * 32)
    valid += b'[[quota]]\nsequence = "a*"\nids_per_second = 7\n'
    some = st.just(valid)

    @tries(80)
    @given(toml(st.sampled_from(names)) | mutated(some) | st.tuples(some, toml(st.sampled_from(names))).map(b"".join))
    def check(content: bytes) -> None:
        TRIED[tried] += 1
        with suppress(StartRefused):
            access_file.parse(content, "access.toml")

    check()


def test_any_kept_settings_are_read_or_refused(folder: Path, tried: str) -> None:
    """A node settings file with any content is read or refused as StartRefused."""
    persisted = NodeSettingsFile(folder, "127.0.0.1:50051")
    assert persisted.path
    path = persisted.path
    numbers = st.integers() | st.floats() | st.none() | st.booleans() | st.text(max_size=3)
    kept = st.dictionaries(st.sampled_from([*NAMES, "x"]), numbers, max_size=4).map(json.dumps).map(str.encode)
    odd = st.sampled_from([b"[" * 5_000, b'{"node_prefix": ' + b"9" * 5_000 + b"}", b"\xff\xfe", b"", b"null", b"[]"])

    @tries(60)
    @given(kept | mutated(kept) | odd | st.binary(max_size=30))
    def check(content: bytes) -> None:
        TRIED[tried] += 1
        path.write_bytes(content)
        with suppress(StartRefused):
            persisted.read()

    check()


EXPORT = [
    export_file.header_line().encode(),
    export_file.row_line(Row("a", 7, Sequence(labels={"x": "y"}), generation=1)).encode(),
    export_file.row_line(Row("b", 30, Sequence(start=10, step=10), generation=2)).encode(),
    export_file.claim_line(7, 1_700_000_000).encode(),
]


def test_any_import_file_is_read_or_its_problems_are_reported(tried: str) -> None:
    """An import file with any content is read, and each problem names its line and reason."""
    valid = st.just(b"\n".join(EXPORT))
    lines = st.lists(st.sampled_from(EXPORT) | mutated(st.sampled_from(EXPORT)), max_size=6).map(b"\n".join)
    odd: list[Any] = [*ODD_TEXTS, None, 1, -1, 2**63, 10**400, float("nan"), [], {}, {"kind": "COUNTER"}, True]
    fields = st.dictionaries(
        st.sampled_from(
            ["sequence", "period", "prefix", "last_value", "generation", "settings", "last_start", "deleted"]
        ),
        st.sampled_from(odd),
        max_size=6,
    )
    objects = st.lists(fields.map(json.dumps).map(str.encode), max_size=4).map(
        lambda found: b"\n".join([EXPORT[0], *found])
    )

    @tries(80)
    @given(mutated(valid) | lines | objects | st.binary(max_size=60))
    def check(content: bytes) -> None:
        TRIED[tried] += 1
        found = export_file.read_export(content.splitlines())
        for problem in found.problems:
            assert problem.line >= 1
            assert problem.message

    check()


def readable() -> st.SearchStrategy[list[bytes]]:
    """Return readable import files of a few sequences."""
    yearly = Sequence(reset=Reset.YEARLY, format="{year}-{value:03d}", max_value=999)
    falling = Sequence(start=-1, step=-1, min_value=-99, max_value=-1)

    def rows(name: str, counters: list[int], *sequences: Sequence) -> st.SearchStrategy[bytes]:
        return st.builds(
            lambda counter, sequence, generation, deleted: export_file.row_line(
                Row(name, counter, sequence, generation, deleted=deleted)
            ).encode(),
            st.sampled_from(counters),
            st.sampled_from(sequences),
            st.integers(1, 4),
            st.sampled_from([False, False, True]),
        )

    lines = [
        rows("a", [0, 7, 30, 50], Sequence(), Sequence(labels={"x": "y"}), Sequence(start=10, step=10), yearly),
        rows("b", [0, 7], yearly),
        rows(name_of_period("b", "2025"), [0, 7, 30], yearly),
        rows(name_of_period("b", "2026"), [0, 7, 30], yearly),
        rows("c", [0, -7, -30], falling),
        st.builds(export_file.claim_line, st.just(7), st.integers(1, 9)).map(str.encode),
    ]
    some = [st.lists(line, max_size=1) for line in lines]
    return st.tuples(*some).map(lambda found: [EXPORT[0], *chain.from_iterable(found)])


def test_any_import_lowers_no_counter(tried: str) -> None:
    """P2: an import of any files lowers no counter, generation or start timestamp."""
    damaged = mutated(readable().map(b"\n".join)).map(bytes.splitlines)
    files = readable() | readable() | damaged

    @tries(80)
    @given(st.lists(files, min_size=2, max_size=4))
    def check(files: list[list[bytes]]) -> None:
        TRIED[tried] += 1
        store = MemoryStore(FakeClock())

        async def import_lines(lines: list[bytes]) -> None:
            before, starts = (
                await store.list("", "", 500, with_deleted=True, with_periods=True),
                await store.claimed_starts(),
            )
            await Importer(store, FakeClock()).run(export_file.read_export(lines))
            for row in before:
                after = await store.get(row.name)
                assert after is not None
                assert after.generation >= row.generation
                assert row.last_value is not None
                assert after.last_value is not None
                # The counters of a sequence with a reset are in its periods.
                if row.sequence.reset == Reset.NEVER or PERIOD_SEPARATOR in row.name:
                    assert not after.sequence.is_past(row.last_value, after.last_value), (row, after)
            now = await store.claimed_starts()
            assert all(now[prefix] >= last_start for prefix, last_start in starts.items())

        async def import_all() -> None:
            for lines in files:
                await import_lines(lines)
                await import_lines(lines)  # a retry

        asyncio.run(import_all())

    check()


LOG = PlantedLog(
    [
        Planted(1, 5, 10, 20, node=1),
        Planted(6, 5, 30, 40, "bills", "2026", rising=True),
        Planted(1, 3, 50, 60, doc_ids="00070000abcd"),
        Planted(1, 3, 50, 60, request_id="00000001-0000-4000-8000-000000000000"),
    ]
)
NODE_LOG = b'{"event": "burned", "sequence": "orders", "ids": 3, "cause": "crash"}\n'


@pytest.mark.parametrize(
    "content",
    [LOG.rows, LOG.lines, lambda: b"\n".join(EXPORT), lambda: NODE_LOG],
    ids=["rows", "lines", "export", "node"],
)
def test_any_log_is_verified_or_refused(folder: Path, content: Callable[[], bytes], tried: str) -> None:
    """A log with any content is verified, or rejected with InvalidFile."""
    valid = st.just(content())
    file, other = folder / "one.log", LOG.write(folder / "other.jsonl")
    odd: list[Any] = [*ODD_TEXTS, None, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 1.5, [], {}]
    keys = [
        "sequence",
        "period",
        "first",
        "generation",
        "node",
        "step",
        "count",
        "asked",
        "answered",
        "request_id",
        "ids",
    ]
    record = {"sequence": "a", "first": 1, "generation": 1, "step": 1, "count": 1, "asked": 1, "answered": 2}
    lines = st.dictionaries(st.sampled_from([*keys, "doc_id"]), st.sampled_from(odd), max_size=2).map(
        lambda fields: json.dumps(record | fields).encode() + b"\n"
    )
    wild = st.binary(max_size=64) | st.tuples(valid, st.binary(max_size=200) | lines).map(b"".join)
    tiny = st.sampled_from([MemoryLimits(1, 1, 1), MemoryLimits(7, 3, 4), MemoryLimits()])

    @tries(40, shares=5)
    @given(mutated(valid) | wild, tiny)
    def check(damaged: bytes, limits: MemoryLimits) -> None:
        TRIED[tried] += 1
        file.write_bytes(damaged)
        with suppress(InvalidFile):
            verdict = verify([file, other], limits)
            json.dumps(to_json(verdict))
            to_text(verdict)

    check()


def planted(form: str) -> tuple[bytes, bytes, bytes]:
    """Return a log of several sequences: the bytes before a record, the record, the bytes after."""
    names = ["orders", "b" * 100, "orders", "bills"]
    many = [Planted(100 * number, 5, number, node=1, sequence=names[number % 4]) for number in range(12)]
    log = PlantedLog([*many, Planted(6_000, 1, 30, doc_ids="00070000abcd")])
    if form == "lines":
        pieces = log.lines().splitlines(keepends=True)
        place = next(place for place, line in enumerate(pieces) if b'"first": 400,' in line)
    else:
        content = log.rows()
        pieces = [content[at : at + 88] for at in range(0, len(content), 88)]
        firsts = [int.from_bytes(row[24:32], "little") if row[0] == 1 else 0 for row in pieces]
        place = firsts.index(400)
    return b"".join(pieces[:place]), pieces[place], b"".join(pieces[place + 1 :])


@pytest.mark.parametrize("form", ["rows", "lines"])
def test_no_damage_elsewhere_hides_a_repeat(folder: Path, form: str, tried: str) -> None:
    """P1: no damage to other bytes of a log makes `verify` accept an id that is in two logs."""
    before, record, behind = planted(form)
    spliced = LOG.rows() if form == "rows" else LOG.lines()
    file = folder / ("a.log" if form == "rows" else "a.jsonl")
    other = PlantedLog([Planted(404, 1, 20, request_id="00000001-0000-4000-8000-000000000000")]).write(folder / "b.log")
    file.write_bytes(before + record + behind)
    assert verify([file, other]).findings.duplicates == 1

    def damaged(valid: bytes) -> st.SearchStrategy[bytes]:
        places = st.tuples(*[st.integers(0, len(valid))] * 2, *[st.integers(0, len(spliced))] * 2)
        splices = places.map(lambda at: valid[: at[0]] + spliced[min(at[2:]) : max(at[2:])] + valid[at[1] :])
        return mutated(st.just(valid)) | splices

    @tries(150, shares=2)
    @given(damaged(before).map(lambda other: (other, behind)) | damaged(behind).map(lambda other: (before, other)))
    def check(around: tuple[bytes, bytes]) -> None:
        TRIED[tried] += 1
        file.write_bytes(around[0] + record + around[1])
        with suppress(InvalidFile):
            assert verify([file, other]).findings.any

    check()


@pytest.mark.parametrize("host", ["\0", "x" * 64, "a..b", ".", "\u00e9" * 300, "\udcff", "\x1b"])
def test_an_invalid_address_is_refused(host: str) -> None:
    """A listen address that no host can have is refused."""
    with pytest.raises(StartRefused, match="must be"):
        sources.load({"listen": f"{host}:50051"}, None, {})


@pytest.mark.parametrize("name", ["access_file", "tls_cert", "store"])
def test_a_path_with_control_characters_is_refused(name: str, folder: Path) -> None:
    """A path with control characters is refused."""
    (folder / "idalloc.toml").write_text(f'{name} = "a\\u0000b"')
    with pytest.raises(StartRefused, match="control characters"):
        sources.load({}, str(folder / "idalloc.toml"), {})


@pytest.mark.parametrize("content", [b"a = " + b"9" * 5_000, b"a = " + b"[" * 100_000])
def test_toml_beyond_pythons_limits_is_refused(content: bytes, folder: Path) -> None:
    """TOML with numbers or nesting beyond Python's limits is refused, and does not crash."""
    (folder / "idalloc.toml").write_bytes(content)
    with pytest.raises(StartRefused, match="is not TOML"):
        sources.load({}, str(folder / "idalloc.toml"), {})
    with pytest.raises(StartRefused, match="is not TOML"):
        access_file.parse(content, "access.toml")


def test_deeply_nested_kept_settings_are_refused(folder: Path) -> None:
    """Node settings nested beyond Python's limits are refused, and do not crash."""
    persisted = NodeSettingsFile(folder, "127.0.0.1:50051")
    assert persisted.path
    persisted.path.write_bytes(b"[" * 100_000)
    with pytest.raises(StartRefused, match="is not JSON"):
        persisted.read()


@pytest.mark.parametrize("setting", ["lease_ttl=\u0663\u0660\u0660s", "listen=127.0.0.1:\u0663"])
def test_only_ascii_digits_are_accepted(setting: str) -> None:
    """Durations and ports accept ASCII digits only."""
    name, _, value = setting.partition("=")
    with pytest.raises(StartRefused, match="must be"):
        sources.load({name: value}, None, {})
