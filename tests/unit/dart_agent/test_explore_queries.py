"""Transitions as grounding samples: words, ambiguity, the split, and the model as author."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from dart_agent.errors import PolicyUnavailableError
from dart_agent.explore.candidates import CandidateSettings, list_candidates
from dart_agent.explore.choosers import GreatestQChooser
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.graph import KnownScreen
from dart_agent.explore.queries import model as model_module
from dart_agent.explore.queries.model import MAX_FAULTS, MAX_MARKS, model_queries
from dart_agent.explore.queries.rules import SPLITS, rule_queries, split_of, to_samples, write_queries
from dart_agent.explore.queries.transitions import (
    ElementTransition,
    element_transitions,
    other_elements,
    stored_regions,
)
from dart_agent.explore.screens import ScreenView, appeared_names, identify
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.storage.records import StoredScreen, StoredStep
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome
from dart_agent.grounding.samples import Box, read_image, read_samples
from dart_agent.types import Completion, FinishReason, PolicyRequest
from dart_envs.observations.transforms import encode_png
from dart_envs.types import Action, ActionType, RgbImage
from dart_server.wire import A11yElement

STATES = ["sensitive", "showing"]
WH = (320, 200)


def button(name: str, x: int, y: int, role: str = "push button") -> A11yElement:
    return A11yElement(role=role, name=name, states=STATES, x=x, y=y, w=40, h=20)


def screen_of(screen_id: int, *elements: A11yElement, window: str = "Main") -> StoredScreen:
    view = ScreenView(np.full((WH[1], WH[0], 3), 200, np.uint8), elements, "app", window)
    candidates = {one.key: one for one in list_candidates(view, CandidateSettings())}
    known = KnownScreen(screen_id, identify(view), 0, candidates)
    return StoredScreen(known, window, f"{screen_id:064x}", WH, elements, 0)


def click(number: int, screen: StoredScreen, name: str, to: int, outcome: StepOutcome) -> StoredStep:
    """A click that saw the screens as they are stored."""
    candidate = next(one for one in screen.known.candidates.values() if one.name == name and one.kind == "click")
    return as_stored(StoredStep(number, 0, "explore", "stay", screen.known.screen_id, to, candidate, outcome), screen)


def as_stored(step: StoredStep, before: StoredScreen) -> StoredStep:
    after = {MAIN.known.screen_id: MAIN, DIALOG.known.screen_id: DIALOG, MENU.known.screen_id: MENU}[
        step.to_screen or 0
    ]
    appeared = appeared_names(before.elements, after.elements)
    return replace(step, before_window=before.window, after_window=after.window, appeared=appeared)


MAIN = screen_of(1, button("Save", 10, 10), button("Open", 60, 10), button("OK", 10, 100), button("OK", 200, 100))
DIALOG = screen_of(2, button("Cancel", 10, 10), button("Name", 60, 10, "entry"), window="Open a file")
MENU = screen_of(3, button("Undo", 10, 10), button("Redo", 60, 10), button("Save", 110, 10))
CLICKS = [
    click(1, MAIN, "Open", 2, StepOutcome.NEW_SCREEN),
    click(2, MAIN, "Save", 3, StepOutcome.NEW_SCREEN),
    click(3, MAIN, "OK", 1, StepOutcome.NO_CHANGE),
]


def texts(steps: list[StoredStep]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for query in rule_queries(element_transitions([MAIN, DIALOG, MENU], steps)):
        found.setdefault(query.transition.candidate.name, set()).add(query.text)
    return found


def test_what_was_seen_is_asked_about_and_names_that_two_have_are_not() -> None:
    found = texts(CLICKS)
    assert found["Open"] == {
        'click "Open"',
        'click the push button in the top left of the screen, right of "Save"',
        'click the element that opens the window "Open a file"',
        'click the element after which "Cancel" and "Name" appear',
    }
    assert 'click the element that gives access to "Undo" and "Redo"' in found["Save"]
    assert "OK" not in found


def test_what_a_click_did_is_told_from_what_its_own_step_saw() -> None:
    saved = click(2, MAIN, "Save", 3, StepOutcome.NEW_SCREEN)
    edited = replace(saved, before_window="*Main", after_window="*Main", appeared=("Undo", "Open", "Redo"))
    found = texts([CLICKS[0], edited])["Save"]
    assert not any("opens the window" in text for text in found)
    assert 'click the element that gives access to "Undo" and "Redo"' in found, "the stored picture shows Open"
    unsaved = replace(saved, before_window="*Main", after_window="Main", appeared=())
    assert texts([unsaved]) == texts([replace(saved, before_window=None, after_window=None, appeared=None)])
    assert [query.kind for query in rule_queries(element_transitions([MAIN, MENU], [unsaved]))] == ["name"]


class EditorDesktop:
    """A text area whose text changes the title of the window, and a menu (`ExplorableDesktop`)."""

    def __init__(self) -> None:
        self.state = (False, False)
        """Whether the text has changed, and whether the menu is open."""

    async def observe(self) -> ScreenView:
        edited, is_open = self.state
        entries = [button(name, 0, 20 + 20 * at, "menu item") for at, name in enumerate(["New", "Quit"]) if is_open]
        shown = (button("File", 0, 0, "menu"), *entries, element("text", "", 0, 20, 320, 180))
        return ScreenView(
            np.full((WH[1], WH[0], 3), 200, np.uint8), shown, "editor", "*Untitled" if edited else "Untitled"
        )

    async def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            edited, is_open = self.state
            at_menu = action.type is ActionType.CLICK and (action.y or 0) < 20
            self.state = (edited or (action.type is ActionType.TYPE and not is_open), at_menu)

    async def restart(self) -> None:
        self.state = (False, False)

    async def save(self) -> str:
        return json.dumps(self.state)

    async def restore(self, snapshot: str) -> None:
        edited, is_open = json.loads(snapshot)
        self.state = (edited, is_open)

    async def discard(self, snapshot: str) -> None:
        pass

    async def fork(self, count: int) -> Sequence[Self]:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


async def test_a_title_that_changed_before_a_click_is_not_what_the_click_did(tmp_path: Path) -> None:
    settings = ExploreSettings(app="editor", max_steps=60)
    with ExploreStore.create(tmp_path, settings) as store:
        await Explorer(store, GreatestQChooser()).run(EditorDesktop())
        screens, steps = store.screens(), store.steps()
    windows = {(step.before_window, step.after_window) for step in steps}
    assert windows >= {("Untitled", "*Untitled"), ("*Untitled", "*Untitled")}
    transitions = element_transitions(screens, steps)
    assert {one.step.before_window for one in transitions if one.candidate.name == "File" and one.step} == {"*Untitled"}
    found = {query.text for query in rule_queries(transitions)}
    assert not any("opens the window" in text for text in found)
    assert 'click the element that gives access to "New" and "Quit"' in found


def test_two_elements_with_the_same_outcome_are_not_told_apart_by_it() -> None:
    both = [*CLICKS[:1], click(2, MAIN, "Save", 2, StepOutcome.NEW_EDGE)]
    found = texts(both)
    assert 'click the element that opens the window "Open a file"' not in found["Open"] | found["Save"]
    assert 'click "Save"' in found["Save"]


def effect_texts(screen: StoredScreen, *clicks: StoredStep) -> dict[str, set[str]]:
    """By element of a screen: its queries by what a click did."""
    transitions = element_transitions([screen, DIALOG, MENU], clicks)
    found: dict[str, set[str]] = {one.candidate.name: set() for one in transitions}
    for query in rule_queries(transitions):
        if query.kind in ("functional", "outcome"):
            found[query.transition.candidate.name].add(query.text)
    return found


def test_an_element_that_reaches_beyond_the_screen_is_compared_and_asked_about_by_what_is_on_it() -> None:
    screen = screen_of(7, button("Save", 300, 10), button("Open", 60, 10))
    clicks = [click(1, screen, "Save", 2, StepOutcome.NEW_SCREEN), click(2, screen, "Open", 2, StepOutcome.NEW_EDGE)]
    assert effect_texts(screen, *clicks) == {"Save": set(), "Open": set()}
    save, _ = element_transitions([screen, DIALOG], clicks)
    assert save.box == (300.0, 10.0, 320.0, 30.0)
    assert other_elements(save) == [("push button", (60.0, 10.0, 100.0, 30.0))]
    assert 'click "Save"' in {query.text for query in rule_queries([save])}


def test_a_click_on_a_covered_element_tells_what_its_cover_does() -> None:
    screen = screen_of(7, element("menu item", "Print", 0, 40, 200, 26), SAVE, button("Open", 200, 100))
    of_cover = click(1, screen, "Save", 2, StepOutcome.NEW_SCREEN)
    of_open = click(2, screen, "Open", 2, StepOutcome.NEW_EDGE)
    assert effect_texts(screen, of_cover, of_open) == {"Open": set()}, "the entry over Save opens it, too"
    of_entry = click(3, screen, "Print", 2, StepOutcome.NEW_EDGE)
    assert effect_texts(screen, of_cover, of_entry)["Print"], "it is the same element that was clicked"


def test_two_elements_that_lead_to_one_screen_are_not_told_apart_by_what_each_click_saw() -> None:
    first, second = CLICKS[0], click(2, MAIN, "Save", 2, StepOutcome.NEW_EDGE)
    later = replace(second, before_window="*Main", after_window="*Main", appeared=("Cancel", "Recent"))
    assert effect_texts(MAIN, first, later) == {"Save": set(), "Open": set()}


def visual_texts(*elements: A11yElement, name: str) -> list[str]:
    """The visual queries of a screen of which one element was clicked."""
    screen = screen_of(1, *elements)
    step = click(1, screen, name, 2, StepOutcome.NEW_SCREEN)
    return [
        query.text for query in rule_queries(element_transitions([screen, DIALOG], [step])) if query.kind == "visual"
    ]


def test_a_place_that_an_element_shares_which_nobody_tried_is_not_asked_about() -> None:
    crowd = [button("Open", 10, 32), button("Print", 60, 10), button("Quit", 60, 32)]
    assert visual_texts(button("Save", 10, 10), *crowd, name="Save") == []
    assert visual_texts(button("Save", 10, 10), *crowd, name="Print") == [
        'click the push button in the top left of the screen, right of "Save"'
    ]
    elsewhere = [button("Open", 10, 100), button("Name", 10, 32, "entry"), button("Below", 10, 900)]
    only = ["click the push button in the top left of the screen"]
    assert visual_texts(button("Save", 10, 10), *elsewhere, name="Save") == only
    assert visual_texts(button("Save", 10, 10), button("Save", 10, 10), *elsewhere[:1], name="Save") == only


def test_a_neighbour_that_two_elements_have_tells_neither() -> None:
    row = [button("Size", 10, 10, "entry"), button("", 54, 10), button("", 60, 32), button("Size", 10, 32, "entry")]
    assert visual_texts(*row, button("Apply", 100, 100), name="Apply") != []
    screen = screen_of(1, *row)
    nameless = [one for one in screen.known.candidates.values() if one.kind == "click" and not one.name]
    assert len(nameless) == 2
    transitions = [ElementTransition(screen, nameless[0], DIALOG)]
    assert "visual" not in {query.kind for query in rule_queries(transitions)}
    beside = [button("Size", 10, 10, "entry"), button("", 54, 10, "check box"), button("", 60, 32), *row[3:]]
    alone = screen_of(1, *beside)
    (box,) = [one for one in alone.known.candidates.values() if one.role == "check box"]
    assert 'click the check box in the top left of the screen, right of "Size"' in {
        query.text for query in rule_queries([ElementTransition(alone, box, DIALOG)])
    }


def element(role: str, name: str, x: int, y: int, w: int, h: int, *states: str) -> A11yElement:
    return A11yElement(role=role, name=name, states=[*STATES, *states], x=x, y=y, w=w, h=h)


SAVE = element("push button", "Save", 10, 42, 24, 22)
AREA, FRAME = element("text", "", 0, 30, 320, 170), element("frame", "Main", 0, 0, 320, 200)


@pytest.mark.parametrize(
    "elements",
    [
        [button("Save", 10, 10), button("Quit", 20, 15, "menu item")],
        [element("menu item", "Print", 0, 40, 200, 26), SAVE],
        [element("menu", "Recent", 0, 40, 200, 26), SAVE],
        [SAVE, element("menu item", "Print", 0, 40, 200, 26)],
        [FRAME, SAVE, element("dialog", "Print", 0, 30, 300, 100)],
        [FRAME, SAVE, element("frame", "Other", 0, 30, 300, 100, "active")],
        [FRAME, SAVE, element("table cell", "row", 0, 40, 200, 26)],
        [FRAME, element("push button", "Wide", 0, 40, 200, 26), SAVE],
    ],
    ids=["part", "entry before", "submenu", "entry after", "dialog", "active window", "cell after", "button before"],
)
def test_an_element_under_something_that_opened_over_it_is_not_asked_about(elements: list[A11yElement]) -> None:
    covered = screen_of(4, *elements)
    transitions = element_transitions([covered, DIALOG], [click(1, covered, "Save", 2, StepOutcome.NEW_SCREEN)])
    assert transitions == []


@pytest.mark.parametrize(
    "elements",
    [
        [FRAME, element("menu item", "Save", 0, 40, 200, 26), AREA],
        [FRAME, AREA, element("dialog", "Sure?", 0, 30, 300, 100), SAVE],
        [FRAME, button("Quit", 14, 45), element("dialog", "Sure?", 0, 30, 300, 100), SAVE],
        [FRAME, element("dialog", "Sure?", 0, 30, 300, 100), SAVE],
        [FRAME, element("table cell", "row", 0, 40, 200, 26), SAVE],
        [FRAME, element("entry", "Find", 0, 40, 200, 26), SAVE],
        [FRAME, AREA, SAVE],
        [FRAME.model_copy(update={"states": [*STATES, "active"]}), SAVE, element("frame", "Other", 0, 0, 90, 90), AREA],
    ],
    ids=[
        "entry over text",
        "dialog over text",
        "dialog over button",
        "dialog",
        "in a cell",
        "in an entry",
        "in text",
        "active window",
    ],
)
def test_an_element_over_what_holds_it_is_asked_about(elements: list[A11yElement]) -> None:
    screen = screen_of(4, *elements)
    (transition,) = element_transitions([screen, DIALOG], [click(1, screen, "Save", 2, StepOutcome.NEW_SCREEN)])
    assert transition.candidate.name == "Save"


def test_a_row_that_came_to_the_place_of_another_one_is_not_asked_about() -> None:
    first = screen_of(5, button("alpha", 10, 10, "list item"), button("beta", 10, 40, "list item"))
    scrolled = screen_of(6, button("delta", 10, 10, "list item"), button("beta", 10, 40, "list item"))
    later = next(one for one in scrolled.known.candidates.values() if one.name == "delta" and one.kind == "click")
    assert later.box == first.known.candidates["click|list item|alpha"].box
    first.known.candidates[later.key] = later
    steps = [
        click(1, first, "alpha", 2, StepOutcome.NEW_SCREEN),
        StoredStep(2, 0, "explore", "stay", 5, 2, later, StepOutcome.NEW_EDGE),
    ]
    assert [one.candidate.name for one in element_transitions([first, DIALOG], steps)] == ["alpha"]
    assert [query.text for query in rule_queries([ElementTransition(first, later, None)]) if query.kind == "name"] == []


def test_screens_of_the_same_shape_are_in_the_same_split() -> None:
    same = screen_of(9, *MAIN.elements)
    assert split_of(same) == split_of(MAIN)
    splits = {split_of(screen_of(n, button(chr(65 + n % 26) + chr(65 + n // 26), 10, 10))) for n in range(60)}
    assert splits == set(SPLITS)
    samples = to_samples(rule_queries(element_transitions([MAIN, DIALOG, MENU], CLICKS)), "x")
    (split,) = [name for name in SPLITS if samples[name]]
    assert split == split_of(MAIN)
    (open_,) = [one for one in samples[split] if one.instruction == 'click "Open"']
    assert open_.targets[0].boxes == ((60.0, 10.0, 100.0, 30.0),)
    assert len(open_.distractors) == 3


async def explored(out: Path) -> ExploreStore:
    store = ExploreStore.create(out, ExploreSettings(app="simulated/3", max_steps=60))
    await Explorer(store, GreatestQChooser()).run(SimulatedDesktop(SimulatedApplication(3, 12)))
    return store


async def test_an_exploration_becomes_files_that_grounding_reads(tmp_path: Path) -> None:
    with await explored(tmp_path / "explored") as store:
        counts = write_queries(store, tmp_path / "data")
    assert sum(counts.values()) > 20
    of_screen: dict[str, str] = {}
    for split in SPLITS:
        samples = list(read_samples(tmp_path / "data" / f"{split}.jsonl"))
        assert len(samples) == counts[split]
        for sample in samples:
            assert of_screen.setdefault(sample.screen_id, split) == split
            read_image(tmp_path / "data" / sample.image, sample.image_wh)


class ScriptedAuthor:
    """Writes queries, answers which element is meant, or fails."""

    def __init__(
        self, *, choice: int | None, fail: bool = False, fails_for: str = "", functional: str = "open it"
    ) -> None:
        self.choice = choice
        self.fails_for = fails_for
        self.functional = functional
        self.fail = fail
        self.asked = 0

    async def complete(self, request: PolicyRequest) -> Completion:
        self.asked += 1
        if self.fail or request.request_id == self.fails_for:
            raise PolicyUnavailableError("status 500")
        text = json.dumps({"choice": self.choice})
        if request.request_id.startswith("query"):
            text = json.dumps({"visual": "the left one", "functional": self.functional, "outcome": 5})
        return Completion(text, (), (), (), (), FinishReason.STOP)


@pytest.mark.parametrize(("choice", "kept"), [(2, True), (1, False), (0, False)])
async def test_a_query_of_a_model_stays_where_the_model_finds_its_element(
    tmp_path: Path, choice: int, kept: bool
) -> None:
    with ExploreStore.create(tmp_path, ExploreSettings(app="x")) as store:
        for screen in (MAIN, DIALOG):
            store.image_path(screen.image_sha256).write_bytes(_png())
        transition = element_transitions([MAIN, DIALOG], CLICKS[:1])
        queries, faults = await model_queries(store, transition, ScriptedAuthor(choice=choice))
        expected = {"the left one", "open it", 'click "Open"'} if kept else {'click "Open"'}
        assert {query.text for query in queries} == expected
        assert faults == 0
        by_rules, faults = await model_queries(store, transition, ScriptedAuthor(choice=None, fail=True))
        assert (by_rules, faults) == (rule_queries(transition), 1)
        broken, faults = await model_queries(store, transition, ScriptedAuthor(choice=choice, functional="open \ud800"))
        assert faults == 0
        assert kept == ("open ?" in {query.text for query in broken})


async def test_a_model_sees_what_the_step_of_the_click_saw(tmp_path: Path) -> None:
    shades = {"a" * 64: 40, "b" * 64: 80, MAIN.image_sha256: 120, DIALOG.image_sha256: 160}
    seen: list[int] = []

    class Viewer(ScriptedAuthor):
        async def complete(self, request: PolicyRequest) -> Completion:
            seen.extend(int(image[-1, -1, 0]) for image in request.images)
            return await super().complete(request)

    step = replace(CLICKS[0], before_sha256="a" * 64, after_sha256="b" * 64)
    assert step.candidate is not None
    elsewhere = replace(step, candidate=replace(step.candidate, box=(0.0, 0.0, 40.0, 20.0)))
    with ExploreStore.create(tmp_path, ExploreSettings(app="x")) as store:
        for sha256, shade in shades.items():
            store.image_path(sha256).write_bytes(encode_png(np.full((WH[1], WH[0], 3), shade, np.uint8)))
        for one, pictures in ((step, [40, 80]), (elsewhere, [120, 80]), (CLICKS[0], [120, 160])):
            seen.clear()
            await model_queries(store, element_transitions([MAIN, DIALOG], [one]), Viewer(choice=2))
            assert seen[:2] == pictures
            assert set(seen[2:]) == {120}, "queries are asked about the stored picture"


async def test_what_could_be_taken_for_an_element_has_a_mark_on_a_crowded_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[Sequence[Box]] = []

    def note_marks(image: RgbImage, boxes: Sequence[Box]) -> RgbImage:
        marked.append(boxes)
        return image

    monkeypatch.setattr(model_module, "draw_marks", note_marks)
    cells = [(20 * (at % 16), 30 * (at // 16)) for at in range(80)]
    far_twin = element("toggle button", "far twin", 300, 180, 18, 18)
    links = [element("link", f"i{at}", x, y, 18, 18) for at, (x, y) in enumerate(cells)]
    buttons = [element("push button", f"b{at}", x, y, 18, 18) for at, (x, y) in enumerate(cells)]
    screens = [
        screen_of(8, *buttons),
        screen_of(8, *links, far_twin, element("toggle button", "target", 0, 150, 18, 18)),
    ]
    expected = {0: ("b79", (280.0, 120.0, 298.0, 138.0)), 1: ("target", (300.0, 180.0, 318.0, 198.0))}
    with ExploreStore.create(tmp_path, ExploreSettings(app="x")) as store:
        for screen in (screens[0], DIALOG):
            store.image_path(screen.image_sha256).write_bytes(_png())
        for number, (name, twin) in expected.items():
            step = click(1, screens[number], name, 2, StepOutcome.NEW_SCREEN)
            marked.clear()
            await model_queries(store, element_transitions([screens[number], DIALOG], [step]), ScriptedAuthor(choice=1))
            assert all(twin in boxes for boxes in marked[1:])
            assert {len(boxes) for boxes in marked[1:]} == {MAX_MARKS}


async def test_a_model_that_is_gone_is_not_waited_for_at_every_element(tmp_path: Path) -> None:
    author = ScriptedAuthor(choice=2, fail=True)
    with ExploreStore.create(tmp_path, ExploreSettings(app="x")) as store:
        for screen in (MAIN, DIALOG):
            store.image_path(screen.image_sha256).write_bytes(_png())
        transitions = element_transitions([MAIN, DIALOG], CLICKS[:1]) * (MAX_FAULTS + 3)
        _, faults = await model_queries(store, transitions, author)
        assert (faults, author.asked) == (MAX_FAULTS + 3, MAX_FAULTS)


async def test_a_query_that_fits_two_elements_is_left_out_where_the_model_failed_for_one_of_them(
    tmp_path: Path,
) -> None:
    both = [*CLICKS[:1], click(2, MAIN, "Save", 2, StepOutcome.NEW_EDGE)]
    transitions = element_transitions([MAIN, DIALOG], both)
    assert [one.candidate.name for one in transitions] == ["Save", "Open"]
    with ExploreStore.create(tmp_path, ExploreSettings(app="x")) as store:
        for screen in (MAIN, DIALOG):
            store.image_path(screen.image_sha256).write_bytes(_png())
        queries, faults = await model_queries(store, transitions, ScriptedAuthor(choice=2, fails_for="query-0"))
    assert faults == 1
    assert {query.text for query in queries if query.transition is transitions[1]} > {"the left one"}
    assert [query for query in queries if query.transition is transitions[0]] == [
        query for query in rule_queries(transitions) if query.transition is transitions[0]
    ]
    assert not any("Open a file" in query.text or "Cancel" in query.text for query in queries), "both open it"


def _png() -> bytes:
    return encode_png(np.full((WH[1], WH[0], 3), 200, np.uint8))


def test_a_transition_without_a_visible_change_has_no_outcome() -> None:
    quiet = [ElementTransition(MAIN, MAIN.known.candidates["click|push button|Open"], None)]
    assert {query.kind for query in rule_queries(quiet)} == {"name", "visual"}


def picture_with(*corners: tuple[int, int]) -> RgbImage:
    """Striped squares of 24 pixels, which have edges everywhere."""
    image = np.full((WH[1], WH[0], 3), 200, np.uint8)
    for x, y in corners:
        image[y : y + 24, x : x + 24 : 2] = 0
    return image


def blind_screen(screen_id: int, image: RgbImage, window: str) -> StoredScreen:
    """A screen of an application without a tree."""
    view = ScreenView(image, (), "app", window)
    candidates = {one.key: one for one in list_candidates(view, CandidateSettings())}
    return StoredScreen(KnownScreen(screen_id, identify(view), 0, candidates), window, f"{screen_id:064x}", WH, (), 0)


async def test_what_vision_alone_found_is_asked_about(tmp_path: Path) -> None:
    image = picture_with((16, 16), (160, 96))
    main, dialog = blind_screen(1, image, "Paint"), blind_screen(2, picture_with((64, 64)), "Colours")
    left, right = (one for one in main.known.candidates.values() if one.source == "vision")
    step = StoredStep(1, 0, "explore", "stay", 1, 2, left, StepOutcome.NEW_SCREEN)
    step = replace(step, before_window="Paint", after_window="Colours", appeared=())
    assert element_transitions([main, dialog], [step]) == [], "nobody has looked at the picture"
    with ExploreStore.create(tmp_path / "explored", ExploreSettings(app="x")) as store:
        for screen, shown in ((main, image), (dialog, picture_with((64, 64)))):
            store.image_path(screen.image_sha256).write_bytes(encode_png(shown))
        (transition,) = element_transitions([main, dialog], [step], stored_regions(store))
        assert other_elements(transition) == [("region", right.box)]
        by_rules = rule_queries([transition])
        assert [query.text for query in by_rules] == ['click the element that opens the window "Colours"']
        ((sample,),) = [samples for samples in to_samples(by_rules, "x").values() if samples]
        assert (sample.targets[0].boxes, sample.distractors) == ((left.box,), (("region", right.box),))
        assert (sample.role, sample.element_type) == ("region", "icon")
        author = ScriptedAuthor(choice=1)
        written, _ = await model_queries(store, [transition], author)
        assert {query.text for query in written} == {"the left one", "open it"}
        written, _ = await model_queries(store, [transition], ScriptedAuthor(choice=2))
        assert written == [], "the other region is not what is meant"
        store.image_path(main.image_sha256).write_bytes(encode_png(picture_with((160, 96))))
        assert element_transitions([main, dialog], [step], stored_regions(store)) == [], "it came later"
