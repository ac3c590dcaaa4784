"""The screens of applications in the benchmark of grounding: which are for the training, and what is asked about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dart_agent.grounding.desktop_ground.kept_screens import KeptScreens
from dart_agent.grounding.desktop_ground.recording import RecordPlan
from dart_agent.grounding.desktop_ground.screen import CapturedScreen
from dart_agent.grounding.samples import GroundingSample, read_image, read_samples
from dart_envs.errors import UnsupportedCapabilityError
from tests.unit.dart_agent.drawn_screens import Node, button, captured, window

pytest.importorskip("torch")

from benchmarks.grounding.desktop_source import (
    HELD_OUT_SIZES_WH,
    IMAGE,
    SCALE,
    SEED,
    STATES,
    TRAIN,
    TRAINED_SIZES_WH,
    DesktopSource,
    choose_sets,
    move_picture,
    screen_samples,
)
from benchmarks.grounding.recorded_screens import DESKTOPS

APPLICATIONS = ("mousepad", "thunar", "lxterminal")
RED = (210, 40, 40)
KINDS = ("screens", "resolutions", "layouts")


STATES_OF = {"mousepad": 6, "thunar": 3, "lxterminal": 2}
"""States of each application; the last one of an application was not reached on desktops of the second size."""


def _screen(application: str, size: tuple[int, int], state: int) -> CapturedScreen:
    def plain(name: str, left: int, top: int, **more: object) -> Node:
        return button(name, left, top, 80, 30, **more)

    row = [plain(f"Always {application}", 100, 60, colour=RED), plain(f"State {state}", 200, 60), plain("Last", 8, 60)]
    aside = Node("window", "", (-1000, -1000, -995, -995))  # a window manager keeps one beside the screen
    nodes = {application: [window(*row, box=(0, 0, *size))], "manager": [aside]}
    return captured(nodes, wh=size, application=application, state=f"state {state}")


def _screens(size: tuple[int, int]) -> dict[str, list[CapturedScreen]]:
    lost = 1 if size == TRAINED_SIZES_WH[1] else 0
    return {name: [_screen(name, size, state) for state in range(count - lost)] for name, count in STATES_OF.items()}


SIZES = (*TRAINED_SIZES_WH, *HELD_OUT_SIZES_WH)


@pytest.fixture
def source(tmp_path: Path) -> DesktopSource:
    """Three applications whose screens are there: each has a red button that all states show, and one of the state."""
    for size in SIZES:
        kept = KeptScreens(tmp_path / "recorded" / f"{size[0]}x{size[1]}")
        kept.begin(RecordPlan(IMAGE, size, SEED, APPLICATIONS, STATES, DESKTOPS).screens())
        for application, screens in _screens(size).items():
            kept.add(application, "sha256:1", screens)
    return DesktopSource(tmp_path / "recorded", DesktopSource.smoke)


def test_a_state_is_tested_or_trained_at_all_sizes_and_an_application_is_novel() -> None:
    found = choose_sets({size: [one for each in _screens(size).values() for one in each] for size in SIZES})
    states = {name: {one["screen_id"] for one in found["screens"] if one["set"] == name} for name in (TRAIN, *KINDS)}
    assert not states[TRAIN] & states["screens"], "a state of a test screen is trained on at no size"
    (novel,) = found["novel"]
    known = {*APPLICATIONS} - {novel}
    assert {name.split("/")[0] for name in states["layouts"]} == {novel}
    for application in known:
        of_it = {name for name in states["screens"] if name.split("/")[0] == application}
        assert of_it, "every application with two states or more has one that is tested"
    assert all(name.split("/")[0] in known for kind in (TRAIN, "resolutions") for name in states[kind])
    assert {tuple(one["size"]) for one in found["screens"] if one["set"] == "resolutions"} == {*HELD_OUT_SIZES_WH}


def test_sets_stay_as_they_were_noted(source: DesktopSource, tmp_path: Path) -> None:
    told = source.told
    assert told["applications"] == sorted(APPLICATIONS)
    assert sum(told["screens"].values()) == len([one for found in source._sets.values() for one in found])
    KeptScreens(tmp_path / "recorded" / "640x384").add(
        "gedit", "sha256:1", [_screen("gedit", (640, 384), 0)]
    )  # an application that was missing is there now
    again = DesktopSource(tmp_path / "recorded", DesktopSource.smoke)
    assert again.told == told
    assert {name: len(found) for name, found in again._sets.items()} == {
        name: len(found) for name, found in source._sets.items()
    }


def test_too_few_applications_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    for size in SIZES:
        kept = KeptScreens(tmp_path / f"{size[0]}x{size[1]}")
        kept.begin(RecordPlan(IMAGE, size, SEED, APPLICATIONS, STATES, DESKTOPS).screens())
        for application in APPLICATIONS:
            kept.add(application, "sha256:1", [])
    with pytest.raises(UnsupportedCapabilityError, match="give no screen for layouts, resolutions, screens, train"):
        _ = DesktopSource(tmp_path, DesktopSource.smoke).told


def _red(sample: GroundingSample, file: Path) -> float:
    """Share of red pixels of the target, without its border."""
    left, top, right, bottom = (round(edge) for edge in sample.targets[0].bounds())
    inside = read_image(file.parent / sample.image, sample.image_wh)[top + 2 : bottom - 2, left + 2 : right - 2]
    return float((np.abs(inside.astype(int) - RED).max(axis=2) < 40).mean())


def test_questions_move_with_their_screen(source: DesktopSource, tmp_path: Path) -> None:
    file = source.write(tmp_path / "data", TRAIN, 12, "1")
    samples = [sample for sample in read_samples(file) if sample.kind == "name" and "Always" in sample.instruction]
    assert len({sample.image for sample in samples}) > 5
    assert len({sample.targets[0].bounds()[:2] for sample in samples}) > 3
    # The name is drawn on no button, so that a whole one is red all over.
    assert all(_red(sample, file) > 0.95 for sample in samples)
    test = source.write(tmp_path / "data", "screens", 100, "1")
    asked = [sample for sample in read_samples(test) if sample.kind == "name" and "Always" in sample.instruction]
    assert {sample.targets[0].bounds()[:2] for sample in asked} == {(100 * SCALE, 60 * SCALE)}
    assert len({sample.screen_id for sample in read_samples(test)}) == len(source._sets["screens"])


def test_all_screens_of_an_application_are_drawn_together(source: DesktopSource, tmp_path: Path) -> None:
    samples = list(read_samples(source.write(tmp_path / "data", "resolutions", 100, "1")))
    assert len({sample.sample_id for sample in samples}) == len(samples)
    drawn = {(sample.sample_id.rpartition("/")[0], sample.application) for sample in samples}
    assert drawn == {(f"resolutions/{application}", application) for _, application in drawn}
    assert len({sample.screen_id for sample in samples}) > len(drawn), "an application has several"


def test_frequent_words_of_the_training_are_tokens(source: DesktopSource) -> None:
    assert {"Always", "State"} <= {*source.words}


def test_a_moved_picture_keeps_what_is_still_on_it() -> None:
    picture = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    moved = move_picture(picture, (1, -2))
    assert (moved[:2, 1:] == picture[2:, :4]).all()
    assert (moved[2:] == picture.reshape(-1, 3).mean(axis=0).astype(np.uint8)).all()
    assert (move_picture(picture, (0, 0)) == picture).all()


def test_a_question_about_a_place_is_asked_only_where_all_elements_are_on_the_image(source: DesktopSource) -> None:
    asked = source._sets["screens"][0]
    wh = round(asked.screen.wh[0] * SCALE), round(asked.screen.wh[1] * SCALE)

    def kinds(shift: tuple[int, int]) -> set[str]:
        return {sample.kind for sample in screen_samples(asked, wh, shift, "a.png", "a")}

    assert "positional" in kinds((0, 0))
    assert "positional" in kinds((-4, 4))
    assert "positional" not in kinds((-26, 0)), "the leftmost button left the image: the next one is the first now"
