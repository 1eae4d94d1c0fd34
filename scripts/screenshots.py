"""Write the pictures of the status page in docs/assets: `python -m scripts.screenshots`.

It needs Chromium.
"""

import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import idalloc
from tests.e2e.test_http import LOOPBACK, url_of
from tests.support.browser import Browser, chromium
from tests.support.paths import ROOT
from tests.support.processes import Server, running
from tests.support.waiting import hold_for, wait_until

ASSETS = ROOT / "docs" / "assets"
SEQUENCES = 1_000
TEAMS = ("billing", "shop", "warehouse")


def create(client: idalloc.Client) -> None:
    """Create sequences, some of which have used much of their ids."""
    for number in range(1, SEQUENCES + 1):
        team = TEAMS[number % len(TEAMS)]
        client.sequences.create(f"{team}-{number:04}", max_value=500_000, labels={"team": team})
    for number in range(20, SEQUENCES, 70):
        client.allocate_range(f"{TEAMS[number % len(TEAMS)]}-{number:04}", 480 * number)
    client.sequences.create("invoices", reset="yearly", format="{year}-{value:05d}", time_zone="UTC")
    client.allocate_range("invoices", 1_234)


def keep_calling(address: str, stop: threading.Event) -> None:
    """Take ids until ``stop``, after a mistake."""
    with idalloc.Client(address) as client:
        with suppress(idalloc.IdallocError):
            client.sequences.get("ordres")
        while not stop.wait(0.01):
            client.allocate_range("orders", 100)
            client.doc_ids(3)


def shoot(browser: Browser, server: Server) -> None:
    """Write all pictures."""
    browser.open(url_of(server), height=980)
    wait_until(lambda: browser.text("#found").endswith("1\u202f002"), "all sequences", seconds=120)
    browser.find("[data-sort=used]").click()
    wait_until(lambda: not browser.column("sequences")[0].endswith("0003"))
    wait_until(lambda: any("ordres" in why for why in browser.column("refusals", 5)))
    for name, dark in (("status-page-light", False), ("status-page-dark", True)):
        browser.set_dark(dark=dark)
        hold_for(0.5, "the colours change")
        browser.driver.save_screenshot(str(ASSETS / f"{name}.png"))


def main() -> None:
    """Run a server with sequences and load, and write the pictures."""
    stop = threading.Event()
    folder = Path(tempfile.gettempdir()) / "idalloc"  # its name is in the pictures
    folder.mkdir()
    with running(folder, http_listen=LOOPBACK) as server:
        with idalloc.Client(server.address) as client:
            create(client)
        caller = threading.Thread(target=keep_calling, args=(server.address, stop))
        caller.start()
        try:
            with chromium() as browser:
                shoot(browser, server)
        finally:
            stop.set()
            caller.join()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
