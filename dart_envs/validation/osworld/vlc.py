"""VLC: preferences, through its own dialogs."""

from __future__ import annotations

from dart_envs.tasks.script import ActionTemplate
from dart_envs.validation.osworld.actions import Oracle, click, key, pause, triple_click, type_text, wait_for_element

SIMPLE = "Simple Preferences"
"""The dialog's inner pages are not in the accessibility tree: what is on them is found by its place in pixels."""


def _click_simple_preferences(dx: int, dy: int) -> ActionTemplate:
    return click("dialog", SIMPLE, at=(0.0, 0.0), dx=dx, dy=dy)


OPEN = (wait_for_element("menu item", "Tools"), key("ctrl", "p"), pause(1.5))
SAVE_SIMPLE = (_click_simple_preferences(750, 679), pause(1.5))
SHOW_ALL = (_click_simple_preferences(89, 674), pause(1.5), key("alt", "f10"), pause(1))
"""All settings, the dialog as large as the screen, because what is scrolled away cannot be clicked."""
SAVE_ALL = (click("push button", "Save"), pause(1.5))


def _page(name: str, nth: int = 0) -> tuple[ActionTemplate, ...]:
    """The advanced preferences' page of that name: its filter box is above a check box that has a name."""
    return (
        click("check box", "Only show current", dy=-27),
        type_text(name),
        pause(1),
        click("table cell", name, nth=nth),
        pause(1),
    )


GUI = "Preferences"

ORACLES = {
    "215dfd39-f493-4bc3-a027-8a97d72c61bf": Oracle(
        GUI,
        (
            *OPEN,
            *SHOW_ALL,
            *_page("Qt"),
            click("check box", "Display background cone or art", at=(0.05, 0.5)),
            *SAVE_ALL,
        ),
    ),
    "5ac2891a-eacd-4954-b339-98abba077adb": Oracle(
        f"restart, {GUI}",
        (
            key("ctrl", "q"),
            pause(2),
            click("push button", "VLC media player"),
            pause(3),
            *OPEN,
            *SHOW_ALL,
            *_page("Playlist", 1),
            click("check box", "Play and exit", at=(0.05, 0.5)),
            *SAVE_ALL,
        ),
    ),
    "8ba5ae7a-5ae5-4eab-9fcc-5dd4fe3abf89": Oracle(
        GUI,
        (
            *OPEN,
            click("check box", "Input / Codecs"),
            pause(1),
            ActionTemplate(do="triple_click", target=_click_simple_preferences(478, 505).target),
            type_text("/home/user/Desktop"),
            *SAVE_SIMPLE,
        ),
    ),
    "9195653c-f4aa-453d-aa95-787f6ccfaae9": Oracle(
        GUI,
        (
            *OPEN,
            *SHOW_ALL,
            *_page("Qt"),
            triple_click("spin button", "Maximum Volume displayed", at=(0.3, 0.5)),
            type_text("200\t"),
            *SAVE_ALL,
        ),
    ),
    "a5bbbcd5-b398-4c91-83d4-55e1e31bbb81": Oracle(GUI, (*OPEN, _click_simple_preferences(177, 296), *SAVE_SIMPLE)),
    "d06f0d4d-2cd5-4ede-8de9-598629438c6e": Oracle(
        GUI,
        (
            *OPEN,
            *SHOW_ALL,
            *_page("Qt"),
            triple_click("text", "Define the colors of the volume slider"),
            type_text("20;20;20;30;30;30;40;40;40;50;50;50"),
            *SAVE_ALL,
        ),
    ),
    "f3977615-2b45-4ac5-8bba-80c17dbe2a37": Oracle(GUI, (*OPEN, _click_simple_preferences(40, 521), *SAVE_SIMPLE)),
}
