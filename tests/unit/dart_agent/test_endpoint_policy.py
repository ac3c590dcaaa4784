"""An OpenAI-compatible endpoint as the policy: what is sent, what is tried again, and that its key stays secret."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from dart_agent.chat_api.endpoint_policy import EndpointPolicy, EndpointSettings
from dart_agent.errors import ConfigError, PolicyUnavailableError, PromptTooLongError, RequestRejected
from dart_agent.prompts.builder import preset
from dart_agent.rollouts.policy_factory import open_policy_factory
from dart_agent.rollouts.worker_config import WorkerConfig
from dart_agent.types import FinishReason
from tests.unit.dart_agent.fakes import FakeClock, request

SECRET = "sk-very-secret"
ANSWER = {"choices": [{"message": {"content": "Action: wait()"}, "finish_reason": "stop"}]}
SETTINGS = EndpointSettings(base_url="https://models.example/v1/", model="m", api_key_variable="TEST_ENDPOINT_KEY")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ENDPOINT_KEY", SECRET)


def policy(answer: Callable[[httpx.Request], httpx.Response], settings: EndpointSettings = SETTINGS) -> EndpointPolicy:
    return EndpointPolicy(settings, clock=FakeClock(), chance=random.Random(0), transport=httpx.MockTransport(answer))


async def test_a_request_goes_out_with_its_picture_and_key_and_comes_back_without_log_probs() -> None:
    seen: list[httpx.Request] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        seen.append(sent)
        return httpx.Response(200, json=ANSWER)

    async with policy(answer) as asked:
        completion = await asked.complete(request())
    (sent,) = seen
    assert str(sent.url) == "https://models.example/v1/chat/completions"
    assert sent.headers["Authorization"] == f"Bearer {SECRET}"
    body = json.loads(sent.content)
    image, text = body["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "Click OK"}
    assert (completion.text, completion.finish_reason) == ("Action: wait()", FinishReason.STOP)
    assert completion.token_ids_T == completion.logprobs_T == completion.version_spans == ()


async def test_failures_are_tried_again_with_the_same_key_of_the_request() -> None:
    replies = [
        httpx.Response(429),
        httpx.Response(500),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=ANSWER),
    ]
    seen: list[str] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        seen.append(sent.headers["Idempotency-Key"])
        return replies.pop(0)

    async with policy(answer) as asked:
        assert (await asked.complete(request())).text == "Action: wait()"
    assert len(seen) == 4
    assert len(set(seen)) == 1


DEEP = "[" * 3000 + "]" * 3000
NONSENSE = [
    "[" * 100_000,
    DEEP,
    f'{{"choices": [{{"message": {{"content": {DEEP}}}, "finish_reason": "stop"}}]}}',
    f'{{"choices": [{{"message": {{"content": {"[" * 100 + "]" * 100}}}, "finish_reason": "stop"}}]}}',
    '{"choices": {"0": 1}}',
    "1" * 5000,
    "null",
]


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
async def test_nonsense_is_one_failed_attempt(body: str) -> None:
    replies = [httpx.Response(200, text=body), httpx.Response(200, json=ANSWER)]
    async with policy(lambda sent: replies.pop(0)) as asked:
        assert (await asked.complete(request())).text == "Action: wait()"
    async with policy(lambda sent: httpx.Response(200, text=body)) as asked:
        with pytest.raises(PolicyUnavailableError, match="its answer is no chat completion"):
            await asked.complete(request())


async def test_half_of_a_surrogate_pair_does_not_reach_the_next_request() -> None:
    body = json.dumps({"choices": [{"message": {"content": "a\ud800"}, "finish_reason": "stop"}]})
    async with policy(lambda sent: httpx.Response(200, text=body)) as asked:
        assert (await asked.complete(request())).text == "a\N{REPLACEMENT CHARACTER}"


async def test_a_refusal_is_not_tried_again_and_silence_ends_with_a_reason() -> None:
    calls: list[httpx.Request] = []

    def refuse(sent: httpx.Request) -> httpx.Response:
        calls.append(sent)
        return httpx.Response(400, text="too many images")

    async with policy(refuse) as asked:
        with pytest.raises(RequestRejected, match="too many images"):
            await asked.complete(request())
    assert len(calls) == 1

    def hang(sent: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("late", request=sent)

    async with policy(hang) as asked:
        with pytest.raises(PolicyUnavailableError, match="5 attempts failed; the last failure: no answer in time"):
            await asked.complete(request())


def openai_error(message: str, **fields: object) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": None} | fields})


VLLM_TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, you requested 4200 tokens "
    "(4100 in the messages, 100 in the completion)."
)


@pytest.mark.parametrize(
    ("status", "body", "overflow"),
    [
        (400, openai_error("Reduce the length of the messages.", code="context_length_exceeded"), True),
        (400, openai_error(VLLM_TOO_LONG, type="BadRequestError", code=400), True),
        (400, json.dumps({"object": "error", "message": VLLM_TOO_LONG, "type": "BadRequestError", "code": 400}), True),
        (400, openai_error("The decoder prompt (length 5000) is longer than the maximum model length of 4096."), True),
        (400, openai_error("At most 2 image(s) may be provided in one prompt."), True),
        (400, openai_error("too long", type="exceed_context_size_error", code=400), True),
        (
            400,
            json.dumps({"type": "error", "error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
            True,
        ),
        (422, json.dumps({"detail": "The input is longer than the model's context length (4096 tokens)."}), True),
        (413, "<html>Request Entity Too Large</html>", True),
        (
            400,
            openai_error("max_tokens is too large: 32000. This model supports at most 16384 completion tokens"),
            False,
        ),
        (400, openai_error("invalid image", echo=VLLM_TOO_LONG), False),
        (400, openai_error("x" * 500 + VLLM_TOO_LONG), False),
        (400, "[" * 100_000, False),
        (401, openai_error(VLLM_TOO_LONG), False),
        (404, openai_error("The model `m` does not exist", code="model_not_found"), False),
    ],
)
async def test_a_prompt_that_grew_too_long_is_told_from_other_refusals(status: int, body: str, overflow: bool) -> None:
    async with policy(lambda sent: httpx.Response(status, text=body)) as asked:
        with pytest.raises(RequestRejected, match=f"refused \\(status {status}\\)") as refused:
            await asked.complete(request())
    assert isinstance(refused.value, PromptTooLongError) is overflow


@pytest.mark.parametrize(
    ("usage", "tokens"), [({"completion_tokens": 7}, 7), ({}, 0), (None, 0), ({"completion_tokens": "7"}, 0)]
)
async def test_the_tokens_of_an_answer_are_what_the_endpoint_counts(usage: object, tokens: int) -> None:
    async with policy(lambda sent: httpx.Response(200, json=ANSWER | {"usage": usage})) as asked:
        assert (await asked.complete(request())).sampled_tokens == tokens


async def test_the_key_appears_in_no_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def echo(sent: httpx.Request) -> httpx.Response:
        return httpx.Response(401, text=f"bad header {sent.headers['Authorization']}")

    async with policy(echo) as asked:
        with pytest.raises(RequestRejected) as refused:
            await asked.complete(request())
    assert SECRET not in str(refused.value)
    assert "***" in str(refused.value)
    assert SECRET not in caplog.text
    assert SECRET not in SETTINGS.model_dump_json()


def test_wrong_settings_are_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_ENDPOINT_KEY")
    with pytest.raises(ConfigError, match=r'TEST_ENDPOINT_KEY is not set.*api_key_variable = "none" in a recipe'):
        EndpointPolicy(SETTINGS)
    for url in ("models.example", "https://user:key@models.example/v1"):
        with pytest.raises(ValidationError, match="https://host/v1"):
            EndpointSettings(base_url=url, model="m")


async def test_a_rollout_worker_takes_it_by_its_settings(tmp_path: Path) -> None:
    places = {"socket": tmp_path / "s", "images": tmp_path / "i"}
    with pytest.raises(ValidationError, match="policy endpoint needs `endpoint`"):
        WorkerConfig(policy="endpoint", **places)
    config = WorkerConfig(policy="endpoint", endpoint=SETTINGS.model_dump(), **places)
    async with open_policy_factory("endpoint", preset("tiny"), None, endpoint=config.endpoint) as policies:
        assert isinstance(policies.make(None, None), EndpointPolicy)  # type: ignore[arg-type]
