"""Chromium without a window, as tests of pages drive it: a file or a server, a width, light or dark, scripts on or off.

Without Chromium these tests are skipped on somebody's own machine; in CI, or with MHA_BROWSER set, they fail.
"""

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

LOWEST_CONTRAST = 4.5
"""Of text against its background, as WCAG's level AA asks."""

CONTRASTS = """
function parse(text) { return text.match(/[\\d.]+/g).map(Number); }
function background(element) {
  for (; element; element = element.parentElement) {
    const color = parse(getComputedStyle(element).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
}
function luminance(color) {
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = color.slice(0, 3).map(c => linear(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const worst = {};
for (const element of document.body.querySelectorAll("*")) {
  if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
  if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName) || !element.checkVisibility()) continue;
  const pair = [parse(getComputedStyle(element).color), background(element)].map(luminance);
  const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  const name = element.tagName + "." + (element.getAttribute("class") ?? "");
  worst[name] = Math.min(contrast, worst[name] ?? Infinity);
}
return worst;
"""

OVERFLOWING = """
return [...document.querySelectorAll('body *')].filter(
  e => e.getBoundingClientRect().right > innerWidth + 1 && e.checkVisibility() && !e.closest(arguments[0])
).map(e => e.outerHTML.slice(0, 80));
"""

SCRIPTS_OFF = "Emulation.setScriptExecutionDisabled"


def missing() -> str:
    """What a browser test needs and is not here; empty if all is."""
    if not any(map(shutil.which, BROWSERS)):
        return f"no browser on PATH (looked for {', '.join(BROWSERS)})"
    if not shutil.which("chromedriver"):
        return "no chromedriver on PATH"
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "selenium is not installed; it is in the extra 'test'"
    return ""


class Browser:
    """One browser, and what tests ask of the page that it shows.

    Args:
        profile: an empty folder for its settings.
    """

    def __init__(self, profile: Path) -> None:
        reason = missing()
        if reason and not (os.environ.get("CI") or os.environ.get("MHA_BROWSER")):
            pytest.skip(reason)
        assert not reason, f"{reason}; CI or MHA_BROWSER is set, so it must be there"

        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def open(
        self, page: Path | str, width: int, scheme: str = "light", target: str = "", *, scripts: bool = True
    ) -> None:
        """Show a page.

        Args:
            page: the file, or an address.
            width: of the window, in CSS pixels.
            scheme: "light" or "dark", what the system prefers.
            target: the id after "#".
            scripts: whether the page's scripts may run.
        """
        self.driver.execute_cdp_cmd(SCRIPTS_OFF, {"value": False})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preferred = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preferred]})
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # what earlier pages left
        self.driver.execute_cdp_cmd(SCRIPTS_OFF, {"value": not scripts})
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self.driver.get(f"{address}#{target}" if target else address)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns that the test runs in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any, seconds: float = 10.0) -> None:
        """Until the script returns something true; after so many seconds the test fails."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds).until(lambda driver: driver.execute_script(script, *arguments))

    def press(self, *keys: str) -> None:
        """Type into what has the focus, key by key: characters, or names such as "ARROW_DOWN" and "TAB"."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.driver).send_keys(*(getattr(Keys, key, key) for key in keys)).perform()

    def console(self) -> list[dict[str, Any]]:
        """The messages of the console since the page was opened, or since they were last asked for."""
        return self.driver.get_log("browser")

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened, or since they were last asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def low_contrasts(self) -> dict[str, float]:
        """Element and class -> contrast of its text, of all visible text with less than LOWEST_CONTRAST."""
        contrasts = self.run(CONTRASTS)
        assert contrasts, "the page shows no text"
        return {name: value for name, value in contrasts.items() if value < LOWEST_CONTRAST}

    def overflowing(self, scrolling: str = ".scroll") -> list[str]:
        """The starts of elements that stand out at the right; what scrolls in a container of its own does not."""
        inner, needed = self.run("return [innerWidth, document.documentElement.scrollWidth]")
        page = [f"the page: {needed} > {inner}"] if needed > inner else []
        return page + self.run(OVERFLOWING, scrolling)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what is shown as PNG: the whole page, or the window."""
        asked = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            width = self.run("return innerWidth")  # there is no scroll bar then
            asked["clip"] = {**size, "width": width, "x": 0, "y": 0, "scale": 1}
        path.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"]))

    def printed_pages(self) -> int:
        """How many pages of A4 the page is on paper."""
        made = self.driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
        return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(made["data"])))

    def quit(self) -> None:
        self.driver.quit()
