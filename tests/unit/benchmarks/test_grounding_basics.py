"""The screens of `basics` in the benchmark of grounding: which tasks are shown, and what is asked about their screens."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grounding import bench_grounding
from dart_agent.grounding.samples import read_image, read_samples
from dart_envs.errors import UnsupportedCapabilityError
from dart_envs.observations.annotated_screens import write_annotated_screen
from dart_envs.tasks import load, load_suite
from dart_server.wire import A11yElement

pytest.importorskip("torch")

from benchmarks.grounding.basics_source import (
    HELD_OUT_FAMILIES,
    HELD_OUT_FONT_SIZES,
    HELD_OUT_SIZES_WH,
    SCALE,
    SETS,
    TRAIN,
    TRAINED_FAMILIES,
    TRAINED_FONT_SIZES,
    TRAINED_SIZES_WH,
    BasicsSource,
)

GREY, RED = 200, (210, 40, 40)


def _element(role: str, name: str, x: int, y: int, w: int, h: int) -> A11yElement:
    return A11yElement(role=role, name=name, x=x, y=y, w=w, h=h)


ELEMENTS = (
    _element("dialog", "Question", 100, 60, 300, 150),
    _element("push button", "Moon", 110, 150, 110, 36),
    _element("push button", "Tiger", 230, 150, 110, 36),
    _element("push button", "Tiny", 350, 150, 18, 18),
)


def _recorded(folder: Path, name: str, count: int) -> None:
    """Screens as a recording leaves them: one red button at a place that the windows have."""
    for one in SETS[name].shown(folder / name, count):
        one.folder.mkdir(parents=True)
        width, height = one.shape.resolution
        for number, task_id in enumerate(one.task_ids):
            screen = np.full((height, width, 3), GREY, dtype=np.uint8)
            screen[60:210, 100:400] = 250
            screen[150:186, 110:220] = RED
            screen[0, number] = 0  # every screen is another one
            write_annotated_screen(
                one.folder, screen, task_id=task_id, instruction="", step=0, elements=ELEMENTS, action=None
            )


def test_sets_share_no_task_and_no_family_with_what_they_hold_out(tmp_path: Path) -> None:
    setting = BasicsSource.full
    counts = {name: setting.recorded_screens if name == TRAIN else setting.held_out_screens for name in SETS}
    shown = {name: which.shown(tmp_path / name, counts[name]) for name, which in SETS.items()}
    tasks = {name: [task for one in found for task in one.task_ids] for name, found in shown.items()}
    for name, found in tasks.items():
        assert len(found) == len({*found}) == counts[name]
        assert {*found} <= {*load_suite("basics").tasks(SETS[name].split)}
    assert {task.split("/")[1] for task in tasks["layouts"]} == {*HELD_OUT_FAMILIES}
    assert all({task.split("/")[1] for task in tasks[name]} == {*TRAINED_FAMILIES} for name in (TRAIN, "screens"))
    assert not {*tasks[TRAIN]} & {*tasks["screens"], *tasks["resolutions"], *tasks["layouts"]}
    assert not {*HELD_OUT_FAMILIES} & {*TRAINED_FAMILIES}
    for one in (one for found in shown.values() for one in found):
        for task_id in one.task_ids[:3]:
            load(task_id).check_runnable(one.shape.resolution)
    sizes = {name: {one.shape.resolution for one in found} for name, found in shown.items()}
    assert sizes[TRAIN] == sizes["screens"] == sizes["layouts"] == {*TRAINED_SIZES_WH}
    assert sizes["resolutions"] == {*HELD_OUT_SIZES_WH}
    fonts = {name: {one.shape.font_size for one in found} for name, found in shown.items()}
    assert fonts[TRAIN] == fonts["screens"] == fonts["resolutions"] == {*TRAINED_FONT_SIZES}
    assert fonts["layouts"] == {*HELD_OUT_FONT_SIZES}
    assert not {*TRAINED_FONT_SIZES} & {*HELD_OUT_FONT_SIZES}
    for axis in (0, 1):
        assert max(size[axis] for size in HELD_OUT_SIZES_WH) <= max(size[axis] for size in TRAINED_SIZES_WH)


def test_elements_are_asked_for_by_place_and_moved_with_their_windows(tmp_path: Path) -> None:
    setting = BasicsSource.smoke
    _recorded(tmp_path / "recorded", TRAIN, setting.recorded_screens)
    source = BasicsSource(tmp_path / "recorded", setting)
    file = source.write(tmp_path / "data", TRAIN, setting.screens, "1")
    samples = list(read_samples(file))
    assert {sample.instruction for sample in samples} == {"click first button", "click second button"}
    assert len({sample.screen_id for sample in samples}) == setting.screens
    places = set()
    for sample in samples:
        picture = read_image(file.parent / sample.image, sample.image_wh)
        left, top, right, bottom = sample.targets[0].bounds()
        assert (round(110 * SCALE), round(36 * SCALE)) == pytest.approx((right - left, bottom - top), abs=1)
        inside = picture[round(top) + 2 : round(bottom) - 2, round(left) + 2 : round(right) - 2]
        is_red = np.abs(inside.astype(int) - RED).max(axis=2) < 30
        assert is_red.mean() == (1.0 if sample.instruction == "click first button" else 0.0)
        places.add((left, top))
    assert len(places) > setting.screens  # the windows of each image are elsewhere
    again = source.write(tmp_path / "again", TRAIN, setting.screens, "1")
    assert again.read_bytes() == file.read_bytes()


def test_test_screens_are_as_they_were_recorded(tmp_path: Path) -> None:
    setting = BasicsSource.smoke
    _recorded(tmp_path / "recorded", "layouts", setting.held_out_screens)
    source = BasicsSource(tmp_path / "recorded", setting)
    samples = list(read_samples(source.write(tmp_path / "data", "layouts", setting.held_out_screens, "1")))
    assert {sample.targets[0].bounds()[:2] for sample in samples} == {
        (110 * SCALE, 150 * SCALE),
        (230 * SCALE, 150 * SCALE),
    }
    assert {sample.group for sample in samples} <= {*HELD_OUT_FAMILIES}
    assert all(sample.sample_id.startswith("layouts/") for sample in samples)
    other_seed = list(read_samples(source.write(tmp_path / "other", "layouts", setting.held_out_screens, "2")))
    assert other_seed == samples


def test_an_adaptation_on_screens_of_basics_is_refused(tmp_path: Path) -> None:
    arguments = argparse.ArgumentParser()
    bench_grounding.add_arguments(arguments)
    asked = arguments.parse_args(["--screens", "basics", "--only", "adaptation", "--work", str(tmp_path / "work")])
    with pytest.raises(UnsupportedCapabilityError, match="leave --screens basics out"):
        bench_grounding.measure(asked)
    assert not (tmp_path / "work").exists()
