"""Which screen a view is, and what can be done on it."""

from __future__ import annotations

import numpy as np
import pytest

from dart_agent.explore.candidates import (
    ALWAYS_AVOIDED,
    CandidateAction,
    CandidateSettings,
    VisionUse,
    find_regions,
    list_candidates,
)
from dart_agent.explore.screens import ScreenIndex, ScreenView, has_changed, identify
from dart_envs.types import ActionType, RgbImage
from dart_server.wire import A11yElement

SENSITIVE = ["enabled", "sensitive", "showing", "visible"]
WH = (320, 200)
NO_KEYS = CandidateSettings(escape=False)


def element(
    role: str, name: str = "", at: tuple[int, int] = (10, 10), *, states: list[str] | None = None
) -> A11yElement:
    return A11yElement(
        role=role, name=name, x=at[0], y=at[1], w=60, h=20, states=SENSITIVE if states is None else states
    )


def blank(grey: int = 230) -> RgbImage:
    return np.full((WH[1], WH[0], 3), grey, np.uint8)


def screen(*elements: A11yElement, image: RgbImage | None = None, application: str = "editor") -> ScreenView:
    return ScreenView(blank() if image is None else image, elements, application)


def test_content_does_not_make_a_screen_and_controls_do() -> None:
    buttons = (element("push button", "Save"), element("push button", "Open"))
    index = ScreenIndex()
    index.add(1, identify(screen(*buttons, element("list item", "a.txt"), element("label", "3 files"))))
    longer = screen(*buttons, element("list item", "b.txt"), element("list item", "c.txt"), element("label", "4 files"))
    assert index.find(identify(longer)) == 1
    assert index.find(identify(screen(buttons[0], element("list item", "a.txt"), element("label", "")))) is None
    assert index.find(identify(screen(*buttons, element("list item"), element("label"), application="other"))) is None


def test_the_selected_tab_and_the_look_tell_screens_apart_and_noise_does_not() -> None:
    tabs = [element("page tab", name, states=[*SENSITIVE]) for name in ("General", "View")]
    first = screen(tabs[0].model_copy(update={"states": [*SENSITIVE, "selected"]}), tabs[1])
    second = screen(tabs[0], tabs[1].model_copy(update={"states": [*SENSITIVE, "selected"]}))
    index = ScreenIndex()
    index.add(1, identify(first))
    assert index.find(identify(second)) is None
    noisy = blank().astype(np.int16) + np.random.default_rng(0).integers(-3, 4, (WH[1], WH[0], 3))
    assert index.find(identify(ScreenView(noisy.astype(np.uint8), first.elements, "editor"))) == 1
    striped = blank()
    striped[:, ::40] = 0
    assert index.find(identify(ScreenView(striped, first.elements, "editor"))) is None


def test_a_caret_is_no_visible_change_and_a_word_is() -> None:
    caret, word = blank(), blank()
    caret[50:66, 40:42] = 0
    word[50:66, 40:80] = 0
    assert not has_changed(blank(), caret)
    assert has_changed(blank(), word)


def test_candidates_have_keys_of_their_own_and_share_groups() -> None:
    view = screen(
        element("push button", "Save", (10, 10)),
        element("push button", "Save", (100, 10)),
        element("push button", "Dead", (10, 40), states=["showing"]),
        element("push button", "Log out", (100, 40)),
        element("push button", "Far", (400, 10)),
        element("entry", "Name", (10, 80)),
        element("label", "Name", (100, 80)),
    )
    found = list_candidates(view, CandidateSettings(text="abc"))
    assert [one.key for one in found] == [
        "click|push button|Save",
        "click|push button|Save#2",
        "click|entry|Name",
        "fill|entry|Name",
        "escape",
    ]
    assert found[0].group == found[1].group
    assert [action.type for action in found[3].actions] == [ActionType.CLICK, ActionType.TYPE]
    assert found[3].with_text("xyz").actions[1].text == "xyz"
    assert [CandidateAction.from_dict(one.to_dict()) for one in found] == found


def test_a_running_clock_is_one_group_and_its_times_have_keys_of_their_own() -> None:
    names = ("12:03", "12:04", "12:04", "Sheet 1", "Sheet 20")
    found = list_candidates(
        screen(*(element("menu", name, (10 + 60 * at, 10)) for at, name in enumerate(names))), NO_KEYS
    )
    assert [one.key.removeprefix("click|menu|") for one in found] == [
        "12:03",
        "12:04",
        "12:04#2",
        "Sheet 1",
        "Sheet 20",
    ]
    assert [one.group.removeprefix("click|menu|") for one in found] == ["#:#"] * 3 + ["Sheet #"] * 2
    (nameless,) = list_candidates(screen(element("menu", at=(250, 150))), NO_KEYS)
    assert nameless.key == nameless.group == "click|menu|@14,12"


@pytest.mark.parametrize(("vision", "expected"), [("never", 0), ("without_tree", 0), ("beside_tree", 1), ("only", 2)])
def test_regions_of_pixels_are_candidates_where_no_element_is(vision: str, expected: int) -> None:
    image = blank()
    for left in (40, 200):
        image[60:80, left : left + 60 : 4] = 20
    boxes = find_regions(image)
    assert len(boxes) == 2
    view = screen(element("push button", "Left", (40, 60)), image=image)
    found = list_candidates(view, CandidateSettings(vision=vision))  # type: ignore[arg-type]
    assert sum(one.source == "vision" for one in found) == expected
    bare = list_candidates(ScreenView(image, (), "editor"), CandidateSettings())
    assert [one.role for one in bare] == ["region", "region", ""]
    x, y = bare[0].actions[0].x, bare[0].actions[0].y
    assert x is not None
    assert y is not None
    assert 40 <= x <= 100
    assert 60 <= y <= 80


def picture_of(*elements: A11yElement) -> RgbImage:
    """A picture in which vision finds each of the elements."""
    image = blank()
    for one in elements:
        image[one.y : one.y + one.h, one.x : one.x + one.w : 4] = 20
    return image


def clicked(found: list[CandidateAction], *elements: A11yElement) -> list[str]:
    """Roles and names of what the candidates of vision click on."""
    points = [(one.actions[0].x or 0, one.actions[0].y or 0) for one in found if one.source == "vision"]
    return [
        f"{one.role} {one.name}".strip()
        for x, y in points
        for one in elements
        if one.x <= x <= one.x + one.w and one.y <= y <= one.y + one.h
    ]


@pytest.mark.parametrize(
    ("vision", "expected"),
    [
        ("never", []),
        ("without_tree", []),
        ("beside_tree", ["panel"]),
        ("only", ["push button Paste", "panel", "push button Save"]),
    ],
)
def test_vision_offers_no_click_on_what_is_avoided_or_not_sensitive(vision: VisionUse, expected: list[str]) -> None:
    controls = [
        element("push button", "Paste", (40, 40), states=["showing"]),
        element("push button", "Delete everything", (40, 96)),
        element("label", "Log out", (200, 96)),
        element("push button", "Save", (40, 150)),
        element("panel", at=(200, 40)),
    ]
    image = picture_of(*controls)
    assert len(find_regions(image)) == len(controls)
    window = element("frame", "Log out of example.org", (0, 0)).model_copy(update={"w": WH[0], "h": WH[1]})
    settings = CandidateSettings(vision=vision, avoid=(*ALWAYS_AVOIDED, "delete"))
    found = list_candidates(screen(window, *controls, image=image), settings)
    assert clicked(found, *controls) == expected


def test_vision_leaves_out_the_controls_of_a_tree_that_has_no_candidate() -> None:
    controls = [
        element("push button", "Paste", (40, 40), states=["showing"]),
        element("menu", "Log out", (40, 96)),
        element("panel", at=(200, 40)),
    ]
    found = list_candidates(screen(*controls, image=picture_of(*controls)), CandidateSettings())
    assert clicked(found, *controls) == ["panel"]


@pytest.mark.parametrize("avoid", ["(?i)delete", "(?ix) del # what is deleted"])
def test_an_expression_of_what_is_avoided_may_have_flags(avoid: str) -> None:
    view = screen(element("push button", "Delete"), element("push button", "Reboot", (100, 10)))
    assert [one.key for one in list_candidates(view, CandidateSettings(avoid=(*ALWAYS_AVOIDED, avoid)))] == ["escape"]
