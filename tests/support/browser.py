"""A headless Chromium with the status page of a server, for tests and screenshots."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "chromium and chromium-driver are not installed"


@dataclass(eq=False)
class Browser:
    """The page in a browser."""

    driver: webdriver.Chrome

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Open a page in a window of a size in pixels."""
        self.driver.set_window_size(width, height)
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        """Return the element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text of an element, also of a hidden one."""
        return str(self.driver.execute_script("return document.querySelector(arguments[0]).textContent", selector))

    def column(self, table: str, number: int = 1) -> list[str]:
        """Return the texts of a table's column, the first of which has number 1."""
        script = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.textContent)"
        return list(self.driver.execute_script(script, f"#{table} tbody td:nth-child({number})"))

    def number(self, tile: str) -> int:
        """Return the number of a tile, such as ``Ids issued``."""
        texts = "(tile) => [...tile.children].map((part) => part.textContent)"
        tiles = dict(self.driver.execute_script(f"return [...document.querySelectorAll('#tiles div')].map({texts})"))
        return int("".join(each for each in tiles.get(tile, "-1") if each in "-0123456789"))

    def errors(self) -> list[str]:
        """Return what the console of the page has had since the last call."""
        return [str(line["message"]) for line in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def set_dark(self, *, dark: bool) -> None:
        """Prefer dark or light colours."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser until the end of the block."""
    assert CHROMIUM
    assert DRIVER
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox needs another user than root.
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
