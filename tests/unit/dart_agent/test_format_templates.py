"""Prompts of action formats through chat templates, from each of the three files that published checkpoints keep them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_checkpoints import KINDS, write_checkpoint

from dart_agent.inference.compat import register_legacy_processors
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.chat_template import chat_template, render_chat
from dart_envs.action_formats import FORMATS
from dart_envs.action_formats.qwen import Qwen3VlFormat, Qwen25VlFormat
from dart_envs.action_formats.uitars_prompts import DART_GUI_PROMPT, SYSTEM
from dart_envs.types import Observation

transformers = pytest.importorskip("transformers")

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
FILES = ("chat_template.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("published")
    return {kind: write_checkpoint(kind, place / kind) for kind in KINDS}


def processor_of(directory: Path) -> Any:
    register_legacy_processors()
    return transformers.AutoProcessor.from_pretrained(directory)


def keep_template_in(directory: Path, name: str, template: str) -> None:
    """The template in one file, and in no other."""
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    for file in ("chat_template.json", "chat_template.jinja"):
        (directory / file).unlink(missing_ok=True)
    if name == "tokenizer_config.json":
        settings["chat_template"] = template
    elif name == "chat_template.json":
        (directory / name).write_text(json.dumps({"chat_template": template}))
    else:
        (directory / name).write_text(template)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def rendered(processor: Any, name: str, answers: list[str]) -> str:
    """The prompt after these answers, as text."""
    builder = PromptBuilder(preset(name))
    history, screen = builder.new_history(), Observation(np.zeros((720, 1280, 3), np.uint8), "Open it")
    for answer in answers:
        history.add(builder.build(screen, history).images[-1], answer)
    return render_chat(processor, builder.build(screen, history).messages)


@pytest.mark.parametrize("file", FILES)
def test_dart_guis_prompt_is_the_published_conversation(checkpoints: dict[str, Path], file: str) -> None:
    directory = checkpoints["qwen2_5_vl"]
    keep_template_in(directory, file, chat_template(processor_of(directory)))
    prompt = DART_GUI_PROMPT.replace("{language}", "English").replace("{instruction}", "Open it")
    text = rendered(processor_of(directory), "dart-gui", ["Thought: t\nAction: click(start_box='(1,2)')"])
    assert text == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{prompt}{PICTURE}<|im_end|>\n<|im_start|>assistant\n"
        f"Thought: t\nAction: click(start_box='<|box_start|>(1,2)<|box_end|>')<|im_end|>\n<|im_start|>user\n{PICTURE}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("file", FILES)
def test_qwen3_vls_prompt_is_the_published_conversation(checkpoints: dict[str, Path], file: str) -> None:
    directory = checkpoints["qwen3_vl"]
    keep_template_in(directory, file, chat_template(processor_of(directory)))
    asked = "\nPlease generate the next move according to the UI screenshot, instruction and previous actions.\n\n"
    text = rendered(processor_of(directory), "qwen3-vl", ["Action: Wait."])
    assert text == (
        f"<|im_start|>system\n{Qwen3VlFormat().system((1, 1))}<|im_end|>\n<|im_start|>user\n{PICTURE}{asked}Instruction: Open it\n\n"
        f"Previous actions:\nNone<|im_end|>\n<|im_start|>assistant\nAction: Wait.<|im_end|>\n<|im_start|>user\n{PICTURE}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_system_prompts_are_what_a_template_makes_of_the_tool(checkpoints: dict[str, Path]) -> None:
    """The tool is in our prompt, because not every published template prints tools; where one does, it prints the same."""
    tokenizer = processor_of(checkpoints["qwen3_vl"]).tokenizer
    template = chat_template(processor_of(checkpoints["qwen3_vl"]))
    user = {"role": "user", "content": [{"type": "text", "text": "Go"}]}

    def system(messages: list[Any], tool: Any) -> str:
        text: str = tokenizer.apply_chat_template(messages, tools=[tool], chat_template=template, tokenize=False)
        return text.partition("<|im_start|>system\n")[2].partition("<|im_end|>")[0]

    older, newer = Qwen25VlFormat(), Qwen3VlFormat()
    helpful = {"role": "system", "content": [{"type": "text", "text": SYSTEM}]}
    assert system([helpful, user], older.definition((1932, 1092))) == older.system((1932, 1092))
    assert newer.system((1, 1)).startswith(system([user], newer.definition((1, 1))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_place_holder_for_each_picture(checkpoints: dict[str, Path], name: str, kind: str) -> None:
    text = rendered(processor_of(checkpoints[kind]), name, ["one", "two", "three"])
    assert text.count(PICTURE) == min(4, preset(name).images)
    assert text.endswith("<|im_start|>assistant\n")
    assert "Open it" in text
