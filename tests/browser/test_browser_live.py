"""The dashboard end to end on a live desktop: log in, watch it change, take over, type a word that arrives in an editor, release."""

from __future__ import annotations

import time

import pytest
from browser_page import BrowserPage
from selenium.webdriver import ActionChains, Keys

from dart_envs.farm import Lease, connect

pytestmark = [pytest.mark.browser, pytest.mark.desktop, pytest.mark.timeout(900)]
NOTE = "/home/user/note.txt"
WORD = "Grüße42"


def open_editor(lease: Lease) -> None:
    """The editor with an empty note, shown and with the keyboard."""
    lease.write_file(NOTE, b"")
    lease.exec(["mousepad", NOTE], detach=True)
    deadline_s = time.monotonic() + 120
    while True:
        names = [element.name for element in lease.a11y()]
        if any("note.txt" in name for name in names):
            return
        assert time.monotonic() < deadline_s, f"no editor came up: {names}"
        time.sleep(0.3)


def save(page: BrowserPage) -> None:
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys("s").key_up(Keys.CONTROL).perform()


def rewrite_by_double_click(page: BrowserPage, lease: Lease) -> None:
    """A double click marks the only word, and what is typed takes its place; on a slow machine the clicks may come too far apart."""
    area = next(element for element in lease.a11y() if element.role == "text" and WORD in element.text)
    width, height = lease.resolution
    for _ in range(6):
        # The editor empties the file before it writes it.
        unsaved = (b"", lease.read_file(NOTE))
        page.click_screen((area.x + 24) / width, (area.y + 14) / height, twice=True)
        page.press("neu")
        save(page)
        page.wait(lambda unsaved=unsaved: lease.read_file(NOTE) not in unsaved, "what was typed is saved")
        if lease.read_file(NOTE).strip() == b"neu":
            return
    pytest.fail(f"a double click never marked the word: {lease.read_file(NOTE)!r}")


def test_watch_take_over_type_and_release(live_farm, open_page) -> None:
    page: BrowserPage = open_page(live_farm)
    with connect(live_farm.url, live_farm.key) as farm:
        lease = farm.lease(ttl_s=600, wait_s=300, labels={"test": "browser"})
        page.log_in(live_farm.key)
        page.wait(lambda: page.all(".tile .chip.leased"), "the leased desktop shows")
        page.wait(lambda: [i for i in page.all(".tile img") if i.is_displayed()], "its picture shows")
        page.picture("live-grid")

        page.one(".tile:has(.chip.leased)").click()
        page.shows("Live, view only")
        first = page.screen_changes(None, "the live screen has a picture")
        open_editor(lease)
        page.screen_changes(first, "the live screen shows the editor")
        page.click_screen(0.5, 0.5)
        page.press("nothing of this arrives")
        page.picture("live-watching")

        page.button("Take over").click()
        page.shows("You control this desktop")
        page.click_screen(0.5, 0.5)
        before = page.screen_sum()
        page.press(*WORD)
        page.screen_changes(before, "the word shows on the live screen")
        save(page)
        page.wait(lambda: lease.read_file(NOTE).strip() == WORD.encode(), "the word arrived in the guest")
        page.picture("live-taken-over")

        rewrite_by_double_click(page, lease)

        page.press(Keys.ESCAPE, Keys.ESCAPE)
        page.shows("Live, view only")
        page.shows("Takeover ended")
        page.button("Release").click()
        page.one("dialog")
        page.picture("live-release")
        page.expected.append("404")
        page.one("dialog button.danger").click()
        over = ("Nobody leases this desktop now", "This desktop is gone")
        page.wait(lambda: any(text in page.text() for text in over), "the view is over")
        kinds = [event.kind for event in farm.events(lease_id=lease.lease_id)]
        assert kinds.count("takeover_started") == kinds.count("takeover_ended") == 1
        assert kinds[-1] == "lease_released"
