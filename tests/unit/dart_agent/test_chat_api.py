"""OpenAI's chat API: what a request becomes, what the answer says, what is refused, and who may ask."""

from __future__ import annotations

import asyncio
import base64
import io
import stat
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dart_agent.chat_api.prompt_overflow import is_prompt_overflow
from dart_agent.chat_api.protocol import ChatRequestError, read_request
from dart_agent.chat_api.server import KEY_VARIABLE, MAX_BODY_BYTES, ChatApiSettings, build_chat_app
from dart_agent.cli import app
from dart_agent.errors import ConfigError, PolicyUnavailableError, PromptTooLongError, RequestRejected
from dart_agent.inference.config import InferenceConfig
from dart_agent.inference.wire import decode_request, encode_request
from dart_agent.types import Completion, FinishReason, PolicyRequest, VersionSpan

KEY = "secret"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


class FakePolicy:
    """Answers every request with two tokens, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[PolicyRequest] = []
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.cancelled = 0
        self.third = asyncio.Event()

    async def complete(self, request: PolicyRequest) -> Completion:
        self.requests.append(request)
        if len(self.requests) == 3:
            self.third.set()
        if self.failure is not None:
            raise self.failure
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return Completion("Hi.", (5, 6, 7), (65, 9999), (-0.5, -0.25), (VersionSpan(3, 0, 2),), FinishReason.LENGTH)


@pytest.fixture
def policy() -> FakePolicy:
    return FakePolicy()


def settings(tmp_path: Path, **values: Any) -> ChatApiSettings:
    return ChatApiSettings(key_file=tmp_path / "keys" / "agent.key", model_name="tiny", max_tokens=77, **values)


def text_of(token: int) -> str:
    return "\N{REPLACEMENT CHARACTER}" if token == 9999 else chr(token)


@pytest.fixture
def client(policy: FakePolicy, tmp_path: Path) -> httpx.AsyncClient:
    application = build_chat_app(policy, settings(tmp_path), KEY, text_of)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(application), base_url="http://agent", headers={"Authorization": f"Bearer {KEY}"}
    )


def picture(colour: tuple[int, int, int], file_format: str = "PNG") -> dict[str, Any]:
    Image.new("RGB", (8, 6), colour).save(file := io.BytesIO(), file_format)
    url = f"data:image/{file_format.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


async def test_messages_images_and_sampling_reach_the_policy(client: httpx.AsyncClient, policy: FakePolicy) -> None:
    body = {
        "model": "tiny",
        "messages": [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [picture((255, 0, 0)), {"type": "text", "text": "And"}, picture((0, 0, 255))]},
            {"role": "assistant", "content": "click"},
        ],
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 9,
        "seed": 4,
        "n": 2,
        "user": "someone",
        "stream": False,
        "stop": None,
    }
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    first, second = policy.requests
    assert [message["role"] for message in first.messages] == ["system", "user", "assistant"]
    assert first.messages[1]["content"] == [{"type": "image"}, {"type": "text", "text": "And"}, {"type": "image"}]
    assert [tuple(image[0, 0]) for image in first.images] == [(255, 0, 0), (0, 0, 255)]
    assert all(image.shape == (6, 8, 3) and image.dtype == np.uint8 for image in first.images)
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed) == (0.0, 0.5, 9, 4)
    assert second.sampling.seed == 5
    assert first.request_id != second.request_id
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1]


async def test_an_answer_is_sent_again_as_it_came(client: httpx.AsyncClient, policy: FakePolicy) -> None:
    """As OpenAI's client keeps the message: with every field of its class, empty ones too."""
    said = (await client.post("/v1/chat/completions", json=HELLO)).json()["choices"][0]["message"]
    kept = {**said, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    again = {**HELLO, "messages": [*HELLO["messages"], kept, {"role": "user", "content": "And?"}]}
    answer = await client.post("/v1/chat/completions", json=again)
    assert answer.status_code == 200, answer.text
    assert policy.requests[-1].messages[1] == {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}


@pytest.mark.parametrize(("stop", "read"), [("\n", ("\n",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())])
async def test_texts_that_end_the_answer_reach_the_policy(
    client: httpx.AsyncClient, policy: FakePolicy, stop: object, read: tuple[str, ...]
) -> None:
    answer = await client.post("/v1/chat/completions", json={**HELLO, "stop": stop})
    assert answer.status_code == 200, answer.text
    (request,) = policy.requests
    assert decode_request(encode_request(request)).sampling.stop == read


async def test_defaults_are_openais(client: httpx.AsyncClient, policy: FakePolicy) -> None:
    answer = (await client.post("/v1/chat/completions", json=HELLO)).json()
    sampling = policy.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed) == (1.0, 1.0, 77, None)
    assert answer["object"] == "chat.completion"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hi.", "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    assert "token_ids" not in choice


async def test_log_probs_and_token_ids_are_those_of_the_sampled_tokens(client: httpx.AsyncClient) -> None:
    answer = (
        await client.post("/v1/chat/completions", json={**HELLO, "logprobs": True, "return_token_ids": True})
    ).json()
    (choice,) = answer["choices"]
    assert choice["logprobs"]["content"] == [
        {"token": "A", "logprob": -0.5, "bytes": [65], "top_logprobs": []},
        {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -0.25, "bytes": None, "top_logprobs": []},
    ]
    assert answer["prompt_token_ids"] == [5, 6, 7]
    assert choice["token_ids"] == [65, 9999]
    assert choice["weight_versions"] == [[3, 0, 2]]


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"stream": True}, "stream", "not supported"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages.0.tool_calls", "tool_calls"),
        ({"tools": [{}]}, "tools", "not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported"),
        ({"best_of": 3}, "best_of", "best_of"),
        ({"temperature": 3}, "temperature", "temperature"),
        ({"n": 0}, "n", "n"),
        ({"messages": []}, "messages", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}
                ]
            },
            "messages.0.content.0",
            "not fetched",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
                    }
                ]
            },
            "messages.0.content.0",
            "no readable PNG",
        ),
        ({"messages": [{"role": "user", "content": [picture((0, 0, 0), "GIF")]}]}, "messages.0.content.0", "readable"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    client: httpx.AsyncClient, policy: FakePolicy, change: dict[str, Any], param: str, words: str
) -> None:
    answer = await client.post("/v1/chat/completions", json={**HELLO, **change})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert not policy.requests


async def test_a_picture_that_claims_to_be_huge_is_refused_before_it_is_unpacked() -> None:
    Image.new("1", (9000, 9000)).save(file := io.BytesIO(), "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    with pytest.raises(ChatRequestError, match="pixels"):
        read_request({"model": "tiny", "messages": [message]}).policy_requests("r", 5)


@pytest.mark.parametrize("text", ["\N{SNOWMAN}", "====", "iVBORw0KGgo="])
async def test_what_is_no_picture_is_refused(client: httpx.AsyncClient, text: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part]}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("The image is no readable")


async def test_bodies_that_are_no_request(client: httpx.AsyncClient) -> None:
    for body in (b"{", b"[]", b"[" * 100_000, b"\xff", b" " * (MAX_BODY_BYTES + 1)):
        answer = await client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("The body")


async def test_the_key_is_needed_and_another_model_is_unknown(client: httpx.AsyncClient) -> None:
    for header in ("", "Bearer wrong", "Bearer sécret", f"Basic {KEY}"):
        headers = {"Authorization": header.encode()}
        assert (await client.post("/v1/chat/completions", json=HELLO, headers=headers)).status_code == 401
        assert (await client.get("/v1/models", headers=headers)).status_code == 401
        assert (await client.get("/health", headers=headers)).status_code == 200
    assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["tiny"]
    other = await client.post("/v1/chat/completions", json={**HELLO, "model": "gpt"})
    assert other.status_code == 404
    assert "there is 'tiny'" in other.json()["error"]["message"]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (RequestRejected("there is no image"), 400, None),
        (PromptTooLongError("the prompt is too long"), 400, "context_length_exceeded"),
        (PolicyUnavailableError("no worker came up"), 503, None),
    ],
)
async def test_failures_of_the_policy_have_a_status(
    client: httpx.AsyncClient, policy: FakePolicy, failure: Exception, status: int, code: str | None
) -> None:
    policy.failure = failure
    answer = await client.post("/v1/chat/completions", json=HELLO)
    assert answer.status_code == status
    assert (answer.json()["error"]["message"], answer.json()["error"]["code"]) == (str(failure), code)
    assert is_prompt_overflow(answer.status_code, answer.text) is (code is not None)


async def test_a_choice_that_fails_ends_the_generation_of_the_others(tmp_path: Path) -> None:
    class ThirdFailsPolicy(FakePolicy):
        async def complete(self, request: PolicyRequest) -> Completion:
            if len(self.requests) == 2:
                raise PolicyUnavailableError("5 attempts failed")
            return await super().complete(request)

    policy = ThirdFailsPolicy()
    policy.gate = asyncio.Event()
    transport = httpx.ASGITransport(build_chat_app(policy, settings(tmp_path), KEY, text_of))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://agent", headers={"Authorization": f"Bearer {KEY}"}
    ) as client:
        answer = await client.post("/v1/chat/completions", json={**HELLO, "n": 3})
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "5 attempts failed")
    assert policy.cancelled == 2


async def test_a_caller_that_goes_away_ends_all_its_generations(policy: FakePolicy, tmp_path: Path) -> None:
    policy.gate = asyncio.Event()
    application = build_chat_app(policy, settings(tmp_path), KEY, text_of)
    body = b'{"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "n": 3}'
    arriving: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    arriving.put_nowait({"type": "http.request", "body": body, "more_body": False})
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {KEY}".encode())],
    }

    async def send(_message: Any) -> None:
        raise AssertionError("nobody listens any more")

    call = asyncio.ensure_future(application(scope, arriving.get, send))
    async with asyncio.timeout(10):
        await policy.third.wait()
        arriving.put_nowait({"type": "http.disconnect"})
        with pytest.raises(asyncio.CancelledError):
            await call
    assert policy.cancelled == 3


def test_the_key_file_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    api = settings(tmp_path)
    key = api.read_key()
    assert len(key) >= 32
    assert api.read_key() == key
    assert stat.S_IMODE(api.key_file.stat().st_mode) == 0o600
    monkeypatch.setenv(KEY_VARIABLE, "given")
    assert api.read_key() == "given"
    monkeypatch.delenv(KEY_VARIABLE)
    api.key_file.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        api.read_key()


def test_an_address_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with settings(tmp_path, port=0).bind() as taken:
        assert taken.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match="choose another --port"):
            settings(tmp_path, port=taken.getsockname()[1]).bind()


def test_serve_names_a_bad_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setattr("dart_agent.inference.settings.WorkerSettings.check", lambda self: None)
    (tmp_path / "key").mkdir()
    result = CliRunner().invoke(app, ["serve", "model", "--key-file", str(tmp_path / "key")])
    assert result.exit_code == 2
    assert "key file" in result.output


def test_serve_puts_the_chat_api_in_front_of_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setattr("dart_agent.inference.settings.WorkerSettings.check", lambda self: None)
    served: list[ChatApiSettings | None] = []

    async def record(config: InferenceConfig) -> None:
        served.append(config.chat)

    monkeypatch.setattr("dart_agent.inference.component.run_inference", record)
    key_file = tmp_path / "agent.key"
    command = ["serve", str(tmp_path / "tiny"), "--port", "0", "--key-file", str(key_file)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert served == [ChatApiSettings(port=0, key_file=key_file, model_name="tiny", max_tokens=1024)]
