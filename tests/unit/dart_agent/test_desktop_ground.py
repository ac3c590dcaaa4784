"""desktop-ground without desktops: from accessibility trees with screenshots to questions with one answer, samples and splits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
from typer.testing import CliRunner

from dart_agent.cli import app
from dart_agent.errors import AgentError, ConfigError
from dart_agent.grounding.datasets.formats import ReadableFormat, read_dataset
from dart_agent.grounding.desktop_ground import recording, walk
from dart_agent.grounding.desktop_ground.benchmark import NOVEL, PER_TARGET, choose_novel, make_benchmark
from dart_agent.grounding.desktop_ground.capture import ScreenUnstable
from dart_agent.grounding.desktop_ground.generate import GroundPlan, check_folder, generate, write_benchmark
from dart_agent.grounding.desktop_ground.kept_screens import UNFINISHED
from dart_agent.grounding.desktop_ground.places import colour_shares, line_of, neighbour
from dart_agent.grounding.desktop_ground.queries import find_queries
from dart_agent.grounding.desktop_ground.screen import CapturedScreen, read_elements
from dart_agent.grounding.desktop_ground.visibility import Visibility, visibilities
from dart_agent.grounding.desktop_ground.walk import (
    ApplicationMissing,
    applications_shown,
    find_dialog_items,
    find_openers,
)
from dart_agent.grounding.samples import read_image, read_samples
from dart_envs.errors import DartEnvError, FarmError, FarmTimeoutError, NoCapacityError
from tests.unit.dart_agent.drawn_screens import USUAL, Node, button, captured, tree, window


def asked(screen: CapturedScreen) -> dict[str, str]:
    """Instructions with the names of their answers."""
    return {query.instruction: query.element.name for query in find_queries(screen)}


def seen(screen: CapturedScreen) -> dict[str, Visibility]:
    """Visibility by name, of elements with one."""
    return {
        element.name: state
        for element, state in zip(screen.elements, visibilities(screen), strict=True)
        if element.name and element.box is not None
    }


def test_a_tree_becomes_elements_with_parents_and_pixels() -> None:
    nodes = [window(button("Save", 10, 20), Node("text", text="hi", box=None), name="A & B")]
    application, frame, save, text = read_elements(tree({"editor": nodes}))
    assert (application.role, application.parent, application.top) == ("application", -1, -1)
    assert (frame.name, frame.parent, frame.top) == ("A & B", 0, 1)
    assert (save.role, save.box, save.parent, save.top) == ("push-button", (10, 20, 70, 44), 1, 1)
    assert save.states == {"showing", "visible", "sensitive", "enabled"}
    assert (text.box, text.text, text.application) == (None, "hi", "editor")
    with pytest.raises(ValueError, match="no XML"):
        read_elements("<a>")


def test_what_is_outside_scrolled_away_or_covered_is_not_whole() -> None:
    pane = Node(
        "scroll-pane", "", (10, 100, 200, 150),
        [button("inside", 20, 110), button("half", 20, 140), button("scrolled", 20, 200)],
    )  # fmt: skip
    below = window(
        button("free", 10, 10), button("covered", 300, 210), button("edge", 240, 210), pane,
        button("off", 380, 10), Node("push-button", "unshown", (10, 40, 50, 60), states=("sensitive",)),
    )  # fmt: skip
    above = window(button("front", 310, 260), box=(270, 200, 400, 300))
    screen = captured({"app": [below], "other": [above]})
    assert seen(screen) == {
        "Window": Visibility.WHOLE,
        "free": Visibility.WHOLE,
        "covered": Visibility.HIDDEN,
        "edge": Visibility.PART,
        "inside": Visibility.WHOLE,
        "half": Visibility.PART,
        "scrolled": Visibility.HIDDEN,
        "off": Visibility.PART,
        "unshown": Visibility.HIDDEN,
        "front": Visibility.WHOLE,
    }


def test_popups_cover_what_is_below_and_show_what_is_in_menus() -> None:
    items = [Node("menu-item", "Open", (10, 30, 110, 50)), Node("menu-item", "Quit", (10, 50, 110, 70))]
    bar = Node("menu-bar", "", (0, 0, 400, 25), [Node("menu", "File", (10, 0, 60, 25), items)])
    nodes = window(bar, button("below", 30, 40), button("beside", 200, 40))
    open_menu = captured({"app": [nodes]}, popups=[(10, 28, 112, 72)])
    assert seen(open_menu)["below"] is Visibility.HIDDEN
    assert seen(open_menu)["beside"] is seen(open_menu)["Open"] is seen(open_menu)["File"] is Visibility.WHOLE
    assert asked(open_menu)['Click the menu item "Quit".'] == "Quit"
    closed = captured({"app": [nodes]})
    assert seen(closed)["Open"] is Visibility.HIDDEN
    tooltip = captured({"app": [nodes]}, popups=[(190, 60, 270, 90)])
    assert seen(tooltip)["beside"] is Visibility.PART


def test_a_name_that_two_elements_have_is_not_asked() -> None:
    both = {"app": [window(button("OK", 10, 10), button("ok", 10, 50), button("Apply", 10, 90))]}
    questions = asked(captured(both))
    assert 'Click the button "Apply".' in questions
    assert not any('the button "O' in question or 'the button "o' in question for question in questions)


@pytest.mark.parametrize(
    ("left", "unique"),
    [(10, False), (380, False), (500, True)],  # whole, half off the screen, off the screen
)
def test_what_other_applications_show_counts(left: int, unique: bool) -> None:
    """The second window is on the right; its button is a rival as long as any of it can be seen."""
    mine = window(button("Save", 10, 10), box=(0, 0, 200, 300))
    theirs = window(button("Save", left if left > 300 else 250, 10), box=(200, 0, 400, 300))
    screen = captured({"mine": [mine], "theirs": [theirs]}, own="mine")
    assert ('Click the button "Save".' in asked(screen)) is unique
    assert all(query.element.application == "mine" for query in find_queries(screen))


def test_hidden_and_plain_elements_are_not_asked_about() -> None:
    plain = Node("push-button", "Plain", (10, 10, 60, 40))
    screen = captured({"app": [window(plain, button("Tiny", 100, 10, 4, 4), button("Far", 500, 10))]})
    screen.pixels[5:45, 5:65] = 128
    assert asked(screen) == {}


def test_two_controls_in_one_place_are_not_asked_about() -> None:
    screen = captured({"app": [window(button("Below", 10, 10), button("Above", 20, 12), button("Alone", 10, 100))]})
    assert set(asked(screen).values()) == {"Alone"}


def test_functions_follow_state_and_role() -> None:
    nodes = window(
        Node("check-box", "Wrap text", (10, 10, 110, 30), more=("checked",)),
        Node("check-box", "Show numbers", (10, 40, 110, 60)),
        Node("check-box", "Twice", (10, 70, 110, 90)),
        Node("check-box", "Twice", (10, 100, 110, 120)),
        button("Undo", 200, 10),
        Node("label", "City:", (10, 200, 50, 220), text="City:"),
        Node("text", "", (60, 200, 160, 220), text="Rome"),
    )
    questions = asked(captured({"app": [nodes]}))
    assert questions['Switch the option "Wrap text" off.'] == "Wrap text"
    assert questions['Switch the option "Show numbers" on.'] == "Show numbers"
    assert not any("Twice" in question for question in questions if "directly" not in question)
    assert questions["Click what you use to take back the last change."] == "Undo"
    assert 'Enter a text for "City".' in questions
    assert 'Click the text field that contains "Rome".' in questions
    assert questions["Click the check box that is ticked."] == "Wrap text"
    assert "Click the check box that is not ticked." not in questions  # three are
    assert "Click the only text field on the screen." in questions


@pytest.mark.parametrize("role", ["menu", "menu-item", "link", "list-item"])
def test_a_function_is_not_asked_where_another_kind_has_its_name(role: str) -> None:
    """A dialog with a button Help lies over a window whose other control Help can be seen."""
    question = "Click what you use to get assistance with the program."
    dialog = window(button("Help", 210, 210), name="Preferences", box=(200, 100, 400, 300))
    alone = captured({"app": [window(Node(role, "Edit", (10, 0, 60, 25))), dialog]})
    assert asked(alone)[question] == "Help"
    assert question not in asked(captured({"app": [window(Node(role, "Help", (10, 0, 60, 25))), dialog]}))


def test_neighbours_and_order_are_asked_where_they_are_plain() -> None:
    row = [button(name, 10 + 80 * number, 10) for number, name in enumerate(("One", "Two", "Three", "Four"))]
    questions = asked(captured({"app": [window(*row)]}))
    assert questions['Click the button directly to the right of the button "Two".'] == "Three"
    assert questions['Click the button directly to the left of the button "Two".'] == "One"
    assert questions["Click the third button from the left."] == "Three"
    assert questions["Click the last button of the row."] == "Four"
    assert not any("above" in question or "below" in question for question in questions)
    more = asked(captured({"app": [window(*row, button("Five", 10, 60))]}))
    assert more['Click the button directly below the button "One".'] == "Five"
    assert not any("from the left" in question for question in more)  # not one row any more


def test_ties_have_no_neighbour() -> None:
    anchor = (100.0, 100.0, 200.0, 120.0)
    near, tied, far = (100.0, 130.0, 150.0, 150.0), (150.0, 132.0, 200.0, 150.0), (100.0, 160.0, 200.0, 180.0)
    assert neighbour("below", anchor, [anchor, far, near]) == 2
    assert neighbour("below", anchor, [near, tied, far]) is None
    assert neighbour("above", far, [anchor, near]) == 1
    assert neighbour("right", anchor, [(210.0, 119.0, 260.0, 139.0)]) is None  # not aligned
    assert neighbour("right", anchor, [(500.0, 100.0, 560.0, 120.0)]) is None  # too far away
    assert line_of([near, far, anchor]) is None
    assert line_of([(0, 0, 9, 9), (0, 20, 9, 29), (0, 10, 9, 19)]) == ("column", [0, 2, 1])


def test_colours_are_named_where_one_element_has_them() -> None:
    red, blue = (200, 30, 30), (30, 60, 220)
    nodes = [button("Stop", 10, 10, colour=red), button("Go", 100, 10, colour=blue), button("Wait", 200, 10)]
    screen = captured({"app": [window(*nodes)]})
    assert asked(screen)["Click the red button."] == "Stop"
    assert asked(screen)["Click the blue button."] == "Go"
    assert colour_shares(screen.pixels, (11, 11, 69, 33)) == pytest.approx(
        {"red": 1.0} | dict.fromkeys(("orange", "yellow", "green", "turquoise", "blue", "purple", "pink"), 0.0)
    )
    twice = captured({"app": [window(*nodes, button("Halt", 10, 60, colour=red))]})
    assert "Click the red button." not in asked(twice)
    assert "Click the blue button." in asked(twice)


def random_screen(seed: int) -> CapturedScreen:
    """Windows of two applications with controls of few names at random places."""
    random = Random(seed)
    roles = ("push-button", "check-box", "text", "menu-item", "label", "page-tab")

    def control() -> Node:
        left, top = random.randrange(0, 380), random.randrange(0, 280)
        states = USUAL if random.random() < 0.8 else ("sensitive",)
        more = tuple(state for state in ("checked", "selected") if random.random() < 0.3)
        box = (left, top, left + random.randrange(4, 90), top + random.randrange(4, 30))
        return Node(random.choice(roles), random.choice("ABCDE"), box, states=states, more=more)

    mine = window(*(control() for _ in range(12)), box=(0, 0, 260, 300))
    theirs = window(*(control() for _ in range(6)), box=(180, 0, 400, 300))
    return captured({"mine": [mine], "theirs": [theirs]}, own="mine", state=f"s{seed}")


@pytest.mark.parametrize("seed", range(30))
def test_no_question_of_a_random_screen_is_ambiguous(seed: int) -> None:
    """Names are counted again, over everything of which a pixel is in its window and on the screen."""
    screen = random_screen(seed)
    states = visibilities(screen)
    for query in find_queries(screen):
        answer = query.element
        assert states[answer.index] is Visibility.WHOLE
        assert answer.application == "mine"
        assert answer.box is not None
        assert answer.box[2] <= 180 or answer.box[0] < 180  # the other window lies over the right part
        assert answer.box[2] <= 180
        if query.kind == "name":
            rivals = [
                element
                for element, state in zip(screen.elements, states, strict=True)
                if element.role == answer.role and element.name == answer.name and state is not Visibility.HIDDEN
            ]
            assert rivals == [answer]


def screens(applications: Sequence[str] = ("a", "b", "c", "d", "e"), states: int = 5) -> list[CapturedScreen]:
    """Applications with a row of buttons that all screens show, and buttons of one screen each."""
    found = []
    for application in applications:
        for state in range(states):
            shared = [button(f"{application}{n}", 10 + 80 * n, 10) for n in range(4)]
            single = [button(f"{application} {state} {n}", 10 + 80 * n, 100, 70) for n in range(4)]
            nodes = {application: [window(*shared, *single)]}
            found.append(captured(nodes, application=application, state=f"state {state}"))
    return found


def test_an_application_that_waits_in_the_background_is_not_shown() -> None:
    """A file manager that waits for its first window is in the tree of the fresh desktop, and its window made it no new application."""
    before = read_elements(tree({"panel": [window()], "files": []}))
    after = read_elements(tree({"panel": [window()], "files": [window(button("Open", 10, 10))]}))
    assert {element.application for element in before} == {"panel", "files"}
    assert applications_shown(before) == {"panel"}
    assert applications_shown(after) - applications_shown(before) == {"files"}


class ToldLater:
    """A fake desktop whose accessibility tree cannot be read at first, then lacks an application for some looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.steps = looks, 0

    async def tree(self, _lease: object) -> Any:
        if self.steps == 0:
            raise ScreenUnstable("not yet")
        shown = {"files": [window()]} if self.steps >= self.looks else {"files": []}
        return read_elements(tree({"panel": [window()], **shown}))

    async def step(self, _events: object, _settle: object) -> None:
        self.steps += 1


@pytest.mark.parametrize(("looks", "told"), [(1, True), (walk.TELL_ATTEMPTS - 1, True), (walk.TELL_ATTEMPTS, False)])
async def test_an_application_may_be_told_later_than_its_window(
    looks: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desktop = ToldLater(looks)
    monkeypatch.setattr(walk, "read_tree", desktop.tree)
    waiting = walk._wait_told(desktop, "files", frozenset({"panel"}))  # type: ignore[arg-type]
    if told:
        await waiting
        assert desktop.steps == looks
    else:
        with pytest.raises(ApplicationMissing, match="files tells nothing"):
            await waiting


def test_a_benchmark_depends_on_its_seed_alone() -> None:
    first, again, other = (make_benchmark(screens(), seed, per_screen=8) for seed in (3, 3, 4))
    assert [one.samples for one in first] == [one.samples for one in again]
    assert [one.samples for one in first] != [one.samples for one in other]


def test_splits_are_by_screen_and_whole_applications_are_novel() -> None:
    benchmark = make_benchmark(screens(), 0, per_screen=8)
    by_screen = {one.screen.screen_id: {sample.group for sample in one.samples} for one in benchmark}
    assert all(len(splits) == 1 for splits in by_screen.values())
    novel = {one.screen.application for one in benchmark if one.split == NOVEL}
    assert novel == choose_novel(("a", "b", "c", "d", "e"), 0)
    assert len(novel) == 1
    for one in benchmark:
        assert (one.split == NOVEL) is (one.screen.application in novel)
    for application in {"a", "b", "c", "d", "e"} - novel:
        splits = [one.split for one in benchmark if one.screen.application == application]
        assert sorted(splits) in (["test", "train", "train", "train", "train"], ["test", *["train"] * 3, "validation"])


def test_no_question_about_a_place_is_asked_twice_in_an_application() -> None:
    benchmark = make_benchmark(screens(), 0, per_screen=12)
    samples = [sample for one in benchmark for sample in one.samples]
    places = [(sample.application, sample.instruction, sample.targets) for sample in samples]
    assert len(set(places)) == len(places)
    for one in benchmark:
        assert len(one.samples) <= 12
        boxes = [sample.targets[0] for sample in one.samples]
        assert max(boxes.count(box) for box in boxes) <= PER_TARGET
        assert {sample.kind for sample in one.samples} >= {"name", "positional"}


def test_samples_are_complete_and_distractors_are_elsewhere() -> None:
    benchmark = make_benchmark(screens(), 0, per_screen=8)
    for one in benchmark:
        for sample in one.samples:
            (target,) = sample.targets
            assert sample.image_wh == (400, 300)
            assert (sample.role, sample.screen_id) == ("push-button", one.screen.screen_id)
            assert len(sample.distractors) == 7
            assert target.boxes[0] not in [box for _, box in sample.distractors]
            assert sample.element_type in ("text", "icon")


def test_a_written_benchmark_is_a_data_set_with_a_file_per_split(tmp_path: Path) -> None:
    benchmark = make_benchmark(screens(), 0, per_screen=8)
    manifest = write_benchmark(tmp_path, benchmark, {"seed": 0})
    dataset = read_dataset(tmp_path, ReadableFormat.AUTO, tmp_path)
    assert len(dataset.samples) == manifest["samples"] == sum(manifest["by_split"].values())
    by_file = {
        split: list(read_samples(tmp_path / f"{split}.jsonl")) for split in ("train", "validation", "test", NOVEL)
    }
    assert {split: len(found) for split, found in by_file.items() if found} == manifest["by_split"]
    assert {sample.application for sample in by_file[NOVEL]} == set(manifest["novel"])
    for sample in dataset.samples[::7]:
        pixels = read_image(tmp_path / sample.image, sample.image_wh)
        screen = next(one.screen for one in benchmark if one.screen.screen_id == sample.screen_id)
        assert np.array_equal(pixels, screen.pixels)
    assert json.loads((tmp_path / "manifest.json").read_text()) == manifest


def test_walks_open_menus_and_tabs_but_nothing_that_ends_the_program() -> None:
    items = [
        Node("menu-item", name, (10, 30 + 20 * n, 110, 50 + 20 * n))
        for n, name in enumerate(("Open...", "Save", "Delete all…", "Print…", "Quit"))
    ]
    bar = Node("menu-bar", "", (0, 0, 400, 25), [Node("menu", "File", (10, 0, 60, 25), items)])
    tabs = [
        Node("page-tab", "Look", (200, 40, 260, 60), more=("selected",)), Node("page-tab", "Keys", (260, 40, 320, 60))
    ]  # fmt: skip
    screen = captured({"app": [window(bar, *tabs)]}, popups=[(10, 28, 112, 134)])
    assert [(one.label, one.point) for one in find_openers(screen)] == [
        ("menu File", (35, 12.5)), ("tab Keys", (290, 50))
    ]  # fmt: skip
    assert [one.label for one in find_dialog_items(screen)] == ["dialog Open"]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ground", *map(str, arguments)])
    return result.exit_code, result.output


def test_generate_checks_what_was_asked_before_it_starts_a_farm(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, sentence in (
        (("full",), "is not empty: give a new folder"),
        (("new", "--image", "other"), "no applications of an image other are known: give --image basic or desktop"),
        (
            ("new", "--image", "basic", "--application", "gimp"),
            "the image basic has no application gimp: it has mousepad",
        ),
        (("new", "--resolution", "wide"), "--resolution is WIDTHxHEIGHT"),
    ):
        code, text = run("generate", tmp_path / arguments[0], *arguments[1:])
        assert code == 2, text
        assert sentence in text
    assert not (tmp_path / "new").exists()


class StubFarm:
    """A farm that gives desktops without anything on them, and counts them.

    Args:
        refused: Errors by number of the lease, from 1.
        broken: Errors of the first snapshot, by number of the lease.
    """

    def __init__(
        self, refused: Mapping[int, DartEnvError] | None = None, broken: Mapping[int, DartEnvError] | None = None
    ) -> None:
        self.leased = 0
        self.refused, self.broken = refused or {}, broken or {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def lease(self, _shape: object, *, wait_s: float) -> StubLease:
        self.leased += 1
        if self.leased in self.refused:
            raise self.refused[self.leased]
        return StubLease(self.broken.get(self.leased))

    async def delete_snapshot(self, _snapshot_id: str) -> None:
        raise FarmError("the farm is away", code="unreachable")


class StubLease:
    """A desktop of `StubFarm`."""

    image_digest = "sha256:1"

    def __init__(self, error: DartEnvError | None) -> None:
        self.error = error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def snapshot(self) -> SimpleNamespace:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(snapshot_id="snap_1")


def stub_walks(
    monkeypatch: pytest.MonkeyPatch, failing: dict[str, Exception], farm: StubFarm | None = None
) -> tuple[StubFarm, list[str]]:
    """Applications of the image `basic` show drawn screens, except those that fail; the names in the order of walking."""
    farm, names = farm or StubFarm(), []

    async def connect(_url: str | None) -> StubFarm:
        return farm

    async def walk(_farm: object, _lease: object, _base: object, one: Any, _states: int, _seed: int) -> list[Any]:
        names.append(one.name)
        if one.name in failing:
            raise failing[one.name]
        return screens((one.name,), 3)

    monkeypatch.setattr(recording.AsyncFarmClient, "connect", connect)
    monkeypatch.setattr(recording, "walk_application", walk)
    return farm, names


async def test_a_desktop_that_fails_costs_its_application_and_a_second_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: dict[str, Exception] = {
        "thunar": FarmError("the restore failed", code="snapshot_failed"),
        "galculator": ApplicationMissing("galculator opened no window"),
    }
    farm, names = stub_walks(monkeypatch, failing)
    plan = GroundPlan(image="basic", least=10_000)
    lines: list[str] = []
    with pytest.raises(AgentError, match="the same command walks galculator, thunar again"):
        await generate(plan, tmp_path, lines.append)
    assert names == ["mousepad", "thunar", "lxterminal", "galculator", "zenity"]
    assert farm.leased == 2, "a desktop that failed is given back, and another one is leased"
    assert "thunar is left out: the restore failed" in lines
    with pytest.raises(ConfigError, match="unfinished benchmark with other values of seed"):
        check_folder(tmp_path, replace(plan, seed=1))

    names.clear()
    failing.clear()
    failing["galculator"] = FarmError("the host failed", code="host_fault")
    manifest = await generate(replace(plan, least=10), tmp_path, lines.append)
    assert names == ["thunar", "galculator"]
    assert manifest["missing"] == {"galculator": "the host failed"}
    assert sorted(manifest["by_application"]) == ["lxterminal", "mousepad", "thunar", "zenity"]
    assert not await asyncio.to_thread((tmp_path / UNFINISHED).exists)
    fresh = await generate(replace(plan, least=10), tmp_path.with_name("fresh"), lines.append)
    assert fresh == manifest, "screens that were kept give the same questions as screens of one call"
    with pytest.raises(ConfigError, match="is not empty"):
        check_folder(tmp_path, plan)


BASIC = ["galculator", "lxterminal", "mousepad", "thunar", "zenity"]


async def test_a_desktop_whose_first_snapshot_fails_costs_no_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {number: FarmTimeoutError("the snapshot timed out") for number in (2, 3)}
    farm, names = stub_walks(monkeypatch, {}, StubFarm(broken=broken))
    lines: list[str] = []
    manifest = await generate(GroundPlan(image="basic", least=10, desktops=2), tmp_path, lines.append)
    assert sorted(names) == sorted(manifest["by_application"]) == BASIC
    assert manifest["missing"] == {}
    assert farm.leased == 4
    assert "a desktop failed, and another one is leased: the snapshot timed out" in lines


async def test_a_desktop_that_the_farm_has_no_room_for_leaves_the_applications_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = NoCapacityError("no desktop became free within 300 s", code="no_capacity")
    farm, names = stub_walks(monkeypatch, {}, StubFarm({2: full}))
    lines: list[str] = []
    await generate(GroundPlan(image="basic", least=10, desktops=2), tmp_path, lines.append)
    assert sorted(names) == BASIC
    assert farm.leased == 2, "its time to wait is over"
    assert "a desktop failed and is not replaced: no desktop became free within 300 s" in lines


async def test_a_farm_that_gives_no_desktop_any_more_ends_the_call_and_keeps_the_screens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {number: FarmError(f"refusal {number}", code="unreachable") for number in range(2, 9)}
    failing: dict[str, Exception] = {"thunar": FarmError("the restore failed", code="snapshot_failed")}
    farm, names = stub_walks(monkeypatch, failing, StubFarm(away))
    plan = GroundPlan(image="basic", least=10)
    with pytest.raises(FarmError, match=f"refusal {1 + recording.MOST_ATTEMPTS}"):
        await generate(plan, tmp_path, lambda _: None)
    assert names == ["mousepad", "thunar"]
    farm.refused = {}
    names.clear()
    failing.clear()
    assert (await generate(plan, tmp_path, lambda _: None))["missing"] == {}
    assert names == ["thunar", "lxterminal", "galculator", "zenity"]


def test_show_draws_targets_on_pictures_and_a_sheet(tmp_path: Path) -> None:
    write_benchmark(tmp_path / "data", make_benchmark(screens(), 0, per_screen=8), {})
    code, text = run("show", tmp_path / "data" / "train.jsonl", tmp_path / "out", "--count", 5)
    assert code == 0, text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"000{n}.png" for n in range(5)] + [
        "sheet.png"
    ]
    first = next(iter(read_samples(tmp_path / "data" / "train.jsonl")))
    left, top = (round(value) for value in first.targets[0].boxes[0][:2])
    assert tuple(read_image(tmp_path / "out" / "0000.png")[18 + top, left]) == (0, 150, 50)
    assert run("show", tmp_path / "data", tmp_path / "out")[0] == 2
