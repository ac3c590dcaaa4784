"""A prompt that continues the exact ids of the turns before it.

Role: `prompt_ids` makes the ids that an engine is given, `continues` says whether there are earlier ids to begin with. Rule: what was
sampled is never tokenised again: a sampled answer often has other ids than its text would get, and then neither its log-probs nor the
cached prefix would fit. Only the text behind the last answer (the end of its turn, the next user turn, the beginning of the next answer) is
tokenised; templates begin it with a token that ends the turn, so no token crosses the border. Non-goals: which turns are shown
(`dart_agent.prompts.history`), expanding images (the engine).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]
Tokenize = Callable[[str], list[int]]

_MARK = "answer-9f3b2c71-goes-here"


def prompt_ids(
    messages: Sequence[Message],
    prefix_ids_P: Sequence[int],
    prefix_messages: int,
    *,
    render: Render,
    tokenize: Tokenize,
    image_token_id: int | None,
) -> list[int]:
    """Ids of a prompt with one placeholder per image.

    Args:
        messages: The whole conversation.
        prefix_ids_P: Ids that it continues, with expanded images; empty: everything is tokenised.
        prefix_messages: How many messages these cover; the last of them is the answer.
        render: The checkpoint's chat template.
        tokenize: The checkpoint's tokeniser, without added tokens.
        image_token_id: The placeholder of images, None where the model has none.

    Returns:
        The ids.

    Raises:
        ValueError: The template does not show the answer, or shows it twice.
    """
    if not prefix_ids_P:
        return tokenize(render(messages))
    prefix = collapse_images(prefix_ids_P, image_token_id)
    rest = tokenize(text_behind_answer(messages, prefix_messages - 1, render))
    if rest and prefix[-1] == rest[0]:
        # The answer ended by itself: the end of its turn was sampled.
        rest = rest[1:]
    return prefix + rest


def continues(
    messages: Sequence[Message], before: Sequence[Message], images: Sequence[str], images_before: Sequence[str]
) -> bool:
    """Say whether a prompt is an earlier one, the answer to it, and more.

    Args:
        messages: The prompt's messages.
        before: Those of the earlier prompt.
        images: Content hashes of the prompt's images, in order.
        images_before: Those of the earlier prompt.

    Returns:
        Whether the ids of the earlier prompt and of its answer can be continued.
    """
    turn = len(before)
    return (
        len(messages) > turn + 1
        and tuple(messages[:turn]) == tuple(before)
        and messages[turn].get("role") == "assistant"
        and tuple(images[: len(images_before)]) == tuple(images_before)
    )


def text_behind_answer(messages: Sequence[Message], index: int, render: Render) -> str:
    """What a template writes behind the answer in `messages[index]`. Raises ValueError where it does not show it once."""
    marked = [*messages]
    marked[index] = {**messages[index], "content": [{"type": "text", "text": _MARK}]}
    pieces = render(marked).split(_MARK)
    if len(pieces) != 2:
        raise ValueError(f"the chat template shows answer {index} {len(pieces) - 1} times")
    return pieces[1]


def collapse_images(ids: Sequence[int], image_token_id: int | None) -> list[int]:
    """Each run of image placeholders as one: the engine expands it again to what its image needs."""
    if image_token_id is None:
        return list(ids)
    collapsed: list[int] = []
    for token, run in groupby(ids):
        collapsed += [token] if token == image_token_id else run
    return collapsed
