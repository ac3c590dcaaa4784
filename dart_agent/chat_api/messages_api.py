"""Anthropic's Messages API, with its computer toolset or its older computer tools.

Role: `MessagesDialect`. Rule: a request holds the content blocks of all turns that its prompt shows, as they came. Every `tool_use` block
has its `tool_result`: the last one of an answer holds the next screenshot, the others say that they are performed; where the prompt does
not show the screenshot any more, all say so. Non-goals: streaming, prompt caching marks, other tools.

    past answer        content blocks as they came, in an assistant message
    next screenshot    tool_result blocks of the calls before it, else an image block
    content            tool_use, text, thinking; stop_reason refusal: not performed

Sources: `anthropic/types/beta/message_create_params.py`, `beta_tool_result_block_param.py`, `beta_image_block_param.py`,
`beta_stop_reason.py`, `beta_usage.py` and `anthropic/_client.py` of anthropic 2.10.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dart_agent.chat_api.api_dialect import (
    API_DEFAULT,
    completion,
    message_parts,
    message_text,
    objects,
    past_answer,
    png_base64,
)
from dart_agent.types import Completion, PolicyRequest
from dart_envs.types import RgbImage

API_VERSION = "2023-06-01"
_CUT_OFF = ("max_tokens", "model_context_window_exceeded")
_PERFORMED = "Performed. The last result of this turn shows the screen."
_NOT_SHOWN = "The screenshot is not shown any more."


class MessagesDialect:
    """Requests and replies of `POST /v1/messages`.

    Args:
        model: Name of the model.
        api_version: Value of the header `anthropic-version`.
        betas: Values of the header `anthropic-beta`; without any it is not sent.

    Attributes:
        path: Behind the base URL.
    """

    path = "messages"

    def __init__(self, model: str, *, api_version: str = API_VERSION, betas: Sequence[str] = ()) -> None:
        self._model = model
        self._api_version = api_version
        self._betas = tuple(betas)

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Return the key, the version and the betas in the API's own headers."""
        headers = {"anthropic-version": self._api_version}
        if key is not None:
            headers["x-api-key"] = key
        if self._betas:
            headers["anthropic-beta"] = ",".join(self._betas)
        return headers

    def body(self, request: PolicyRequest) -> dict[str, Any]:
        """Write a request; see `ApiDialect.body`. The API has no seed."""
        sampling = request.sampling
        writer = _MessageWriter(request)
        for message in request.messages:
            writer.add(message)
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_tokens,
            "messages": writer.messages,
        }
        if writer.system:
            body["system"] = "\n\n".join(writer.system)
        if request.tools:
            body["tools"] = [dict(tool) for tool in request.tools]
        if sampling.stop:
            body["stop_sequences"] = list(sampling.stop)
        for name, value in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
            if value != API_DEFAULT:
                body[name] = value
        return body

    def read(self, body: Mapping[str, Any], answer: Any) -> Completion:
        """Read a reply; see `ApiDialect.read`."""
        if not isinstance(answer, dict) or answer.get("type") != "message":
            raise ValueError("it is no message")
        blocks = objects(answer.get("content"), "content")
        usage = answer.get("usage")
        said = blocks if body.get("tools") else "".join(str(one.get("text") or "") for one in blocks)
        return completion(
            said,
            model=self._model,
            withheld=_refusal(answer),
            cut_off=answer.get("stop_reason") in _CUT_OFF,
            usage=usage,
            cached=usage.get("cache_read_input_tokens") if isinstance(usage, dict) else None,
        )


class _MessageWriter:
    """Writes the messages of a prompt as the API's, which begin with the user's and take turns."""

    def __init__(self, request: PolicyRequest) -> None:
        self.messages: list[dict[str, Any]] = []
        self.system: list[str] = []
        self._images: Iterator[RgbImage] = iter(request.images)
        self._with_tools = bool(request.tools)
        self._calls: list[dict[str, Any]] = []
        self._answers = 0

    def add(self, message: Mapping[str, Any]) -> None:
        """Write one message."""
        role, content = message["role"], message["content"]
        if role == "system":
            self.system.append(message_text(content))
        elif role == "assistant":
            self._answers += 1
            self._add("user", self._results(None))
            self._add("assistant", self._answer(message_text(content)))
        else:
            self._add("user", self._user_blocks(message_parts(content)))

    def _add(self, role: str, blocks: list[dict[str, Any]]) -> None:
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def _answer(self, text: str) -> list[dict[str, Any]]:
        """The blocks of a past answer. The API takes no empty text."""
        given = past_answer(text) if self._with_tools else None
        blocks = [{"type": "text", "text": text}] if given is None else given
        kept = []
        for number, block in enumerate(blocks):
            if block.get("type") == "text" and not str(block.get("text") or "").strip():
                continue
            if block.get("type") == "tool_use":
                # A call that another policy wrote has no id, and gets one.
                block = {"id": f"toolu_{self._answers}_{number}", **block}
                self._calls.append(block)
            kept.append({name: value for name, value in block.items() if value is not None})
        return kept

    def _user_blocks(self, parts: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The blocks of a message. Results of calls come first, as the API wants them."""
        results: list[dict[str, Any]] = []
        blocks: list[dict[str, Any]] = []
        for part in parts:
            if part["type"] == "text":
                blocks.append({"type": "text", "text": part["text"]})
                continue
            source = {"type": "base64", "media_type": "image/png", "data": png_base64(next(self._images))}
            image = {"type": "image", "source": source}
            if self._calls:
                results = self._results(image)
            else:
                blocks.append(image)
        return [*results, *self._results(None), *blocks]

    def _results(self, image: dict[str, Any] | None) -> list[dict[str, Any]]:
        """The results of the calls that have none yet; with an image, the last one holds it."""
        results = []
        for call in self._calls:
            content = {"type": "text", "text": _NOT_SHOWN if image is None else _PERFORMED}
            if image is not None and call is self._calls[-1]:
                content = image
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": [content]}
            if call.get("toolset_name"):
                result["toolset_name"] = call["toolset_name"]
            results.append(result)
        self._calls = []
        return results


def _refusal(answer: Mapping[str, Any]) -> str | None:
    """Why an answer must not be performed."""
    if answer.get("stop_reason") != "refusal":
        return None
    details = answer.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, dict) else None
    return f"The model refused: {explanation}" if explanation else "The model refused."
