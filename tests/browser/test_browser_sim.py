"""The dashboard on simulated desktops: rights, the replay, the keyboard, dark colours, a farm that ends."""

from __future__ import annotations

import httpx
import pytest
from browser_page import BrowserPage, PageFarm
from selenium.webdriver import Keys

from dart_envs.farm import FarmClient, Lease, connect
from dart_server import wire

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
SHAPE = wire.DesktopShape(resolution=(800, 600))
CLICK = [wire.ButtonEvent(type="down"), wire.ButtonEvent(type="up")]
FRAME = wire.FrameSpec(encoding="jpeg")
OVERLAP = """
const [left, right] = document.querySelectorAll('.columns > .side');
return Math.max(...[...left.children].map((one) => one.getBoundingClientRect().right)) - right.getBoundingClientRect().left;
"""


def click(lease: Lease, x: int, y: int) -> None:
    lease.step([wire.MoveEvent(x=x, y=y), *CLICK], None, frame=FRAME)


def leased(farm: FarmClient, **labels: str) -> Lease:
    return farm.lease(SHAPE, ttl_s=600, labels=labels)


def test_a_wrong_key_is_told_and_a_right_one_opens(sim_farm, open_page) -> None:
    page: BrowserPage = open_page(sim_farm)
    page.expected.append("401")
    page.driver.get(f"{sim_farm.url}/dashboard")
    page.one("#key").send_keys("dart_wrong", Keys.ENTER)
    page.shows("This key is not valid here.")
    page.picture("log-in")
    page.log_in(sim_farm.key)
    page.shows("No desktops yet")
    page.driver.refresh()
    page.shows("No desktops yet")
    page.button("Log out").click()
    assert page.one("#key").get_attribute("value") == ""
    page.driver.refresh()
    assert page.one("#key").is_displayed()


def test_by_keyboard_from_the_grid_to_a_desktop_its_steps_and_back(sim_farm, open_page) -> None:
    page: BrowserPage = open_page(sim_farm)
    with connect(sim_farm.url, sim_farm.key) as farm:
        lease = leased(farm, run="grpo-1")
        page.log_in(sim_farm.key)
        page.wait(lambda: page.all(".tile .chip.leased"), "the leased desktop shows")
        for _ in range(12):
            page.press(Keys.TAB)
            if "leased by admin" in page.focused():
                break
        assert "leased by admin" in page.focused()
        page.press(Keys.ENTER)
        page.shows("Live, view only")
        before = page.screen_changes(None, "the live screen has a picture")
        click(lease, 100, 100)
        page.screen_changes(before, "the screen shows what the client did")
        for number in range(3):
            click(lease, 300 + 200 * number, 100)
        page.one("#tab-history").send_keys(Keys.ARROW_RIGHT)
        steps = page.wait(lambda: len(page.all(".steps button")) >= 4 and page.all(".steps button"), "its steps show")
        assert "move to 100, 100, click" in steps[0].text
        steps[0].click()
        page.shows("Replay of a step, not live")
        page.wait(lambda: [i for i in page.all("img.step") if i.is_displayed()], "the step's picture shows")
        page.picture("sim-replay")
        page.press(Keys.ESCAPE)
        page.shows("Live, view only")
        lease.step([wire.MoveEvent(x=5, y=5)], None, frame=wire.FrameSpec(encoding="none"))
        page.wait(lambda: len(page.all(".steps button")) > len(steps), "the step shows")
        page.all(".steps button")[-1].click()
        page.shows("No picture was kept of this step.")
        assert not [image for image in page.all("img.step") if image.is_displayed()], "nor that of another"
        page.button("Live").click()
        page.shows("Live, view only")
        page.driver.execute_script("document.querySelector('.skip').focus()")
        page.press(Keys.ENTER)
        assert page.driver.execute_script("return document.activeElement.id") == "main"
        assert lease.desktop_id in page.driver.current_url, "the way to the content leads to no other view"
        page.press(Keys.ESCAPE)
        page.shows("Desktops in use")
        lease.release()


def test_a_tenant_sees_its_own_and_a_reader_controls_nothing(sim_farm, open_page) -> None:
    with connect(sim_farm.url, sim_farm.key) as admin:
        headers = {"authorization": f"Bearer {sim_farm.key}"}
        body = {"name": "tenant", "scope": "lease"}
        made = httpx.post(f"{sim_farm.url}/v1/keys", json=body, headers=headers, trust_env=False)
        secret = made.json()["secret"]
        with connect(sim_farm.url, secret) as farm:
            theirs, mine = leased(admin, of="admin"), leased(farm, of="tenant")
            page: BrowserPage = open_page(sim_farm)
            page.log_in(secret)
            page.wait(lambda: page.all(".tile .chip.leased"), "its desktop shows")
            assert len(page.all(".tile")) == 1
            assert theirs.desktop_id[-7:] not in page.text()
            page.one(".tile").click()
            page.button("Take over").click()
            page.shows("You control this desktop")
            other: BrowserPage = open_page(sim_farm)
            other.expected.append("409")
            other.log_in(sim_farm.key)
            other.driver.get(f"{sim_farm.url}/dashboard/#/desktops/{mine.desktop_id}")
            other.shows("tenant since")
            other.button("Take over").click()
            other.shows("somebody else controls this desktop")
            reset = mine.reset()
            assert reset.desktop_id == mine.desktop_id
            page.shows("You control this desktop")
            mine.release()
            page.expected.append("404")
            page.shows("This desktop is gone, or not yours any more.")
            other.expected.append("404")
            theirs.release()


def long_named_key(farm: PageFarm) -> str:
    body = {"name": "a-nightly-sweep-whose-key-has-a-rather-long-name-for-a-table", "scope": "lease"}
    headers = {"authorization": f"Bearer {farm.key}"}
    made = httpx.post(f"{farm.url}/v1/keys", json=body, headers=headers, trust_env=False)
    return str(made.json()["secret"])


def test_the_page_is_dark_where_dark_is_preferred_and_says_when_the_farm_is_gone(sim_farm, open_page) -> None:
    page: BrowserPage = open_page(sim_farm)
    with connect(sim_farm.url, sim_farm.key) as farm, connect(sim_farm.url, long_named_key(sim_farm)) as other:
        leases = [leased(farm, worker=str(number)) for number in range(2)]
        leases.append(leased(other, experiment="learning-rate-3e-6-with-a-long-label", family="libreoffice_calc"))
        page.log_in(sim_farm.key)
        shown = page.wait(
            lambda: len([i for i in page.all(".tile img") if i.is_displayed()]) == 3, "three pictures show"
        )
        assert shown
        click(leases[0], 300, 100)
        page.wait(lambda: page.all(".chart circle, .chart polyline"), "the charts have lines or points")
        page.wait(lambda: page.all("table a"), "the table of leases shows")
        light = page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        page.picture("sim-grid")
        page.dark()
        dark = page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        page.picture("sim-grid-dark")
        assert sum(map(int, dark[4:-1].split(","))) < 150 < sum(map(int, light[4:-1].split(",")))
        wide = page.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, "the page does not fit a laptop's width"
        assert page.driver.execute_script(OVERLAP) <= 0, "what is on the left lies over the charts"
        for lease in leases:
            lease.release()
    page.expected.append("ERR_CONNECTION_REFUSED")
    sim_farm.process.terminate()
    page.shows("The farm has not answered since")
    page.picture("sim-farm-gone")
