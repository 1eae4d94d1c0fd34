"""What may find a mutant: each killer is a command.

It ends with 0 if it finds nothing. If it does, it ends with 1, and prints a line ``FAILED what -
why`` as pytest does.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.mutants.edit import Mutant

DOMAIN = "tests/unit/server/domain"
# The folders whose unit tests a mutant is run against. Those of its own folder come first.
FOLDERS = (
    DOMAIN,
    *(
        f"{DOMAIN}/{name}"
        for name in ("allocation", "administration", "idempotency", "document_ids", "store", "witness")
    ),
)
# Files that take seconds and find few mutants come last.
LAST = ("test_memory.py", "test_reserve.py", "test_reserve_shared.py")
# It takes as long as the state machine, and samples what that one samples.
_LEFT_OUT = f"{DOMAIN}/allocation/test_sequence_changes.py::test_two_nodes_issue_every_id_up_to_the_bound"
# One process, files in order, and no search for a smaller failing example.
PYTEST = (
    *("pytest", "-x", "-q", "-n", "0", "-p", "no:randomly", "-o", "cache_dir=.build/mutants"),
    *("--timeout", "30", "--hypothesis-profile", "mutants"),
)

# The note of a mutant that hangs, and what pytest-timeout prints for one.
TIMEOUT = "timeout"
_TEST_TIMEOUT = "Timeout (>"
# The name of what failed, without the path of its file.
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (?:\S*::)?(\S+)", re.MULTILINE)


class Killer(NamedTuple):
    """A command that tests the promises."""

    name: str  # its name, the title of a column
    # Returns a module and its arguments, as for ``python -m``, to find a mutant, or without one to
    # show that the command passes; None if the killer does not apply to the mutant.
    command: Callable[[Mutant | None], tuple[str, ...] | None]
    seconds: float  # how long it may run. A mutant that hangs counts as found.


class Verdict(NamedTuple):
    """The result of a killer."""

    killed: bool | None  # whether it found the mutant; None if the killer does not apply
    note: str = ""  # what failed first, or ``TIMEOUT``; the end of the output if there is no result
    is_broken: bool = False  # whether there is no result, since the command ended in another way
    seconds: float = 0.0  # how long it ran


def _unit(mutant: Mutant | None) -> tuple[str, ...]:
    own = Path("tests/unit/server", *mutant.module.split(".")[1:-1]).as_posix() if mutant else DOMAIN
    folders = dict.fromkeys((own, *FOLDERS))
    files = [file for folder in folders for file in sorted(Path(folder).glob("test_*.py"))]
    files.sort(key=lambda file: file.name in LAST)
    return (*PYTEST, "--deselect", _LEFT_OUT, *map(str, files))


def _state_machine(mutant: Mutant | None) -> tuple[str, ...]:
    return (*PYTEST, "-m", "not test_long", "tests/unit/server/test_state_machine.py")


def _exploration(mutant: Mutant | None) -> tuple[str, ...] | None:
    """Return the exploration of the mutant's scenarios, as far as it goes in a few seconds."""
    scenarios = mutant.scenarios if mutant else ("idle-close",)
    return ("tests.support.exploration", "--brief", "--seconds", "6", *scenarios) if scenarios else None


# A mutant must pass it: an edit that fails without a fault, such as with an AttributeError, would
# count as found by each killer.
HAPPY_PATH = Killer("happy path", lambda _: ("tests.support.mutants.happy_path",), 60.0)

KILLERS = (
    Killer("exploration", _exploration, 60.0),
    Killer("unit", _unit, 240.0),
    Killer("state machine", _state_machine, 120.0),
)


def run(killer: Killer, mutant: Mutant | None) -> Verdict:
    """Run a killer in a process of its own, under a mutant or without one."""
    command = killer.command(mutant)
    if command is None:
        return Verdict(None)
    under = ("tests.support.mutants.under", mutant.name) if mutant else ()
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", *under, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=killer.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(True, TIMEOUT, seconds=killer.seconds)
    seconds = time.monotonic() - began
    found = _FAILURE.search(done.stdout)
    if (done.returncode, bool(found)) not in {(0, False), (1, True)}:
        return Verdict(None, done.stdout[-2000:], is_broken=True, seconds=seconds)
    if not found:
        return Verdict(False, seconds=seconds)
    return Verdict(True, TIMEOUT if _TEST_TIMEOUT in done.stdout else found.group(1), seconds=seconds)
