"""The status page of real servers in a real browser."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import idalloc
from tests.e2e.test_access import new_token
from tests.e2e.test_http import LOOPBACK
from tests.support.browser import MISSING, Browser, chromium
from tests.support.processes import Server, locked, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(bool(MISSING), reason=MISSING)]

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>'


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(chrome: Browser) -> Iterator[Browser]:
    """A browser without errors in its console, before and after the test."""
    chrome.errors()
    chrome.set_dark(dark=False)
    yield chrome
    errors = chrome.errors()
    chrome.driver.get("about:blank")
    assert [line for line in errors if "favicon" not in line] == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, http_listen=LOOPBACK) as server:
        yield server


@pytest.mark.test_long
def test_page_shows_the_server_and_follows_its_load(server: Server, browser: Browser) -> None:
    """The page shows the node, and its numbers rise while callers take ids."""
    with idalloc.Client(server.address) as client:
        client.allocate_range("orders", 10)
        browser.open(server.http)
        wait_until(lambda: browser.number("Ids issued") == 10)
        assert server.address in browser.text("#node")
        assert browser.text("#health") == "ready"
        wait_until(lambda: browser.column("sequences") == ["orders"])
        assert browser.column("calls") == ["idalloc.v1.IdAllocatorService/AllocateRange"]
        [before] = browser.column("sequences", 2)
        client.allocate_range("orders", 1_000)
        wait_until(lambda: browser.number("Ids issued") == 1_010)
        wait_until(lambda: browser.column("sequences", 2) != [before])


@pytest.mark.test_long
def test_the_witness_is_shown_with_its_state(tmp_path: Path, browser: Browser) -> None:
    """A line of the page has the witness and whether it answers; without a witness, no line."""
    with running(tmp_path, http_listen=LOOPBACK) as server:
        browser.open(server.http)
        wait_until(lambda: browser.text("#health") == "ready")
        assert not browser.find("#witness").is_displayed()
        browser.open("about:blank")  # the page would ask the stopping server
    short = {"lease_ttl": "3s", "store_timeout": "1s", "outage_reserve": "1s"}
    witness = f"sqlite://{tmp_path}/witness.db"
    with (
        running(tmp_path, http_listen=LOOPBACK, witness=witness, **short) as server,
        idalloc.Client(server.address) as client,
    ):
        browser.open(server.http)
        wait_until(lambda: browser.text("#witness") == f"Witness {witness}, answers")

        def is_down() -> bool:
            with suppress(idalloc.IdallocError):
                client.allocate_range("orders", 1_000_000)
            return browser.text("#witness") == f"Witness {witness}, does not answer"

        with locked(tmp_path / "witness.db"):
            wait_until(is_down, seconds=60)
            assert browser.find("#witness").get_attribute("class") == "bad"
        browser.open("about:blank")


@pytest.mark.test_long
def test_a_thousand_sequences_are_searched_sorted_and_paged(server: Server, browser: Browser) -> None:
    """A thousand sequences come in pages of fifty; search and sort are those of the whole list."""
    with idalloc.Client(server.address) as client:
        for number in range(1_000):
            client.sequences.create(f"table-{number:04}", max_value=1_000)
        client.allocate_range("table-0777", 900)
        browser.open(server.http)
        wait_until(lambda: browser.text("#found") == "1\u201350 of 1\u202f000", seconds=60)
        assert browser.column("sequences") == [f"table-{number:04}" for number in range(50)]
        browser.find("#next").click()
        wait_until(lambda: browser.column("sequences")[:1] == ["table-0050"])
        browser.find("[data-sort=used]").click()
        wait_until(lambda: browser.column("sequences")[:1] == ["table-0777"], seconds=90)
        assert browser.column("sequences", 3)[0].endswith("90.0 %")
        assert browser.find("th[aria-sort=descending]").text.startswith("Used")
        browser.find("#search").send_keys("TABLE-099")
        wait_until(lambda: browser.text("#found") == "1\u201310 of 10")
        assert browser.find("#next").get_attribute("aria-disabled") == "true"


@pytest.mark.test_long
def test_hostile_texts_are_shown_and_never_run(server: Server, browser: Browser) -> None:
    """Names, labels and errors of callers are shown as they are; nothing in them runs."""
    with idalloc.Client(server.address) as client:
        client.sequences.create(HOSTILE, labels={"team": "x"}, description=HOSTILE)
        with suppress(idalloc.IdallocError):
            client.allocate_range(HOSTILE, 10**12)
        with suppress(idalloc.IdallocError):
            client.sequences.get(f"no {HOSTILE}")
    browser.open(server.http)
    wait_until(lambda: browser.column("sequences") == [HOSTILE], seconds=60)
    wait_until(lambda: any(HOSTILE in why for why in browser.column("refusals", 5)))
    assert browser.driver.title == "idalloc"
    assert browser.driver.execute_script("return document.querySelectorAll('img, td script').length") == 0


@pytest.mark.test_long
def test_a_token_signs_in_and_out(tmp_path: Path, browser: Browser) -> None:
    """With access the page asks for a token that may read all sequences; before, it is empty."""
    file = tmp_path / "access.toml"
    reader = new_token(file, "watcher", "--read", "*")
    other = new_token(file, "billing", "--read", "billing*")
    with running(tmp_path, http_listen=LOOPBACK, access_file=file) as server:
        browser.open(server.http)
        wait_until(lambda: browser.find("#token").is_displayed())
        assert not browser.find("#main").is_displayed()
        browser.find("#token").send_keys(other, Keys.ENTER)
        wait_until(lambda: "role 'read'" in browser.text("#sign-in-problem"))
        browser.find("#token").send_keys(reader, Keys.ENTER)
        wait_until(lambda: browser.text("#health") == "ready")
        browser.driver.refresh()
        wait_until(lambda: browser.text("#health") == "ready")
        browser.find("#sign-out").click()
        wait_until(lambda: browser.find("#token").is_displayed())
        # The browser logs each answer 401 and 403 as an error of the network.
        assert all("status of 40" in line for line in browser.errors())


@pytest.mark.test_long
def test_the_page_is_used_by_keyboard(server: Server, browser: Browser) -> None:
    """The tab key reaches search, paging and sorting; focus stays while the page updates."""
    with idalloc.Client(server.address) as client:
        client.allocate_range("orders", 1)
        client.allocate_range("returns", 1)
        browser.open(server.http)
        wait_until(lambda: browser.column("sequences") == ["orders", "returns"], seconds=60)
        keys = ActionChains(browser.driver)
        keys.send_keys(Keys.TAB, "ret").perform()
        wait_until(lambda: browser.column("sequences") == ["returns"])
        keys.send_keys(Keys.TAB * 4, Keys.ENTER).perform()  # two buttons, the table's region, then its first header
        wait_until(lambda: browser.find("th[aria-sort]").get_attribute("aria-sort") == "descending")
        before = browser.text("#updated")
        wait_until(lambda: browser.text("#updated") != before)
        assert browser.driver.switch_to.active_element.get_attribute("data-sort") == "name"


@pytest.mark.test_long
def test_the_last_page_keeps_the_focus(server: Server, browser: Browser) -> None:
    """The button to the last page keeps the focus when that page reloads, and leads no further."""
    with idalloc.Client(server.address) as client:
        for number in range(60):
            client.sequences.create(f"table-{number:04}")
    browser.open(server.http)
    wait_until(lambda: browser.text("#found") == "1\u201350 of 60", seconds=60)
    browser.find("#next").click()
    wait_until(lambda: browser.text("#found") == "51\u201360 of 60")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    before = browser.text("#updated")
    wait_until(lambda: browser.text("#updated") != before)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "next"
    assert browser.text("#found") == "51\u201360 of 60"


@pytest.mark.test_long
def test_a_store_that_is_away_is_named(tmp_path: Path, browser: Browser) -> None:
    """While the store is away the page names the failing check; it says if the server is gone."""
    with running(tmp_path, http_listen=LOOPBACK, store_timeout="1s") as server:
        browser.open(server.http)
        wait_until(lambda: browser.text("#health") == "ready")
        with locked(tmp_path / "ids.db"), idalloc.Client(server.address, timeout=3) as client:

            def fails() -> bool:
                with suppress(idalloc.IdallocError, grpc.RpcError):
                    client.allocate_range("orders", 1_000_000)
                return browser.text("#health") == "not ready"

            wait_until(fails, seconds=60)
            assert "store: the last calls of the store failed" in browser.text("#problems")
        server.stop()
        wait_until(lambda: browser.text("#health") == "connection lost")
        assert all("ERR_CONNECTION_REFUSED" in line for line in browser.errors())


@pytest.mark.test_long
def test_the_page_is_dark_where_that_is_preferred(server: Server, browser: Browser) -> None:
    """The page follows the preference for dark colours, with readable text in both."""
    browser.open(server.http)
    for dark in (True, False):
        browser.set_dark(dark=dark)
        ground, text = (luminance(browser, name) for name in ("background-color", "color"))
        assert (ground < text) == dark
        lighter, darker = max(ground, text) + 0.05, min(ground, text) + 0.05
        assert lighter / darker >= 4.5  # WCAG 2.2, 1.4.3


def luminance(browser: Browser, name: str) -> float:
    """Return the relative luminance of a colour of the page (WCAG 2.2)."""
    numbers = browser.find("body").value_of_css_property(name).partition("(")[2].rstrip(")").split(",")[:3]
    shares = [int(number) / 255 for number in numbers]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
