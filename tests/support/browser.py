"""A headless Chromium for the tests of pages: opens one page, in a given width and colour scheme."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no Chromium and its driver here")
_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


# Words, names and options of a page that are on two lines. Addresses, paths and other texts with signs may be.
_SPLIT = """
  const split = [], range = document.createRange();
  const whole = /(?<!\\S)[("]*(-*[A-Za-z]{2,24}|-*[A-Za-z][\\w.]*(-[\\w.]+)+)[).,:;"]*(?!\\S)/g;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.parentElement.closest("svg, script, .out")) continue;
    for (const word of node.data.matchAll(whole)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const parts = Array.from(range.getClientRects()).filter((one) => one.width > 0.5);
      if (new Set(parts.map((one) => Math.round(one.top))).size > 1) split.push(word[0]);
    }
  }
  return split;
"""


_WHOLE = """
  const done = arguments[0];
  (function wait() { if (document.querySelector("noscript")) setTimeout(wait, 5); else done(); })();
"""


class Browser:
    """One browser for many pages."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(
        self, path: Path, *, width: int = 1280, dark: bool = False, script: bool = True, paper: bool = False
    ) -> None:
        """Load a file anew; without `script` as a reader who has JavaScript off sees it; as printed: `paper`."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self.command("Emulation.setScriptExecutionDisabled", value=not script)
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        self.driver.get(path.as_uri())
        if script:  # the later rows of a long list come in once the page is shown
            self.driver.execute_async_script(_WHOLE)

    def run(self, script: str) -> Any:
        """What an expression is in the page."""
        return self.driver.execute_script(f"return {script}")

    def split_words(self) -> list[str]:
        """Words that the page in view breaks inside."""
        return list(self.driver.execute_script(_SPLIT))

    def sheets(self, path: Path) -> int:
        """On how many A4 pages a file is printed."""
        self.command("Emulation.clearDeviceMetricsOverride")
        self.command("Emulation.setEmulatedMedia", media="", features=[])
        self.driver.get(path.as_uri())
        printed = self.command("Page.printToPDF", preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69)
        return len(re.findall(rb"/Type\s*/Page[^s]", base64.b64decode(printed["data"])))

    def click(self, selector: str) -> None:
        """Click the first element that a selector finds, where a reader would."""
        element = self.driver.find_element("css selector", selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def type(self, selector: str, text: str) -> None:
        """Type into an input."""
        self.driver.find_element("css selector", selector).send_keys(text)

    def complaints(self) -> list[str]:
        """What the console said since it was last asked."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the Chrome DevTools Protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)


@contextmanager
def browser() -> Iterator[Browser]:
    options = Options()
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
