"""The mutants of ``make mutants``: each edit finds its place, and changes the import only."""

import ast
import asyncio
import importlib
import re
import sys
from pathlib import Path

import pytest

from idalloc_server.domain.allocation.sequence_allocator import SequenceAllocator
from tests.support.exploration.scenarios import SCENARIOS
from tests.support.mutants import __main__, happy_path
from tests.support.mutants.catalog import MUTANTS
from tests.support.mutants.edit import Edit, Mutant, PlaceError, check, edited, install
from tests.support.mutants.killers import HAPPY_PATH, KILLERS, Killer, Verdict, run
from tests.support.mutants.results_page import page

SOURCE = '''
LIMIT = 10

class Lease:
    def issue(self, count, now):
        """Issues ids."""
        if count > self.left or now >= self.end:  # the end counts, too
            return None
        self.left -= count
        self.sent = True
        return count

async def refill(lease):
    async def answer():
        return lease.left
    return await answer()
'''


def seeded(*edits: Edit) -> Mutant:
    return Mutant("seeded", "P4", "seeded_module", "a fault", edits)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_edit_finds_its_place(name: str) -> None:
    """Each edit of the table finds its place in today's code exactly once; the result compiles."""
    check(MUTANTS[name])
    assert all(ast.dump(ast.parse(edit.before)) != ast.dump(ast.parse(edit.after)) for edit in MUTANTS[name].edits)


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (Edit("Lease.issue", "now>=self.end", "now > self.end"), "if count > self.left or now > self.end:"),
        (Edit("Lease.issue", "self.left -= count\nself.sent = True", "pass"), "pass"),
        (Edit("Lease.issue", "return count", "self.left += 1\nreturn 0"), "return 0"),
        (Edit("refill.answer", "lease.left", "0"), "return 0"),
        (Edit("refill", "await answer()", "1"), "return 1"),
        (Edit("", "LIMIT = 10", "LIMIT = 11"), "LIMIT = 11"),
    ],
)
def test_an_edit_ignores_layout_and_comments(edit: Edit, line: str) -> None:
    """An edit replaces an expression or statements in a function, a nested one, or the module."""
    lines = [each.strip() for each in ast.unparse(edited(seeded(edit), SOURCE)).splitlines()]
    assert line in lines
    assert line not in [each.strip() for each in ast.unparse(ast.parse(SOURCE)).splitlines()]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit("Lease.issue", "now == self.end", "False"), "0 places in seeded_module: 'now == self.end'"),
        (Edit("Lease.issue", "count", "0"), "3 places"),
        (Edit("Lease.renew", "now", "0"), "0 definitions of Lease.renew"),
        (Edit("refill", "now >= self.end", "False"), "0 places"),
    ],
)
def test_a_place_that_is_not_there_once_is_an_error(edit: Edit, why: str) -> None:
    """An edit without its one place is an error that names the mutant and the place."""
    with pytest.raises(PlaceError, match=f"mutant 'seeded': {why}"):
        edited(seeded(edit), SOURCE)


def test_only_the_import_of_the_module_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edited module is imported in place of the one on disk, and no file is written."""
    file = tmp_path / "seeded_module.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    install(seeded(Edit("", "LIMIT = 10", "LIMIT = 11")))
    assert importlib.import_module("seeded_module").LIMIT == 11
    del sys.modules["seeded_module"]
    assert [*tmp_path.rglob("*")] == [file]
    assert file.read_text() == SOURCE


def test_a_module_that_is_imported_already_is_refused() -> None:
    """A mutant of a module that is in use would change nothing."""
    with pytest.raises(AssertionError, match="ast is imported already"):
        install(Mutant("seeded", "P4", "ast", "a fault", ()))


@pytest.mark.parametrize(
    ("code", "killed", "is_broken", "note"),
    [
        ("", False, False, ""),
        ("print('FAILED tests/test_a.py::test_b[1] - P4'); sys.exit(1)", True, False, "test_b[1]"),
        ("print('FAILED advance-lease - P4'); sys.exit(1)", True, False, "advance-lease"),
        ("print('FAILED tests/test_a.py::test_b - Failed: Timeout (>60.0s)'); sys.exit(1)", True, False, "timeout"),
        ("sys.exit('a crash')", None, True, "a crash"),
        ("print('ERROR tests/test_a.py'); sys.exit(2)", None, True, "ERROR tests/test_a.py"),
        ("import threading; threading.Event().wait()", True, False, "timeout"),
    ],
)
def test_a_killer_that_ends_otherwise_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, killed: bool | None, is_broken: bool, note: str
) -> None:
    """Only a failure that is reported, or a hang, counts as found."""
    (tmp_path / "killing.py").write_text(f"import sys\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    verdict = run(Killer("killing", lambda _: ("killing",), 2.0 if "Event" in code else 60.0), None)
    assert (verdict.killed, verdict.is_broken, verdict.note.strip()) == (killed, is_broken, note)


def test_the_happy_path_needs_the_code_that_is_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The happy path passes, and fails if a function that it uses has an error."""
    asyncio.run(happy_path.run())
    monkeypatch.delattr(SequenceAllocator, "_check_period")
    with pytest.raises(AttributeError, match="_check_period"):
        asyncio.run(happy_path.run())


def test_a_mutant_without_the_happy_path_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edit that breaks the happy path is an error of the table: no killer runs under it."""

    def run_broken(killer: Killer, mutant: Mutant | None) -> Verdict:
        assert killer is HAPPY_PATH
        return Verdict(None, "NameError", is_broken=True) if mutant else Verdict(False)

    name = next(iter(MUTANTS))
    monkeypatch.setattr(__main__, "run", run_broken)
    monkeypatch.setattr(sys, "argv", ["mutants", name])
    assert __main__.main() == 2
    assert f"{name}: NameError" in capsys.readouterr().err


def test_the_page_shows_each_verdict() -> None:
    """The page has a row for each mutant, with what killed it; later killers did not run."""
    name, other = [*MUTANTS][:2]
    killed = {"exploration": Verdict(False), "unit": Verdict(True, "timeout")}
    alive = {"exploration": Verdict(None), "unit": Verdict(False), "state machine": Verdict(None)}
    written = page({name: killed, other: alive}, 90.0)
    mutant = MUTANTS[name]
    assert f"| `{name}` | {mutant.attacks} | {mutant.what} | missed | killed (timeout) | - |" in written
    assert "1 of 2 mutants were killed." in written


def test_the_page_says_what_is_not_explored() -> None:
    """The page gives the reason for each mutant that the exploration cannot find."""
    unexplored = {name: mutant.unexplored for name, mutant in MUTANTS.items() if mutant.unexplored}
    written = page({name: {killer.name: Verdict(None) for killer in KILLERS} for name in MUTANTS}, 90.0)
    reasons = written.partition("## What the exploration cannot see")[2]
    assert dict(re.findall(r"^- `([\w'-]+)`: (.*)\.$", reasons, re.MULTILINE)) == unexplored


def test_mutants_name_scenarios_that_exist() -> None:
    """Each scenario that a mutant names is in the exploration; one that none finds names none."""
    assert {name for mutant in MUTANTS.values() for name in mutant.scenarios} <= set(SCENARIOS)
    assert not [name for name, mutant in MUTANTS.items() if mutant.scenarios and mutant.unexplored]
