"""Views: sizes, forms, texts and marks of observations, always inside their space."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, RecordVideo, TimeLimit
from toy_task import ToyTask

from dart_envs.envs.env import DartOSWorldEnv
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.observations.views import (
    ObservationEncoder,
    ObservationSpec,
    a11y_to_table,
    clickable_elements,
    draw_marks,
    make_observation_spec,
)
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_envs.types import Observation
from dart_server.wire import A11yElement

SCREEN = (80, 64)
BUTTON = A11yElement(role="push-button", name="O\tK\n", x=10, y=10, w=40, h=30)
PANEL = A11yElement(role="panel", name="P", x=0, y=0, w=80, h=64)
SEEN = Observation(np.full((64, 80, 3), 200, dtype=np.uint8), "Do it.", (PANEL, BUTTON), "$ \0", "<desktop-frame/>")


@pytest.mark.parametrize(
    "choice",
    [
        ("screenshot",),
        ("screenshot", "a11y", "terminal"),
        ("screenshot", "a11y_xml"),
        ("screenshot", "a11y_table", "marks"),
        {"screenshot_wh": (20, 16), "color_mode": "gray", "instruction": False},
        ObservationSpec(screenshot_wh=(160, 128), a11y="json", marks=True),
    ],
)
def test_elements_are_inside_their_space_and_fresh(choice: Any) -> None:
    view = ObservationEncoder(make_observation_spec(choice), SCREEN)
    first, second = view.encode(SEEN), view.encode(SEEN)
    assert first in view.space
    assert set(first) == set(view.space.spaces)
    assert not np.shares_memory(first["screenshot"], second["screenshot"])
    assert not np.shares_memory(first["screenshot"], SEEN.screenshot)
    assert view.encode(Observation(SEEN.screenshot, "")) in view.space


def test_forms_of_the_tree() -> None:
    assert (
        ObservationEncoder(make_observation_spec(("screenshot", "a11y_xml")), SCREEN).encode(SEEN)["a11y"]
        == "<desktop-frame/>"
    )
    table = ObservationEncoder(make_observation_spec(("screenshot", "a11y_table")), SCREEN).encode(SEEN)["a11y"]
    assert table.splitlines()[0] == "role\tname\ttext\tx\ty\tw\th"
    assert table.splitlines()[2] == "push-button\tO K\t\t10\t10\t40\t30"


def test_marks_are_drawn_around_what_can_be_clicked() -> None:
    assert clickable_elements(SEEN.a11y or ()) == [BUTTON]
    marked = draw_marks(SEEN.screenshot, [BUTTON])
    assert (marked[10, 49] != SEEN.screenshot[10, 49]).any()
    assert (marked[39, 10:50] != SEEN.screenshot[39, 10:50]).any()
    assert (marked[45:, 60:] == SEEN.screenshot[45:, 60:]).all()
    assert a11y_to_table([BUTTON], numbered=True).splitlines()[1].startswith("1\tpush-button\tO K")
    outside = BUTTON.model_copy(update={"x": -30, "y": 60, "w": 500})
    assert draw_marks(SEEN.screenshot, [outside]).shape == SEEN.screenshot.shape


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (("a11y",), "must name screenshot"),
        (("screenshot", "smell"), "must name screenshot"),
        (("screenshot", "a11y", "a11y_xml"), "one of"),
        ({"size": 3}, "has no size"),
        ({"color_mode": "blue"}, "rgb or gray"),
        ({"a11y": "yaml"}, "json, xml, table"),
        ({"screenshot_wh": (0, 5)}, "at least one pixel"),
    ],
)
def test_refusals_come_before_a_desktop_is_taken(farm: FakeFarm, choice: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DartOSWorldEnv(ToyTask(), farm=farm, observation=choice)
    assert farm.leases == []


@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes.*")
@pytest.mark.parametrize(
    "choice", [("screenshot", "a11y_xml", "marks"), {"screenshot_wh": (20, 16), "color_mode": "gray"}]
)
def test_environments_hand_out_views(farm: FakeFarm, choice: Any) -> None:
    def put(lease: FakeLease) -> None:
        lease.state.elements = [BUTTON]

    farm.on_lease = put
    check_env(DartOSWorldEnv(ToyTask(max_steps=3), resolution=SCREEN, farm=farm, observation=choice))
    vector = DartVectorEnv(2, task=ToyTask(), resolution=SCREEN, farm=farm, observation=choice)
    observations, _ = vector.reset(seed=1)
    assert observations["screenshot"].shape[0] == 2
    vector.close()


def test_gymnasiums_wrappers_work(farm: FakeFarm) -> None:
    env = DartOSWorldEnv(
        ToyTask(), resolution=SCREEN, farm=farm, action_space="discrete-grid", observation={"instruction": False}
    )
    wrapped = FrameStackObservation(RecordEpisodeStatistics(TimeLimit(env, 2)), 3)
    observation, _ = wrapped.reset(seed=0)
    assert observation["screenshot"].shape == (3, 64, 80, 3)
    wrapped.step(0)
    *_, truncated, info = wrapped.step(0)
    assert truncated
    assert info["episode"]["l"] == 2
    wrapped.close()


def test_gymnasiums_video_recorder_gets_the_screens(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, tuple[int, ...], float]] = []

    class Clip:
        """Stands in for moviepy's, which turns frames into a file."""

        def __init__(self, frames: list[Any], fps: float) -> None:
            written.append((len(frames), frames[0].shape, fps))

        def write_videofile(self, path: str, **_options: Any) -> None:
            Path(path).write_bytes(b"video")

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["moviepy.video.io.ImageSequenceClip"].ImageSequenceClip = Clip  # type: ignore[attr-defined]
    env = DartOSWorldEnv(ToyTask(), resolution=SCREEN, farm=farm, render_mode="rgb_array", action_space="discrete-grid")
    recorded = RecordVideo(TimeLimit(env, 2), str(tmp_path / "videos"), episode_trigger=lambda _: True)
    recorded.reset(seed=0)
    recorded.step(0)
    recorded.step(0)
    recorded.close()
    assert written == [(3, (64, 80, 3), 2)]
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 1
