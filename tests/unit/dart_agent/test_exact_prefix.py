"""A prompt continues the ids of the turns before it exactly, whatever the tokeniser would make of their text."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from dart_agent.prompts.exact_prefix import Message, collapse_images, prompt_ids, text_behind_answer

START, END, IMAGE = 1, 2, 3
SPECIAL = {"<start>": START, "<end>": END, "<image>": IMAGE}


def render(messages: Sequence[Message]) -> str:
    """A template like those of Qwen; it strips the answers, as theirs do with thoughts."""
    text = ""
    for message in messages:
        content = "".join("<image>" if part["type"] == "image" else part["text"] for part in message["content"])
        text += f"<start>{message['role']}\n{content.strip()}<end>\n"
    return text + "<start>assistant\n"


def tokenize(text: str) -> list[int]:
    """Special tokens, else pairs of characters: an answer that was sampled in single characters is not what this makes of its text."""
    ids: list[int] = []
    for piece in re.split(r"(<start>|<end>|<image>)", text):
        if piece in SPECIAL:
            ids.append(SPECIAL[piece])
        else:
            ids += [1000 + zlib.crc32(piece[at : at + 2].encode()) for at in range(0, len(piece), 2)]
    return ids


def spelled(text: str) -> list[int]:
    return [10 + ord(letter) for letter in text]


def user(text: str, images: int = 1) -> dict[str, Any]:
    return {"role": "user", "content": [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def make(messages: Sequence[Message], prefix: Sequence[int], covered: int) -> list[int]:
    return prompt_ids(messages, prefix, covered, render=render, tokenize=tokenize, image_token_id=IMAGE)


def expand(ids: Sequence[int], pads: int) -> list[int]:
    return [token for one in ids for token in ([one] * pads if one == IMAGE else [one])]


def test_ten_turns_keep_every_sampled_id() -> None:
    draw = random.Random(0)
    messages: list[dict[str, Any]] = [user("the task")]
    prefix: list[int] = []
    covered = 0
    for turn in range(10):
        prompt = expand(make(messages, prefix, covered), pads=4)
        assert prompt[: len(prefix)] == prefix
        assert prompt.count(START) == 2 * turn + 2
        assert prompt.count(END) == 2 * turn + 1
        said = f" answer {turn} "
        sampled = spelled(said) + ([END] if draw.random() < 0.5 else [])
        prefix = prompt + sampled
        messages += [answer(said), user("")]
        covered = len(messages) - 1


def test_without_a_prefix_everything_is_tokenised() -> None:
    messages = [user("the task")]
    assert make(messages, [], 0) == tokenize(render(messages))


def test_an_answer_cut_by_its_length_gets_its_end_of_turn_once() -> None:
    messages = [user("the task"), answer("hm"), user("next")]
    first = make(messages[:1], [], 0)
    ended, cut = (make(messages, first + spelled("hm") + tail, 2) for tail in ([END], []))
    assert ended == cut


def test_a_template_that_hides_the_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="shows answer 1 0 times"):
        text_behind_answer([user("a"), answer("b")], 1, lambda messages: "nothing")


def test_images_are_collapsed_one_by_one() -> None:
    ids = [START, IMAGE, IMAGE, END, END, IMAGE, 7, 7]
    assert collapse_images(ids, IMAGE) == [START, IMAGE, END, END, IMAGE, 7, 7]
    assert collapse_images(ids, None) == ids
