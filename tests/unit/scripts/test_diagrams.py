"""The diagrams of the documentation are up to date, and readable by people and by machines."""

from xml.etree import ElementTree

import pytest

from idalloc_server.domain.allocation.reserve import GENEROSITY, SHARE
from idalloc_server.domain.generations import MARGIN_SECONDS
from idalloc_server.workers import worker
from scripts.diagrams import ASSETS, DIAGRAMS
from tests.support.documented import default
from tests.support.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_file_is_what_the_script_writes(name: str) -> None:
    """Each diagram is up to date (`make docs` renews it), and has a title for screen readers."""
    text = (ASSETS / f"{name}.svg").read_text()
    assert text == DIAGRAMS[name]()
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")


def test_each_diagram_is_written_by_the_script() -> None:
    """No diagram is left over from an earlier script."""
    assert {file.stem for file in ASSETS.glob("*.svg")} == set(DIAGRAMS)


def test_diagrams_name_each_store() -> None:
    """The diagrams of concepts and of a refill name each kind of store that the server has."""
    kinds = {name.lower(): name for name in ("SQLite", "CrateDB", "OpenSearch")}
    folders = {path.parent.name for path in (ROOT / "server/idalloc_server/store").glob("*/store.py")}
    assert folders == {*kinds}
    assert [name for name in kinds.values() if name not in DIAGRAMS["concepts"]()] == []
    refill = DIAGRAMS["refill-path"]().lower()
    assert [kind for kind in kinds if kind not in refill] == []


def test_diagrams_state_the_defaults() -> None:
    """The times in the diagrams are those of the code."""
    ttl, reserve = default("lease_ttl"), default("outage_reserve")
    life = DIAGRAMS["lease-life"]()
    assert f"outage_reserve {reserve:g} s, lease_ttl {ttl:g} s" in life
    assert f"earlier below ids for {SHARE * GENEROSITY * reserve:g} s" in life
    assert f"up to {GENEROSITY * reserve:g} s of use" in life
    assert f"renewal after {ttl / 3:g} s" in life
    for name in ("advance", "fencing"):
        assert f"lease_ms is {ttl * 1000:g}" in DIAGRAMS[name]()
        assert f"effective in {ttl + MARGIN_SECONDS:g} s" in DIAGRAMS[name]()
    assert f"tries again after {worker.CHANGE_PAUSE_SECONDS:g} s" in DIAGRAMS["update-node"]()
