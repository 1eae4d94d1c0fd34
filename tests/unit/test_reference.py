"""The pages of docs/reference/ are what the code and the protos give, and name all of it."""

import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from idalloc.cli import _environment
from idalloc.v1.error_reason_pb2 import ErrorReason
from idalloc_server.settings.installed import installed
from scripts.reference import api, cli, limits, links, log_events, python_api
from scripts.reference.cli_examples import EXAMPLES
from scripts.reference.pages import FOLDER, IN_GIT, PAGES, read
from tests.support.paths import ROOT


def written(name: str) -> str:
    """Return what the generator writes for a page."""
    return read(FOLDER / name)


def headings(page: Path) -> list[str]:
    """Return the headings of a page, without backquotes."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", read(page))
    return [each.replace("`", "") for each in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]


@pytest.mark.parametrize("name", sorted(IN_GIT))
def test_a_page_is_what_the_generator_writes(name: str) -> None:
    """A page in git is up to date; if not, run `make docs-reference`."""
    assert (FOLDER / name).read_text() == written(name)


def test_each_page_is_generated() -> None:
    """docs/reference/ has the generated pages only; git ignores those that it does not have."""
    assert {path.name for path in FOLDER.iterdir()} <= {*PAGES}
    ignored = [line for line in (ROOT / ".gitignore").read_text().splitlines() if "/docs/reference/" in line]
    assert {*ignored} == {"/docs/reference/*", *(f"!/docs/reference/{name}" for name in IN_GIT)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("settings.md", lambda: installed().settings.model_fields),
        ("settings.md", lambda: [f"IDALLOC_{name}" for name in _environment.CLIENT]),
        ("cli.md", lambda: [f"idalloc {name}" for name in cli.commands()]),
        ("errors.md", lambda: [each.removeprefix("ERROR_REASON_") for each, number in ErrorReason.items() if number]),
        ("api.md", lambda: [*links.RPCS, *(service.name for service in links.SERVICES)]),
        ("python-api.md", lambda: [each for each in python_api.public_names() if each.startswith("Client.")]),
        ("log-events.md", log_events.events),
    ],
    ids=["settings", "client variables", "commands", "reasons", "RPCs", "client methods", "log events"],
)
def test_each_name_is_a_heading(name: str, expected: Callable[[], Iterable[str]]) -> None:
    """One search finds any setting, variable, command, reason, RPC, method and log event."""
    names = {*expected()}
    assert names
    assert names <= {*headings(FOLDER / name)}


def test_api_has_each_message_and_field() -> None:
    """Each message and enum is a heading, and each field and value is in a table."""
    for elements in api.read_protos().values():
        for element in elements:
            assert element.name in headings(FOLDER / "api.md")
            section = written("api.md").partition(f" `{element.name}`\n")[2]
            for member in element.members:
                assert f"`{member.name}`" in section


def test_python_api_has_each_public_name() -> None:
    """Each class, method and exception of the package is on the page."""
    assert [name for name in python_api.public_names() if f"`{name}`" not in written("python-api.md")] == []


@pytest.mark.parametrize("name", PAGES)
def test_no_heading_comes_twice(name: str) -> None:
    """A link to a heading of the page is unambiguous."""
    found = [*map(str.lower, headings(FOLDER / name))]
    assert len(found) == len({*found})


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_valid_command_line(name: str) -> None:
    """The options of each example exist, and their values are valid."""
    command: Any = cli.commands()[name]
    lines = [line for line in EXAMPLES[name].splitlines() if line.startswith(f"idalloc {name}")]
    assert EXAMPLES[name].startswith(f"idalloc {name}")
    for line in lines:
        words = shlex.split(line.partition(" >")[0])
        command.make_context(name, words[len(name.split()) + 1 :])


def test_each_limit_of_the_code_is_known_to_the_page() -> None:
    """Each new constant MAX_… of server and client core is on the page, or named internal."""
    folders = ("server", "client/idalloc/_core", "client/idalloc/_transport")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = set(re.findall(r"^(?:\w+, )*((?:MAX|LARGEST|LONGEST)_\w+)\b.* = ", "\n".join(sources), re.MULTILINE))
    rows = (ROOT / "scripts/reference/limits.py").read_text().partition("\nLIMITS = ")[2]
    assert {name for name in found if not re.search(rf"\b{name}\b", rows)} == {*limits.INTERNAL}


def test_a_log_event_without_a_meaning_is_found() -> None:
    """A new event needs an entry in log_events.toml, and a warning a next step there."""
    found, meanings = log_events.events(), log_events.read_meanings()
    with pytest.raises(ValueError, match=r"log_events\.toml must describe .*'refill_failed'"):
        log_events.check(found, {name: each for name, each in meanings.items() if name != "refill_failed"})
    with pytest.raises(ValueError, match="refill_failed needs a next_step"):
        log_events.check(found, meanings | {"refill_failed": {"meaning": "…"}})


def test_each_logger_is_seen_by_the_generator() -> None:
    """The name of each logger ends with _log, by which the generator finds its events."""
    source = "\n".join(path.read_text() for path in log_events.SERVER.rglob("*.py"))
    loggers = re.findall(r"^\s*(.*?)structlog\.(?:get_logger|wrap_logger)\(", source, re.MULTILINE)
    assert loggers
    assert [each for each in loggers if not re.fullmatch(r"\w*_log = ", each)] == []
