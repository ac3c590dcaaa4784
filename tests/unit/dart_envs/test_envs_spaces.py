"""Spaces: every sample can be performed, and no text is lost."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dart_envs.actions import to_input_events
from dart_envs.errors import ActionError
from dart_envs.observations.transforms import a11y_to_text, resize_image, scale_point
from dart_envs.observations.views import ObservationEncoder, make_observation_spec
from dart_envs.spaces import (
    ACTION_TYPES,
    KeyChord,
    UnicodeText,
    action_from_space,
    action_to_space,
    make_action_space,
)
from dart_envs.types import Action, ActionType, Observation
from dart_server.wire import A11yElement

SCREEN = (640, 400)


def test_every_sample_is_inside_and_can_be_performed() -> None:
    space = make_action_space(SCREEN)
    space.seed(0)
    seen = set()
    for _ in range(500):
        sample = space.sample()
        assert sample in space
        action = action_from_space(sample, SCREEN)
        to_input_events(action, SCREEN)
        seen.add(action.type)
    assert seen == set(ActionType)


def test_sampling_follows_the_seed() -> None:
    first, second = make_action_space(SCREEN), make_action_space(SCREEN)
    first.seed(11)
    second.seed(11)
    assert [first.sample() for _ in range(20)] == [second.sample() for _ in range(20)]


@pytest.mark.parametrize("text", ["", "hello", "žluť\n\t", "漢字", "🐎" * 4096, "‏עברית"])
def test_unicode_text_holds(text: str) -> None:
    assert text in UnicodeText(4096)


@pytest.mark.parametrize("other", ["a\0b", "\ud800", "a" * 4097, 7, None, b"a"])
def test_unicode_text_refuses(other: object) -> None:
    assert other not in UnicodeText(4096)


def test_text_spaces_survive_pickling_copying_and_comparison() -> None:
    for space in (UnicodeText(9), KeyChord()):
        assert pickle.loads(pickle.dumps(space)) == space
        assert copy.deepcopy(space) == space
        assert len({space, copy.deepcopy(space)}) == 1
        with pytest.raises(ValueError, match="mask"):
            space.sample(mask=np.ones(1))
    assert UnicodeText(9) != UnicodeText(10)
    with pytest.raises(ValueError, match="at least 1"):
        UnicodeText(0)


@pytest.mark.parametrize(
    "action",
    [
        Action(ActionType.CLICK, x=3, y=4),
        Action(ActionType.DRAG, x=3, y=4, x2=5, y2=6),
        Action(ActionType.SCROLL, x=3, y=4, dx=-1, dy=9),
        Action(ActionType.TYPE, text="é🐎"),
        Action(ActionType.KEY, keys=("ctrl", "+")),
        Action(ActionType.WAIT),
        Action(ActionType.DONE),
    ],
    ids=lambda action: action.type.value,
)
def test_to_the_space_and_back(action: Action) -> None:
    element = action_to_space(action)
    assert element in make_action_space(SCREEN)
    assert action_from_space(element, SCREEN) == action
    as_arrays = {name: np.asarray(value) if isinstance(value, np.int64) else value for name, value in element.items()}
    assert action_from_space(as_arrays, SCREEN) == action


def test_actions_and_their_json_form_are_taken_too() -> None:
    click = Action(ActionType.CLICK, x=3, y=4)
    assert action_from_space(click, SCREEN) == click
    assert action_from_space({"type": "click", "x": 3, "y": 4}, SCREEN) == click


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (7, "not int"),
        ({}, "index from 0 to 12"),
        ({"type": 99}, "index from 0 to 12"),
        ({"type": True}, "index from 0 to 12"),
        ({"type": ACTION_TYPES.index(ActionType.CLICK), "x": 640, "y": 0}, "between 0 and 639"),
        ({"type": ACTION_TYPES.index(ActionType.CLICK), "x": 4}, "needs y"),
        ({"type": ACTION_TYPES.index(ActionType.KEY), "key": "ctrl+"}, "not a chord"),
        ({"type": ACTION_TYPES.index(ActionType.KEY), "key": "ctrl+alt+shift+win+f1+a"}, "1 to 5"),
        (Action(ActionType.CLICK, x=-1, y=0), "between 0 and 639"),
    ],
)
def test_what_is_no_action_is_refused_with_a_sentence(value: object, sentence: str) -> None:
    with pytest.raises(ActionError, match=sentence):
        action_from_space(value, SCREEN)


def test_observations_are_inside_their_space_and_fresh() -> None:
    tree = (A11yElement(role="entry", name="naïve \ud800", x=1, y=2, w=3, h=4),)
    screenshot = np.zeros((400, 640, 3), dtype=np.uint8)
    observation = Observation(screenshot, "Do it.", tree, "prompt$ \0")
    view = ObservationEncoder(make_observation_spec(("screenshot", "a11y", "terminal")), SCREEN)
    space, element = view.space, view.encode(observation)
    assert element in space
    assert not np.shares_memory(element["screenshot"], screenshot)
    assert space.sample() in space
    plain = ObservationEncoder(make_observation_spec(("screenshot",)), SCREEN).space
    assert set(plain.spaces) == {"screenshot", "instruction"}


def test_the_tree_as_text_is_one_object_per_line() -> None:
    tree = [A11yElement(role="entry", name="ž", x=1, y=2, w=3, h=4), A11yElement(role="b", name="", x=0, y=0, w=0, h=0)]
    assert [json.loads(line)["role"] for line in a11y_to_text(tree).splitlines()] == ["entry", "b"]


@pytest.mark.parametrize(("space", "texts"), [(UnicodeText(9), ("naïve 漢🙂", "")), (KeyChord(), ("ctrl+é", "enter"))])
def test_gymnasiums_shared_memory_holds_texts_unchanged(space: Any, texts: tuple[str, str]) -> None:
    memory = gym.vector.utils.create_shared_memory(space, n=2)
    for index, text in enumerate(texts):
        gym.vector.utils.write_to_shared_memory(space, index, "x" * 9, memory)
        gym.vector.utils.write_to_shared_memory(space, index, text, memory)
    read = gym.vector.utils.read_from_shared_memory(space, memory, n=2)
    assert copy.deepcopy(read) == texts


def test_gymnasium_batches_and_flattens_texts() -> None:
    space = gym.spaces.Dict({"number": gym.spaces.Discrete(3), "text": UnicodeText(9)})
    items = [{"number": 1, "text": "漢"}, {"number": 2, "text": ""}]
    empty = gym.vector.utils.create_empty_array(space, n=2)
    batch = gym.vector.utils.concatenate(space, items, empty)
    assert batch["text"] == ("漢", "")
    assert batch in gym.vector.utils.batch_space(space, 2)
    assert [item["text"] for item in gym.vector.utils.iterate(gym.vector.utils.batch_space(space, 2), batch)] == [
        "漢",
        "",
    ]
    flat = gym.spaces.flatten(space, items[0])
    assert flat in gym.spaces.flatten_space(space)
    assert gym.spaces.unflatten(space, flat) == items[0]
    with pytest.raises(ValueError, match="leave the texts out"):
        gym.spaces.flatdim(UnicodeText(9))


def test_images_are_resized_and_points_follow() -> None:
    image = np.zeros((400, 640, 3), dtype=np.uint8)
    image[:, 320:] = 255
    small = resize_image(image, (64, 40))
    assert small.shape == (40, 64, 3)
    assert small[0, 0, 0] == 0
    assert small[0, 63, 0] == 255
    assert not np.shares_memory(resize_image(image, SCREEN), image)
    assert scale_point((320, 0), SCREEN, (64, 40)) == (32, 0)
