"""The page of the architecture shows the rooms that the import contracts check."""

import re
import tomllib
from itertools import groupby

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def floors(container: str) -> list[set[str]]:
    """Return the rooms of each floor, the highest first, as the contract has them."""
    [layers] = [each["layers"] for each in CONTRACTS if each.get("containers") == [container]]
    return [set(layer.split(" | ")) for layer in layers]


def test_the_table_shows_the_servers_floors() -> None:
    """The table of rooms has each room of the server, on the floor that the contract gives it."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", PAGE, re.MULTILINE)
    shown = [(int(floor), {room for _, room in rooms}) for floor, rooms in groupby(rows, key=lambda row: row[0])]
    expected = floors("idalloc_server")
    assert shown == list(zip(range(len(expected), 0, -1), expected, strict=True))


@pytest.mark.parametrize(("name", "container"), [("domain", "idalloc_server.domain"), ("client", "idalloc")])
def test_the_text_shows_the_floors_of_domain_and_client(name: str, container: str) -> None:
    """The rooms of the domain and of the client stand in the order of their contracts."""
    [text] = re.findall(rf"^{name}  ((?:.+\n)(?:        .+\n)*)", PAGE, re.MULTILINE)
    assert [set(re.findall(r"\w+", floor)) for floor in text.split(">")] == floors(container)
