"""Requests and answers of OpenAI's `POST /v1/chat/completions`.

Role: `ChatRequest` checks a body and becomes a `PolicyRequest`; `chat_answer` writes the completions as the API does. Rule: a field that
would change the answer and is not supported is refused by name, never ignored; an empty field (null, []) asks for nothing, so that a
message of an answer can be sent again as it came. Images come inside the request as data URLs; no address is
fetched. Non-goals: routes (`dart_agent.chat_api.server`), tokens (the engine's).

Source: OpenAI's API reference, "Create chat completion". `return_token_ids`, `prompt_token_ids` and `token_ids` are named as
in vLLM's server.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dart_agent.strict_model import format_validation_error
from dart_agent.types import Completion, FinishReason, PolicyRequest, SamplingParams
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.types import RgbImage

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP")
MAX_IMAGE_PIXELS = 64 * 2**20
MAX_CHOICES = 64
MAX_STOPS = 16
INERT_FIELDS = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""Say nothing about the answer."""
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": ({}, None),
    "tools": ([], None),
    "tool_choice": ("none", "auto", None),
    "parallel_tool_calls": (True, False, None),
    "response_format": ({"type": "text"}, None),
    "top_logprobs": (0, None),
    "modalities": (["text"], None),
    "stream_options": (None,),
}
"""Fields that are not supported, with the values that ask for nothing."""


class ChatRequestError(ValueError):
    """A request that cannot be answered as it is; `param` names the field."""

    def __init__(self, sentence: str, param: str | None = None) -> None:
        super().__init__(sentence)
        self.param = param


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _TextPart(_Body):
    type: Literal["text"]
    text: str


class _ImageUrl(_Body):
    url: str
    detail: str | None = None


class _ImagePart(_Body):
    type: Literal["image_url"]
    image_url: _ImageUrl


_Part = Annotated[_TextPart | _ImagePart, Field(discriminator="type")]


class _Message(_Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]
    name: str | None = None


class ChatRequest(_Body):
    """A body that passed every check. Make it with `read_request`."""

    model: str
    messages: list[_Message] = Field(min_length=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    logprobs: bool | None = None
    return_token_ids: bool | None = None

    def policy_requests(self, request_id: str, max_tokens: int) -> list[PolicyRequest]:
        """One request per choice. Choice i has the seed `seed` + i.

        Args:
            request_id: Beginning of the requests' ids.
            max_tokens: Limit of the answer where the body gives none.

        Raises:
            ChatRequestError: If an image cannot be read.
        """
        images: list[RgbImage] = []
        messages = []
        for index, message in enumerate(self.messages):
            parts = (
                [_TextPart(type="text", text=message.content)] if isinstance(message.content, str) else message.content
            )
            content: list[dict[str, str]] = []
            for number, part in enumerate(parts):
                if isinstance(part, _TextPart):
                    content.append({"type": "text", "text": part.text})
                else:
                    images.append(read_data_url(part.image_url.url, f"messages.{index}.content.{number}"))
                    content.append({"type": "image"})
            messages.append({"role": "system" if message.role == "developer" else message.role, "content": content})
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        limit = self.max_completion_tokens or self.max_tokens or max_tokens
        return [
            PolicyRequest(
                messages=tuple(messages),
                images=tuple(images),
                sampling=SamplingParams(
                    temperature=1.0 if self.temperature is None else self.temperature,
                    top_p=1.0 if self.top_p is None else self.top_p,
                    max_tokens=limit,
                    seed=None if self.seed is None else self.seed + choice,
                    stop=stop,
                ),
                request_id=f"{request_id}-{choice}",
            )
            for choice in range(self.n or 1)
        ]


def read_request(body: Any) -> ChatRequest:
    """Check the JSON value of a body. Raises `ChatRequestError` that names the field."""
    if not isinstance(body, Mapping):
        raise ChatRequestError("The body must be a JSON object.")
    kept = {}
    for name, value in body.items():
        if name in INERT_FIELDS:
            continue
        if name in NEUTRAL_VALUES:
            if value not in NEUTRAL_VALUES[name]:
                raise ChatRequestError(f"{name} is not supported; leave it out.", name)
            continue
        kept[name] = value
    if isinstance(kept.get("messages"), list):
        kept["messages"] = [_without_empty(message) for message in kept["messages"]]
    try:
        return ChatRequest.model_validate(kept)
    except ValidationError as error:
        param = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
        raise ChatRequestError(f"{format_validation_error(error)}.", param) from error


def _without_empty(message: Any) -> Any:
    """A message without its empty fields, such as `refusal` and `tool_calls` of an answer that is sent again."""
    if not isinstance(message, Mapping):
        return message
    return {name: value for name, value in message.items() if name == "content" or value not in (None, [])}


def read_data_url(url: str, param: str) -> RgbImage:
    """The picture of a `data:image/...;base64,` URL as uint8 [H, W, 3]. Raises `ChatRequestError`."""
    head, comma, text = url.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise ChatRequestError("An image is a data URL (data:image/png;base64,...). Addresses are not fetched.", param)
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=IMAGE_FORMATS) as picture:
            if picture.width * picture.height > MAX_IMAGE_PIXELS:
                raise ChatRequestError(f"The image has more than {MAX_IMAGE_PIXELS} pixels.", param)
            return np.asarray(picture.convert("RGB"))
    except ChatRequestError:
        raise
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ChatRequestError(f"The image is no readable {', '.join(IMAGE_FORMATS)}: {error}", param) from error


def chat_answer(
    request: ChatRequest, completions: Sequence[Completion], answer_id: str, decode: Callable[[int], str]
) -> dict[str, Any]:
    """The body of the answer. decode: text of one token id."""
    generated = sum(len(one.token_ids_T) for one in completions)
    prompt = len(completions[0].prompt_ids_P)
    answer: dict[str, Any] = {
        "id": answer_id,
        "object": "chat.completion",
        "created": int(SYSTEM_CLOCK.time()),
        "model": request.model,
        "choices": [_choice(request, index, one, decode) for index, one in enumerate(completions)],
        "usage": {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated},
    }
    if request.return_token_ids:
        answer["prompt_token_ids"] = list(completions[0].prompt_ids_P)
    return answer


def _choice(request: ChatRequest, index: int, completion: Completion, decode: Callable[[int], str]) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": None,
        "finish_reason": "length" if completion.finish_reason is FinishReason.LENGTH else "stop",
    }
    if request.logprobs:
        tokens = zip(completion.token_ids_T, completion.logprobs_T, strict=True)
        choice["logprobs"] = {"content": [_token(decode(token), logprob) for token, logprob in tokens], "refusal": None}
    if request.return_token_ids:
        choice["token_ids"] = list(completion.token_ids_T)
        choice["weight_versions"] = [[span.version, span.start, span.end] for span in completion.version_spans]
    return choice


def _token(text: str, logprob: float) -> dict[str, Any]:
    """bytes: None for a token that is a part of a character only."""
    partial = "\N{REPLACEMENT CHARACTER}" in text
    return {
        "token": text,
        "logprob": logprob,
        "bytes": None if partial else list(text.encode()),
        "top_logprobs": [],
    }
