"""What differs between the APIs of endpoints, and what their clients share.

Role: `ApiDialect`, and helpers of those that exist (`responses_api`, `messages_api`). Rule: a dialect is pure: it writes a body and reads
the JSON value of a reply, and sends nothing; a prompt holds past answers as the API gave them, so no state is kept at the endpoint.
Non-goals: sending and trying again (`dart_agent.chat_api.endpoint_policy`), what an answer performs (`dart_envs.action_formats`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dart_agent.types import Completion, FinishReason, PolicyRequest
from dart_envs.action_formats.tool_calls import NOT_PERFORMED
from dart_envs.observations.transforms import encode_png
from dart_envs.types import RgbImage

API_DEFAULT = 1.0
"""Temperature and top-p of all APIs; a value that is the default is left out, because some models take no other and refuse the field."""


class ApiDialect(Protocol):
    """How one API is spoken."""

    @property
    def path(self) -> str:
        """Behind the base URL."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Return the headers of every request.

        Args:
            key: The API key; None: the endpoint needs none.
        """
        ...

    def body(self, request: PolicyRequest) -> dict[str, Any]:
        """Write a request.

        Args:
            request: The prompt and its sampling.

        Returns:
            The body.

        Raises:
            RequestRejected: The API has no way to say it.
        """
        ...

    def read(self, body: Mapping[str, Any], answer: Any) -> Completion:
        """Read a reply.

        Args:
            body: The request that it answers.
            answer: The JSON value of the reply.

        Returns:
            The answer.

        Raises:
            ValueError: It is no reply of this API.
            WorkerError: The endpoint says that it failed.
            RequestRejected: The endpoint says that it will never answer.
        """
        ...


def message_parts(content: Any) -> list[Mapping[str, Any]]:
    """Return the parts of a message of a prompt, whose content may be a text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def message_text(content: Any) -> str:
    """Return the texts of a message of a prompt, one after the other."""
    return "".join(part["text"] for part in message_parts(content) if part["type"] == "text")


def png_base64(image: RgbImage) -> str:
    """Return a picture as PNG in base64."""
    return base64.b64encode(encode_png(image)).decode("ascii")


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """Return a list of JSON objects.

    Args:
        value: What should be one.
        what: Its name, for the message.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"its {what} is no list of objects")
    return value


def past_answer(text: str) -> list[dict[str, Any]] | None:
    """Return what an API answered in an earlier turn, from the text in which a prompt holds it; None: another text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and all(isinstance(one, dict) for one in value) else None


def completion(
    answer: Sequence[Mapping[str, Any]] | str,
    *,
    model: str,
    withheld: str | None,
    cut_off: bool,
    usage: Any,
    cached: Any,
) -> Completion:
    """Return the completion of an answer.

    Args:
        answer: What the API answered: its items or blocks, or the text of an answer without tools.
        model: Name of the model.
        withheld: Why the answer must not be performed; None: it may be.
        cut_off: Whether the answer has reached its greatest length.
        usage: The tokens that the API counted, if it did.
        cached: Tokens of the prompt that it had in its cache.
    """
    sampled = usage.get("output_tokens") if isinstance(usage, dict) else None
    with_tools = not isinstance(answer, str)
    if cut_off and withheld is None:
        withheld = "The answer was cut off at its greatest length: raise max_tokens."
    instead = [{"type": NOT_PERFORMED, "reason": withheld}] if withheld and with_tools else None
    return Completion(
        text=json.dumps(answer, ensure_ascii=False) if with_tools else str(answer),
        prompt_ids_P=(),
        token_ids_T=(),
        logprobs_T=(),
        version_spans=(),
        finish_reason=FinishReason.LENGTH if cut_off else FinishReason.STOP,
        worker=model,
        cached_prompt_tokens=cached if isinstance(cached, int) else 0,
        action_text=None if instead is None else json.dumps(instead, ensure_ascii=False),
        counted_tokens=sampled if isinstance(sampled, int) and sampled >= 0 else None,
    )
