"""A policy behind an OpenAI-compatible endpoint: screenshots go as image parts, answers are texts of the chosen action space.

Role: `openai_policy`. Rule: one conversation per episode, the last `history` turns of it with pictures; what the endpoint refuses or
does not answer ends the episode without a verdict, because it says nothing about the model; a text that is no action is the model's own
failure. Non-goals: prompts for one model family, rollouts for training (`dart_agent`).
"""

from __future__ import annotations

import base64
import io
import json
import os
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from PIL import Image

from dart_envs.action_spaces import ActionCodec
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.evaluation.policies import EndpointError, EpisodePolicy, EpisodePolicyFactory, PolicyInput
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
    if not endpoint.base_url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url looks like http://127.0.0.1:8000/v1, not {endpoint.base_url!r}")

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
    Image.fromarray(image).save(file := io.BytesIO(), "PNG", compress_level=1)
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": url}}


async def request_completion(endpoint: Endpoint, messages: list[dict[str, Any]], *, clock: Clock = SYSTEM_CLOCK) -> str:
    """The text of one answer. Raises EndpointError."""
    key = os.environ.get(endpoint.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {
        "model": endpoint.model,
        "messages": messages,
        "max_tokens": endpoint.max_tokens,
        "temperature": endpoint.temperature,
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
        return str(reply.json()["choices"][0]["message"]["content"] or "")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EndpointError(
            f"{endpoint.base_url} answers with something that is no chat completion: {reply.text[:200]}"
        ) from error


def parse_answer(text: str, action_space: str) -> Any:
    """What the codec of the space is given: JSON for `computer_13`, else the text."""
    if action_space != "computer_13":
        return text
    start, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[start : end + 1])
    except ValueError:
        return text.strip()
