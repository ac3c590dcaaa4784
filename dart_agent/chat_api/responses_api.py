"""OpenAI's Responses API, with its `computer` tool.

Role: `ResponsesDialect`. Rule: nothing is kept at the endpoint (`store` is false): a request holds the output items of all turns that its
prompt shows, and reasoning comes back encrypted. The screenshot behind a `computer_call` is its `computer_call_output`. A call whose
screenshot the prompt does not show any more, and one that was not performed, are told as text, because the API takes no call without an
output. Safety checks of a call are acknowledged with its screenshot, or the call is not performed, by setting. Non-goals: streaming,
`previous_response_id`, function tools.

    past answer        output items as they came
    next screenshot    computer_call_output of the call before it, else an input_image
    output             computer_call with `actions` (`action` of computer_use_preview), message, reasoning; refusal: not performed

Sources: `openai/types/responses/response_create_params.py`, `response_input_item_param.py`, `response_computer_tool_call.py`,
`response_usage.py` and `response_error.py` of openai 3.51.0; OpenAI's guide "Computer use".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
from dart_agent.errors import RequestRejected, WorkerError
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.types import Completion, PolicyRequest
from dart_envs.types import RgbImage

_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_PREVIEW = "computer_use_preview"
_NOT_SHOWN = "Performed (its screenshot is not shown any more)"
_NOT_PERFORMED = "Not performed"


class ResponsesDialect:
    """Requests and replies of `POST /v1/responses`.

    Args:
        model: Name of the model.
        acknowledge: Whether safety checks are acknowledged; False: a call that has some is not performed.

    Attributes:
        path: Behind the base URL.
    """

    path = "responses"

    def __init__(self, model: str, *, acknowledge: bool) -> None:
        self._model = model
        self._acknowledge = acknowledge

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Return the key as a bearer token."""
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def body(self, request: PolicyRequest) -> dict[str, Any]:
        """Write a request; see `ApiDialect.body`. The API has no seed."""
        sampling = request.sampling
        if sampling.stop:
            raise RequestRejected("the Responses API has no stop texts: leave `stop` out, or set api to chat")
        preview = any(tool.get("type") == _PREVIEW for tool in request.tools)
        writer = _InputWriter(request, self._acknowledge, "auto" if preview or not request.tools else "original")
        for message in request.messages:
            writer.add(message)
        body: dict[str, Any] = {
            "model": self._model,
            "input": writer.items,
            "max_output_tokens": sampling.max_tokens,
            "store": False,
            "include": [_ENCRYPTED_REASONING],
            # The preview takes nothing else; a prompt that is too long is an error elsewhere, which the episode is told.
            "truncation": "auto" if preview else "disabled",
        }
        if writer.instructions:
            body["instructions"] = "\n\n".join(writer.instructions)
        if request.tools:
            body |= {"tools": [dict(tool) for tool in request.tools], "parallel_tool_calls": False}
        for name, value in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
            if value != API_DEFAULT:
                body[name] = value
        return body

    def read(self, body: Mapping[str, Any], answer: Any) -> Completion:
        """Read a reply; see `ApiDialect.read`."""
        if not isinstance(answer, dict):
            raise ValueError("it is no object")
        if answer.get("status") == "failed":
            raise _failure(answer.get("error"))
        items = objects(answer.get("output"), "output")
        incomplete = answer.get("incomplete_details") if answer.get("status") == "incomplete" else None
        reason = incomplete.get("reason") if isinstance(incomplete, dict) else None
        usage = answer.get("usage")
        details = usage.get("input_tokens_details") if isinstance(usage, dict) else None
        said = items if body.get("tools") else "".join(_texts(items))
        return completion(
            said,
            model=self._model,
            withheld=self._why_not(items, reason),
            cut_off=reason == "max_output_tokens",
            usage=usage,
            cached=details.get("cached_tokens") if isinstance(details, dict) else None,
        )

    def _why_not(self, items: list[dict[str, Any]], incomplete: Any) -> str | None:
        """Why an answer must not be performed."""
        for part in _message_parts(items):
            if part.get("type") == "refusal":
                return f"The model refused: {part.get('refusal')}"
        if incomplete == "content_filter":
            return "The answer was stopped by the endpoint's content filter."
        checks = [check for item in items for check in _pending(item)]
        if checks and not self._acknowledge:
            said = "; ".join(f"{check.get('code')}: {check.get('message')}" for check in checks)
            return f"Safety checks are pending, and safety_checks is refuse: {said}"
        return None


class _InputWriter:
    """Writes the messages of a prompt as input items.

    An answer is held until the next message, because what becomes of its call depends on whether a screenshot follows.
    """

    def __init__(self, request: PolicyRequest, acknowledge: bool, detail: str) -> None:
        self.items: list[dict[str, Any]] = []
        self.instructions: list[str] = []
        self._images: Iterator[RgbImage] = iter(request.images)
        self._with_tools = bool(request.tools)
        self._acknowledge = acknowledge
        self._detail = detail
        self._held: list[dict[str, Any]] = []
        self._answers = 0

    def add(self, message: Mapping[str, Any]) -> None:
        """Write one message."""
        role, content = message["role"], message["content"]
        if role == "system":
            self.instructions.append(message_text(content))
        elif role == "assistant":
            self._write_held(None)
            self._answers += 1
            text = message_text(content)
            answer = past_answer(text) if self._with_tools else None
            self._held = [{"type": "message", "role": "assistant", "content": text}] if answer is None else answer
        else:
            self._add_user(message_parts(content))

    def _add_user(self, parts: list[Mapping[str, Any]]) -> None:
        content: list[dict[str, Any]] = []
        for part in parts:
            if part["type"] == "text":
                content.append({"type": "input_text", "text": part["text"]})
                continue
            url = f"data:image/png;base64,{png_base64(next(self._images))}"
            if self._write_held(url):
                continue
            content.append({"type": "input_image", "image_url": url, "detail": self._detail})
        self._write_held(None)
        if content:
            self.items.append({"type": "message", "role": "user", "content": content})

    def _write_held(self, screenshot: str | None) -> bool:
        """Write the last answer; whether the screenshot became the output of its call."""
        reasoning: list[dict[str, Any]] = []
        used = False
        for item in self._held:
            kind = item.get("type")
            if kind == "reasoning":
                # Without its content the API would look for it in what it has stored, which is nothing.
                reasoning += [_without_nulls(item)] if item.get("encrypted_content") else []
                continue
            if kind == "computer_call":
                performed = item.get("status") != "incomplete" and (self._acknowledge or not _pending(item))
                if screenshot is None or not performed:
                    self.items.append(_told(item, _NOT_SHOWN if performed else _NOT_PERFORMED))
                else:
                    self.items += [*reasoning, *self._call(item, screenshot)]
                    used = True
            elif kind == "message" and not item.get("id"):
                # One that another policy wrote.
                self.items.append({"type": "message", "role": "assistant", "content": _said(item)})
            else:
                self.items += [*reasoning, _without_nulls(item)]
            # Reasoning stands before the item that it led to, and nowhere else.
            reasoning = []
        self._held = []
        return used

    def _call(self, item: Mapping[str, Any], screenshot: str) -> list[dict[str, Any]]:
        """A call and its output. A call that another policy wrote has no ids, and gets some."""
        number = f"{self._answers}_{len(self.items)}"
        ids = {"id": f"cu_{number}", "call_id": f"call_{number}", "pending_safety_checks": [], "status": "completed"}
        call = ids | _without_nulls(item)
        output: dict[str, Any] = {
            "type": "computer_call_output",
            "call_id": call["call_id"],
            "output": {"type": "computer_screenshot", "image_url": screenshot},
        }
        if call["pending_safety_checks"]:
            output["acknowledged_safety_checks"] = call["pending_safety_checks"]
        return [call, output]


def _told(call: Mapping[str, Any], what: str) -> dict[str, Any]:
    actions = call.get("actions") or [call.get("action")]
    return {"type": "message", "role": "assistant", "content": f"{what}: {json.dumps(actions, ensure_ascii=False)}"}


def _said(item: Mapping[str, Any]) -> str:
    """The text of a message."""
    content = item.get("content")
    return content if isinstance(content, str) else "".join(_texts([dict(item)]))


def _without_nulls(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value is not None}


def _pending(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    checks = item.get("pending_safety_checks")
    return [check for check in checks if isinstance(check, dict)] if isinstance(checks, list) else []


def _message_parts(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        if item.get("type") == "message" and isinstance(item.get("content"), list):
            yield from (part for part in item["content"] if isinstance(part, dict))


def _texts(items: list[dict[str, Any]]) -> Iterator[str]:
    for part in _message_parts(items):
        yield str(part.get("text") or part.get("refusal") or "")


def _failure(error: Any) -> WorkerError | RequestRejected:
    code = error.get("code") if isinstance(error, dict) else None
    said = f"the response failed ({code}): {error.get('message') if isinstance(error, dict) else error}"
    if code == "rate_limit_exceeded":
        return WorkerError(said, RequestFailure.BUSY)
    if code in (None, "server_error", "vector_store_timeout"):
        return WorkerError(said, RequestFailure.ENGINE)
    return RequestRejected(said)
