"""The made-here tokenizer: any text survives, what the policy writes often is short."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_train.model.tokenizer import SPECIAL_TOKENS, build_tokenizer

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(["Olive", "OK", "Press"])


def test_an_answer_is_one_token_per_piece(tokenizer: Any) -> None:
    ids = tokenizer("Thought: Olive\nAction: click(start_box='(128,64)')<|im_end|>").input_ids
    assert [tokenizer.decode([token]) for token in ids] == [
        "Thought:",
        " Olive",
        "\nAction: click(start_box='(",
        "128",
        ",",
        "64",
        ")')",
        "<|im_end|>",
    ]


def test_a_word_inside_another_word_is_not_a_word(tokenizer: Any) -> None:
    assert tokenizer.convert_tokens_to_ids("OK") not in tokenizer("OKRA").input_ids


def test_special_tokens_are_single(tokenizer: Any) -> None:
    assert [len(tokenizer(token).input_ids) for token in SPECIAL_TOKENS] == [1] * len(SPECIAL_TOKENS)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_any_text_decodes_to_itself(text: str) -> None:
    tokenizer = build_tokenizer(["Olive"])
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids, skip_special_tokens=False) == text


def test_chat_template_puts_the_image_first_and_ends_turns(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Press OK"}]},
        {"role": "assistant", "content": "Thought: OK"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Press OK<|im_end|>\n"
        "<|im_start|>assistant\nThought: OK<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chat_template_renders_tools_calls_and_their_results(tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "click", "description": "Click.", "parameters": {}}}
    call = {"type": "function", "function": {"name": "click", "arguments": {"x": 3}}}
    messages = [
        {"role": "system", "content": "You use a desktop."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Press OK"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "name": "click", "content": "done"},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[tool], tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nYou use a desktop.\n\n# Tools")
    assert text.count("<|im_start|>system") == 1
    assert json.loads(text.partition("<tools>\n")[2].partition("\n</tools>")[0]) == tool
    assert text.endswith(
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Press OK<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "click", "arguments": {"x": 3}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
