"""The browser: its settings pages, opened by their addresses, and the bookmark manager."""

from __future__ import annotations

from dart_envs.tasks.script import ActionTemplate
from dart_envs.validation.osworld.actions import Oracle, click, key, pause, triple_click, type_text, wait_for_element

WAIT_UNTIL_SAVED = pause(3)
"""Settings are saved a moment after they were changed."""


def _page(address: str) -> tuple[ActionTemplate, ...]:
    """Enter an address, once the browser is there; Delete takes away what the browser adds to it."""
    return (
        click("entry", "Address and search bar"),
        pause(1),
        key("ctrl", "l"),
        type_text(address),
        key("delete"),
        key("enter"),
        pause(1.5),
    )


SETTINGS = "settings page"

ORACLES = {
    "030eeff7-b492-4218-b312-701ec99ee0cc": Oracle(
        SETTINGS,
        (
            *_page("chrome://settings/cookies"),
            click("toggle button", 'Send a "Do Not Track" request with your browsing traffic'),
            click("push button", "Confirm"),
            WAIT_UNTIL_SAVED,
        ),
    ),
    "12086550-11c0-466b-b367-1d9e75b3910e": Oracle("address bar", _page("chrome://password-manager/passwords")),
    "2ad9387a-65d8-4e33-ad5b-7580065a27ca": Oracle(
        "bookmark manager",
        (
            *_page("chrome://bookmarks"),
            click("push button", "Organize"),
            click("menu item", "Add new folder"),
            pause(1),
            triple_click("entry", "Name"),
            type_text("Favorites"),
            click("push button", "Save"),
            WAIT_UNTIL_SAVED,
        ),
    ),
    "2ae9ba84-3a0d-4d4c-8338-3a1478dc5fe3": Oracle(
        SETTINGS,
        (
            *_page("chrome://settings/manageProfile"),
            triple_click("entry", "Name"),
            type_text("Thomas\t"),
            WAIT_UNTIL_SAVED,
        ),
    ),
    "3299584d-8f11-4457-bf4c-ce98f7600250": Oracle(
        SETTINGS,
        (
            # The page that is to go asks whether it may come without a secure connection; another tab is not held up by that.
            wait_for_element("push button", "Continue to site"),
            key("ctrl", "t"),
            pause(2),
            *_page("chrome://settings/onStartup"),
            click("radio button", "Open the New Tab page"),
            pause(12),
        ),
    ),
    "93eabf48-6a27-4cb6-b963-7d5fe1e0d3a9": Oracle(
        SETTINGS,
        (
            *_page("chrome://settings/appearance"),
            # The mode is offered for the browser's own colours only.
            click("push button", "Use Classic"),
            click("combo box", "Mode"),
            key("home"),
            key("enter"),
            WAIT_UNTIL_SAVED,
        ),
    ),
    "9656a811-9b5b-4ddf-99c7-5117bcef0626": Oracle(
        SETTINGS,
        (*_page("chrome://settings/security"), click("radio button", "Standard protection"), WAIT_UNTIL_SAVED),
    ),
    "99146c54-4f37-4ab8-9327-5f3291665e1e": Oracle(
        SETTINGS,
        (
            *_page("chrome://settings/content/siteData"),
            click("radio button", "Delete data sites have saved to your device when you close all windows"),
            WAIT_UNTIL_SAVED,
        ),
    ),
    "af630914-714e-4a24-a7bb-f9af687d3b91": Oracle(
        SETTINGS,
        (*_page("chrome://settings/fonts"), click("slider", "Font size"), key("end"), WAIT_UNTIL_SAVED),
    ),
    "bb5e4c0d-f964-439c-97b6-bdb9747de3f4": Oracle(
        SETTINGS,
        (
            *_page("chrome://settings/searchEngines"),
            click("push button", "More actions for Microsoft Bing"),
            click("menu item", "Make default"),
            WAIT_UNTIL_SAVED,
        ),
    ),
}
