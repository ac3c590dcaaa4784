"""A policy behind an OpenAI-compatible endpoint: screenshots go as image parts, answers are texts of the chosen action space.

Role: `openai_policy`. Rule: one conversation per episode, the last `history` turns of it with pictures; what the endpoint refuses or
does not answer ends the episode without a verdict, because it says nothing about the model; a text that is no action is the model's own
failure. `format_policy` asks a checkpoint as it was trained, by an action format. Non-goals: rollouts for training (`dart_agent`).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import numpy as np

from dart_envs.action_formats import ActionFormat, ParseError
from dart_envs.action_spaces import ActionCodec
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import ActionError
from dart_envs.evaluation.policies import EndpointError, EpisodePolicy, EpisodePolicyFactory, ModelAnswer, PolicyInput
from dart_envs.observations.geometry import PointMap
from dart_envs.observations.transforms import encode_png, resize_image
from dart_envs.types import RgbImage
from dart_server.wire import Clock

PROMPTS = {
    "pyautogui": "Answer with Python code that calls pyautogui (absolute pixels, literal arguments), and nothing else. Answer WAIT to "
    "wait, DONE when the task is done, FAIL when it cannot be done.",
    "pyautogui-exec": "Answer with Python code that uses pyautogui (absolute pixels), and nothing else. Answer WAIT to wait, DONE when "
    "the task is done, FAIL when it cannot be done.",
    "uitars": "Answer with one line, Action: and a call: click(start_box='(x,y)'), left_double(start_box='(x,y)'), right_single("
    "start_box='(x,y)'), drag(start_box='(x,y)', end_box='(x,y)'), hotkey(key='ctrl c'), type(content='text'), scroll(start_box="
    "'(x,y)', direction='down'), wait(), finished(). Points are absolute pixels.",
    "computer_13": 'Answer with one JSON object: {"action_type": "CLICK", "x": 3, "y": 4}, or MOVE_TO, DOUBLE_CLICK, RIGHT_CLICK, '
    "DRAG_TO, SCROLL (dx, dy), TYPING (text), PRESS (key), HOTKEY (keys), WAIT, DONE, FAIL. Points are absolute pixels.",
}
"""What the model is told of each action space that has a text."""
MAX_ATTEMPTS = 4
INITIAL_BACKOFF_S = 1.0
RETRYABLE_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the model is, and how it is asked.

    `api_key_env`: the environment variable that holds the key. history: turns that are sent again with their pictures. max_tokens,
    temperature: of one answer. prompt: the system prompt instead of our own; `{instruction}`, `{width}`, `{height}` and `{actions}` (how
    actions are written) are filled in.
    """

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    history: int = 3
    max_tokens: int = 1024
    temperature: float = 0.0
    timeout_s: float = 120.0
    prompt: str | None = None


def openai_policy(endpoint: Endpoint, action_space: str, *, clock: Clock = SYSTEM_CLOCK) -> EpisodePolicyFactory:
    """A policy that asks `endpoint`. Raises ValueError for an action space without a text."""
    if action_space not in PROMPTS:
        raise ValueError(
            f"a model answers in text, which the action space {action_space!r} has not; choose --action-space "
            f"{', '.join(PROMPTS)}"
        )
    _check_url(endpoint)

    def make(_env: AsyncDesktopEnv, _codec: ActionCodec, _rng: np.random.Generator) -> EpisodePolicy:
        turns: list[tuple[dict[str, Any], str]] = []

        async def act(seen: PolicyInput) -> Any:
            asked = {"role": "user", "content": [_text_part(seen), _image_part(seen.observation.screenshot)]}
            recent = turns[-endpoint.history :] if endpoint.history else []
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": _system_prompt(endpoint, action_space, seen)}
            ]
            for question, answer in recent:
                messages += [question, {"role": "assistant", "content": answer}]
            text = await request_completion(endpoint, [*messages, asked], clock=clock)
            turns.append((asked, text))
            return parse_answer(text, action_space)

        return act

    return make


class _Turn(NamedTuple):
    """A finished step: the picture as it was sent, and the answer."""

    image: RgbImage | None
    text: str


def format_policy(
    endpoint: Endpoint, action_format: ActionFormat, *, clock: Clock = SYSTEM_CLOCK
) -> EpisodePolicyFactory:
    """A policy that asks `endpoint` in an action format: its prompt, its sizes of pictures, its points.

    Args:
        endpoint: Where the model is. `history` bounds the earlier pictures below what the format shows.
        action_format: How the model is asked and how it answers.
        clock: Paces repeated requests.

    Returns:
        The factory. Its policies return what one step performs; an answer that is no action raises `ActionError` with its cause.

    Raises:
        ValueError: If the address is none, or a prompt of one's own is given.
    """
    if endpoint.prompt is not None:
        raise ValueError("--prompt: an action format has its own prompt; leave one of the two out")
    _check_url(endpoint)
    shown = min(endpoint.history, action_format.images - 1)

    def make(_env: AsyncDesktopEnv, _codec: ActionCodec, _rng: np.random.Generator) -> EpisodePolicy:
        turns: list[_Turn] = []

        async def act(seen: PolicyInput) -> Any:
            screenshot = seen.observation.screenshot
            screen_wh = (screenshot.shape[1], screenshot.shape[0])
            picture_wh = action_format.picture.fit(screen_wh)
            picture = resize_image(screenshot, picture_wh)
            messages = action_format.messages(seen.observation.instruction, turns, picture_wh)
            pictures = [*(turn.image for turn in turns if turn.image is not None), picture]
            text = await request_completion(
                endpoint, _with_pictures(messages, pictures), stop=action_format.stop, clock=clock
            )
            turns.append(_Turn(picture, text))
            turns[: -shown or None] = [_Turn(None, turn.text) for turn in turns[: -shown or None]]
            points = PointMap(picture_wh, screen_wh, action_format.coordinates)
            parsed = action_format.parse(text, points, seen.observation.pointer)
            if isinstance(parsed, ParseError):
                raise ActionError(str(parsed), parsed.fault)
            return ModelAnswer(parsed.action, text)

        return act

    return make


def _check_url(endpoint: Endpoint) -> None:
    if not endpoint.base_url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url looks like http://127.0.0.1:8000/v1, not {endpoint.base_url!r}")


def _with_pictures(messages: Iterable[Mapping[str, Any]], pictures: Iterable[RgbImage]) -> list[dict[str, Any]]:
    """The messages with the pictures in the places of their image parts; a message of one text has that text as its content."""
    waiting = iter(pictures)
    sent = []
    for message in messages:
        parts = [_image_part(next(waiting)) if part["type"] == "image" else dict(part) for part in message["content"]]
        only_text = len(parts) == 1 and parts[0]["type"] == "text"
        sent.append({"role": message["role"], "content": parts[0]["text"] if only_text else parts})
    return sent


def _system_prompt(endpoint: Endpoint, action_space: str, seen: PolicyInput) -> str:
    height, width = seen.observation.screenshot.shape[:2]
    if endpoint.prompt is not None:
        text = endpoint.prompt
        values = {"width": width, "height": height, "actions": PROMPTS[action_space]}
        for name, value in (*values.items(), ("instruction", seen.observation.instruction)):
            text = text.replace(f"{{{name}}}", str(value))
        return text
    return f"You operate a desktop of {width}x{height} pixels. The task: {seen.observation.instruction}\n{PROMPTS[action_space]}"


def _text_part(seen: PolicyInput) -> dict[str, Any]:
    return {"type": "text", "text": f"Step {seen.steps + 1} of at most {seen.budget}. This is the screen now."}


def _image_part(image: RgbImage) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(encode_png(image)).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": url}}


async def request_completion(
    endpoint: Endpoint, messages: list[dict[str, Any]], *, stop: tuple[str, ...] = (), clock: Clock = SYSTEM_CLOCK
) -> str:
    """The text of one answer; calls that the endpoint has parsed follow as `<tool_call>` blocks. Raises EndpointError."""
    key = os.environ.get(endpoint.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {
        "model": endpoint.model,
        "messages": messages,
        "max_tokens": endpoint.max_tokens,
        "temperature": endpoint.temperature,
        **({"stop": list(stop)} if stop else {}),
    }
    said = ""
    async with httpx.AsyncClient(timeout=endpoint.timeout_s) as client:
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await clock.sleep(INITIAL_BACKOFF_S * 2 ** (attempt - 1))
            try:
                reply = await client.post(
                    f"{endpoint.base_url.rstrip('/')}/chat/completions", json=body, headers=headers
                )
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
                continue
            if reply.status_code in RETRYABLE_STATUS:
                said = f"status {reply.status_code}"
                continue
            return _text(endpoint, reply)
    raise EndpointError(f"{endpoint.base_url} did not answer in {MAX_ATTEMPTS} attempts ({said}).")


def _text(endpoint: Endpoint, reply: httpx.Response) -> str:
    if not reply.is_success:
        raise EndpointError(f"{endpoint.base_url} refused (status {reply.status_code}): {reply.text[:300]}")
    try:
        message = reply.json()["choices"][0]["message"]
        return "\n".join(
            [*([message["content"]] if message["content"] else []), *map(_call_text, message.get("tool_calls") or ())]
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EndpointError(
            f"{endpoint.base_url} answers with something that is no chat completion: {reply.text[:200]}"
        ) from error


def _call_text(call: Mapping[str, Any]) -> str:
    """A call that the endpoint has taken out of the text, as the model wrote it."""
    function = call["function"]
    name, arguments = json.dumps(function["name"], ensure_ascii=False), function["arguments"]
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def parse_answer(text: str, action_space: str) -> Any:
    """What the codec of the space is given: JSON for `computer_13`, else the text."""
    if action_space != "computer_13":
        return text
    start, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[start : end + 1])
    except ValueError:
        return text.strip()
