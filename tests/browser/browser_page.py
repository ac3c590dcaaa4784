"""The dashboard as a person uses it: a thin layer over Selenium with waits that poll a condition.

Rule: whatever the browser's console calls an error is a failure of the test (`close` tells it).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

T = TypeVar("T")
WAIT_S = 120.0
CANVAS = ".screen canvas"
SCREEN_SUM = """
const canvas = document.querySelector('.screen canvas');
if (!canvas || !canvas.width) return null;
const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
let sum = 0;
for (let i = 0; i < data.length; i += 4) sum = (sum * 31 + data[i] * 7 + data[i + 1] * 3 + data[i + 2]) % 2147483647;
return sum;
"""


@dataclass(frozen=True)
class PageFarm:
    """A farm that serves its page."""

    url: str
    key: str
    process: subprocess.Popen[bytes]


class BrowserPage:
    """One browser with the farm's page in it."""

    def __init__(self, driver: Chrome, url: str, artifacts: Path) -> None:
        self.driver = driver
        self.url = url
        self.artifacts = artifacts
        self.expected: list[str] = []
        """Parts of console errors that the test provokes."""
        size: dict[str, Any] = {"width": 1366, "height": 768, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def wait(self, condition: Callable[[], T], what: str) -> T:
        """The condition's first true answer."""
        waiting = WebDriverWait(self.driver, WAIT_S, 0.2, [StaleElementReferenceException, AssertionError])
        return waiting.until(lambda _: condition(), what)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The one visible element of a selector, waited for."""
        found = self.wait(lambda: [one for one in self.all(selector) if one.is_displayed()], f"{selector} shows")
        return found[0]

    def button(self, name: str) -> WebElement:
        """The visible button with this text, waited for until it can be pressed."""

        def look() -> WebElement | None:
            fitting = [
                one for one in self.all("button") if one.is_displayed() and one.is_enabled() and one.text == name
            ]
            return fitting[0] if fitting else None

        found = self.wait(look, f"the button {name} can be pressed")
        assert found is not None
        return found

    def text(self) -> str:
        return self.one("body").text

    def shows(self, text: str) -> None:
        self.wait(lambda: text in self.text(), f"the page shows {text!r}")

    def log_in(self, key: str) -> None:
        self.driver.get(f"{self.url}/dashboard")
        self.one("#key").send_keys(key, Keys.ENTER)
        self.shows("Desktops in use")

    def screen_sum(self) -> int | None:
        """A number that differs between two pictures on the live screen; None while there is none."""
        return self.driver.execute_script(SCREEN_SUM)

    def screen_changes(self, before: int | None, what: str) -> int:
        def changed() -> int | None:
            now = self.screen_sum()
            return now if now is not None and now != before else None

        now = self.wait(changed, what)
        assert now is not None
        return now

    def click_screen(self, x: float, y: float, *, twice: bool = False) -> None:
        """Click into the live screen, at shares of its width and height; a double click with its halves a moment apart."""
        canvas = self.one(CANVAS)
        size = canvas.size
        dx, dy = round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
        actions = ActionChains(self.driver).move_to_element_with_offset(canvas, dx, dy).click()
        if twice:
            actions.pause(0.12).click()
        actions.perform()

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a person does, wherever the focus is."""
        actions = ActionChains(self.driver)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    def focused(self) -> str:
        """What the element with the focus says or is called."""
        said = "const e = document.activeElement; return e.getAttribute('aria-label') || e.textContent || e.tagName"
        return str(self.driver.execute_script(said))

    def dark(self) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, name: str) -> None:
        """Keep how the page looks now."""
        self.artifacts.mkdir(exist_ok=True)
        self.driver.save_screenshot(str(self.artifacts / f"{name}.png"))

    def errors(self) -> list[str]:
        """What the console complained about, but for what the test expects."""
        told = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [text for text in told if not any(part in text for part in self.expected)]

    def close(self) -> None:
        errors = self.errors()
        self.driver.quit()
        assert errors == []
