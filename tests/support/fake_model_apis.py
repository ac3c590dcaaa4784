"""A fake of OpenAI's Responses API and Anthropic's Messages API that takes documented requests only.

Role: `FakeApi` answers with recorded shapes, in turn, after it has checked the request field by field. Rule: an unknown field, and a call
without its output, is refused as the real API does (400 with the vendor's form of an error). Non-goals: models.

Sources: the parameter types of openai 3.51.0 (`types/responses`) and anthropic 2.10.0 (`types/beta`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

PNG = "data:image/png;base64,"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _SafetyCheck(_Strict):
    id: str
    code: str | None = None
    message: str | None = None


class _InputText(_Strict):
    type: Literal["input_text"]
    text: str


class _InputImage(_Strict):
    type: Literal["input_image"]
    detail: Literal["low", "high", "auto", "original"]
    image_url: str


class _OutputText(_Strict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]


class _UserMessage(_Strict):
    type: Literal["message"]
    role: Literal["user"]
    content: list[Annotated[_InputText | _InputImage, Field(discriminator="type")]] = Field(min_length=1)


class _AssistantText(_Strict):
    type: Literal["message"]
    role: Literal["assistant"]
    content: str


class _OutputMessage(_Strict):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[_OutputText]
    phase: str | None = None


class _Reasoning(_Strict):
    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    encrypted_content: str


class _ComputerCall(_Strict):
    type: Literal["computer_call"]
    id: str
    call_id: str
    pending_safety_checks: list[_SafetyCheck]
    status: Literal["completed"]
    action: dict[str, Any] | None = None
    actions: list[dict[str, Any]] | None = None


class _Screenshot(_Strict):
    type: Literal["computer_screenshot"]
    image_url: str


class _ComputerCallOutput(_Strict):
    type: Literal["computer_call_output"]
    call_id: str
    output: _Screenshot
    acknowledged_safety_checks: list[_SafetyCheck] | None = None


class _ComputerTool(_Strict):
    type: Literal["computer"]


class _PreviewTool(_Strict):
    type: Literal["computer_use_preview"]
    display_width: int
    display_height: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]


class ResponsesRequest(_Strict):
    """Body of `POST /v1/responses`, as far as clients here use it."""

    model: str
    input: list[_UserMessage | _OutputMessage | _AssistantText | _Reasoning | _ComputerCall | _ComputerCallOutput] = (
        Field(min_length=1)
    )
    instructions: str | None = None
    max_output_tokens: int
    store: Literal[False]
    include: list[Literal["reasoning.encrypted_content"]]
    truncation: Literal["auto", "disabled"]
    tools: list[Annotated[_ComputerTool | _PreviewTool, Field(discriminator="type")]] = []
    parallel_tool_calls: bool = True
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)

    def check(self) -> None:
        """Every call has its output, with the checks that it waits for; reasoning stands before what it led to; pictures are PNG."""
        calls: dict[str, _ComputerCall] = {}
        answered = set()
        for place, item in enumerate(self.input):
            if isinstance(item, _ComputerCall):
                assert (item.action is None) != (item.actions is None), "a call has action or actions"
                calls[item.call_id] = item
            if isinstance(item, _ComputerCallOutput):
                assert item.call_id in calls, f"No tool call found for call_id {item.call_id}"
                assert (item.acknowledged_safety_checks or []) == calls[item.call_id].pending_safety_checks, "checks"
                _check_png(item.output.image_url)
                answered.add(item.call_id)
            if isinstance(item, _UserMessage):
                for part in item.content:
                    if isinstance(part, _InputImage):
                        _check_png(part.image_url)
            if isinstance(item, _Reasoning):
                following = self.input[place + 1] if place + 1 < len(self.input) else None
                assert isinstance(following, _ComputerCall | _OutputMessage), "reasoning without its following item"
        assert answered == set(calls), f"No tool output found for {sorted(set(calls) - answered)}"


class _Text(_Strict):
    type: Literal["text"]
    text: str = Field(min_length=1)


class _Source(_Strict):
    type: Literal["base64"]
    media_type: Literal["image/png"]
    data: str


class _Image(_Strict):
    type: Literal["image"]
    source: _Source


class _ToolUse(_Strict):
    type: Literal["tool_use"]
    id: str = Field(pattern="^[a-zA-Z0-9_-]+$")
    name: str
    input: dict[str, Any]
    toolset_name: str | None = None


class _Thinking(_Strict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class _ToolResult(_Strict):
    type: Literal["tool_result"]
    tool_use_id: str
    content: list[Annotated[_Text | _Image, Field(discriminator="type")]] = Field(min_length=1)
    is_error: bool = False
    toolset_name: str | None = None


class _Turn(_Strict):
    role: Literal["user", "assistant"]
    content: list[Annotated[_Text | _Image | _ToolUse | _ToolResult | _Thinking, Field(discriminator="type")]] = Field(
        min_length=1
    )


class _Toolset(_Strict):
    type: Literal["computer_toolset_20260801"]
    configs: dict[Literal["zoom", "cursor_position"], dict[Literal["enabled"], bool]] = {}


class _Tool(_Strict):
    type: Literal["computer_20251124", "computer_20250124"]
    name: Literal["computer"]
    display_width_px: int
    display_height_px: int


class MessagesRequest(_Strict):
    """Body of `POST /v1/messages`, as far as clients here use it."""

    model: str
    max_tokens: int
    messages: list[_Turn] = Field(min_length=1)
    system: str | None = None
    tools: list[Annotated[_Toolset | _Tool, Field(discriminator="type")]] = []
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop_sequences: list[str] = []

    def check(self) -> None:
        """Roles take turns; the results of all calls stand first in the next message; pictures are PNG."""
        assert [turn.role for turn in self.messages] == ["user", "assistant"] * (len(self.messages) // 2) + ["user"]
        waiting: list[_ToolUse] = []
        for turn in self.messages:
            results = [block for block in turn.content if isinstance(block, _ToolResult)]
            assert [result.tool_use_id for result in results] == [call.id for call in waiting], "results of the calls"
            assert [result.toolset_name for result in results] == [call.toolset_name for call in waiting]
            assert list(turn.content[: len(results)]) == results, "tool_result blocks come first"
            waiting = [block for block in turn.content if isinstance(block, _ToolUse)]
            images = [block for block in turn.content if isinstance(block, _Image)]
            images += [part for result in results for part in result.content if isinstance(part, _Image)]
            for image in images:
                _check_png(PNG + image.source.data)
        assert not waiting


def _check_png(url: str) -> None:
    assert url.startswith(PNG), "pictures are PNG data URLs"
    assert base64.b64decode(url.removeprefix(PNG), validate=True).startswith(b"\x89PNG"), "not a PNG"


class FakeApi:
    """Answers requests of one of the two APIs with the given replies, in turn; `transport` goes into a client.

    replies: JSON values, or whole replies. seen: what was asked.
    """

    def __init__(self, path: Literal["responses", "messages"], replies: Sequence[Any]) -> None:
        self.path = path
        self.replies = list(replies)
        self.seen: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._answer)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies that were sent."""
        return [json.loads(request.content) for request in self.seen]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        assert request.url.path == f"/v1/{self.path}", request.url
        assert request.headers["content-type"] == "application/json"
        if self.path == "messages":
            assert "authorization" not in request.headers
            if request.headers.get("anthropic-version") != "2023-06-01":
                return _refusal(self.path, "anthropic-version: header is required")
        kind: Callable[..., Any] = ResponsesRequest if self.path == "responses" else MessagesRequest
        try:
            TypeAdapter(kind).validate_json(request.content).check()
        except (ValidationError, AssertionError) as error:
            return _refusal(self.path, f"not as documented: {error}")
        reply = self.replies.pop(0)
        return reply if isinstance(reply, httpx.Response) else httpx.Response(200, json=reply)


def _refusal(path: str, sentence: str) -> httpx.Response:
    error = {"type": "invalid_request_error", "message": sentence}
    if path == "responses":
        return httpx.Response(400, json={"error": error | {"param": None, "code": None}})
    return httpx.Response(400, json={"type": "error", "error": error, "request_id": "req_1"})


def response(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A reply of the Responses API."""
    usage = {
        "input_tokens": 1200,
        "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 0},
        "output_tokens": 31,
        "output_tokens_details": {"reasoning_tokens": 12},
        "total_tokens": 1231,
    }
    return {
        "id": "resp_1", "object": "response", "created_at": 1790000000, "status": "completed", "error": None,
        "incomplete_details": None, "model": "gpt", "output": list(output), "usage": usage,
    } | fields  # fmt: skip


def computer_call(number: int, *actions: dict[str, Any], checks: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """An output item with a batch."""
    return {
        "type": "computer_call",
        "id": f"cu_{number}",
        "call_id": f"call_{number}",
        "status": "completed",
        "pending_safety_checks": list(checks),
        "actions": list(actions),
    }


def output_message(text: str, **part: Any) -> dict[str, Any]:
    """An output item with a text."""
    content = [{"type": "output_text", "text": text, "annotations": []} | part]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def reasoning(number: int) -> dict[str, Any]:
    """An output item with what a reasoning model thought."""
    summary = [{"type": "summary_text", "text": "Click OK."}]
    return {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": summary,
        "encrypted_content": "gAAAA",
        "status": None,
    }


def message(*content: dict[str, Any], stop_reason: str = "tool_use", **fields: Any) -> dict[str, Any]:
    """A reply of the Messages API."""
    usage = {
        "input_tokens": 176,
        "cache_read_input_tokens": 1024,
        "cache_creation_input_tokens": 0,
        "output_tokens": 31,
    }
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": list(content),
        "stop_reason": stop_reason, "stop_sequence": None, "usage": usage,
    } | fields  # fmt: skip


def tool_use(number: int, name: str, **given: Any) -> dict[str, Any]:
    """A block with one call of the toolset."""
    return {"type": "tool_use", "id": f"toolu_0{number}", "name": name, "toolset_name": "computer", "input": given}
