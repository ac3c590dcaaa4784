"""Prompts: sizes, history windows, and that messages and images agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dart_agent.prompts.builder import PRESETS, Message, PromptBuilder, action_line, preset, preset_names
from dart_envs.action_formats import ParsedAnswer
from dart_envs.observations.geometry import PointMap, model_size
from dart_envs.types import Action, ActionType, Observation


def screen(value: int, wh: tuple[int, int] = (640, 400)) -> Observation:
    return Observation(np.full((wh[1], wh[0], 3), value, np.uint8), "Click OK")


def parts(messages: Sequence[Message], kind: str) -> list[Any]:
    return [part for message in messages for part in message["content"] if part["type"] == kind]


def test_the_tiny_model_sees_a_640x400_screen_as_256x160() -> None:
    assert model_size((640, 400), multiple=32, max_pixels=256 * 160) == (256, 160)


@pytest.mark.parametrize("wh", [(640, 400), (1920, 1080), (1280, 1024), (3840, 2160), (50, 40)])
@pytest.mark.parametrize("name", preset_names())
def test_model_sizes_suit_the_image_processor(wh: tuple[int, int], name: Any) -> None:
    spec = preset(name)
    width, height = spec.picture_wh(wh)
    assert width % spec.multiple == 0
    assert height % spec.multiple == 0
    assert (spec.min_pixels or 0) <= width * height <= spec.max_pixels


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("images", [1, 3])
def test_messages_name_as_many_images_as_there_are(name: Any, images: int) -> None:
    builder = PromptBuilder(preset(name, images=images))
    history = builder.new_history()
    for step in range(5):
        prompt = builder.build(screen(step), history)
        assert len(parts(prompt.messages, "image")) == len(prompt.images) == min(images, step + 1)
        assert [int(image[0, 0, 0]) for image in prompt.images] == list(range(max(0, step - images + 1), step + 1))
        assert "Click OK" in " ".join(part["text"] for part in parts(prompt.messages, "text"))
        history.add(prompt.images[-1], f"Thought: t{step}\nAction: click(start_box='({step},0)')")


def test_uitars_alternates_pictures_and_answers_and_keeps_old_answers_as_text() -> None:
    builder = PromptBuilder(preset("uitars", images=2))
    history = builder.new_history()
    for step in range(3):
        history.add(builder.build(screen(step), history).images[-1], f"Action: wait() # {step}")
    messages = builder.build(screen(3), history).messages
    shape = [(message["role"], [part["type"] for part in message["content"]]) for message in messages]
    answer, picture = ("assistant", ["text"]), ("user", ["image"])
    assert shape == [("user", ["text"]), answer, answer, picture, answer, picture]


def test_the_tiny_prompt_puts_the_picture_first_and_repeats_the_last_action_only() -> None:
    builder = PromptBuilder(PRESETS["tiny"])
    history = builder.new_history()
    for text in ("Thought: a\nAction: wait()", "Thought: b\nAction: type(content='x')"):
        history.add(builder.build(screen(0), history).images[-1], text)
    (message,) = builder.build(screen(0), history).messages
    assert message["content"] == [{"type": "image"}, {"type": "text", "text": "Click OK\nAction: type(content='x')"}]


def test_points_of_the_prompt_belong_to_picture_and_screen() -> None:
    prompt = PromptBuilder(PRESETS["tiny"]).build(screen(0), PromptBuilder(PRESETS["tiny"]).new_history())
    assert prompt.points == PointMap((256, 160), (640, 400))


def test_a_format_is_a_preset_and_reads_its_own_answers() -> None:
    builder = PromptBuilder(preset("qwen3-vl", images=2))
    prompt = builder.build(screen(0), builder.new_history())
    assert prompt.points.coordinates == "thousandths"
    answer = '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click"}}\n</tool_call>'
    parsed = builder.spec.parse(answer, prompt.points, (7, 9))
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.action == Action(ActionType.CLICK, x=7, y=9)


def test_a_preset_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"no prompt 'qwen4'; there are tiny, qwen2, uitars, qwen, uitars-1\.5"):
        preset("qwen4")


def test_action_line() -> None:
    assert action_line("Thought: x\nAction: wait()\n") == "wait()"
    assert action_line("no action") == "no action"
