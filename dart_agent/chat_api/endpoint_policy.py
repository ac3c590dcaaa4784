"""Any OpenAI-compatible endpoint as the policy, and others by their dialect.

Role: `EndpointPolicy` is a `Policy` that asks `POST {base_url}/chat/completions`, or another API in its `ApiDialect`. Rule: pictures go as
PNG data URLs; the key comes from the environment variable that the settings name, is sent in a header, and appears in no message; failures,
and replies that are no answer, are tried again as `decisions.retries` says. Completions have neither token ids nor log-probs, which marks
every step of the trajectory: such a step is never trained on. Non-goals: weights and versions of the endpoint, which nobody here knows;
evaluation without the agent (`dart_envs.evaluation`).
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import uuid
from types import TracebackType
from typing import Any, Self

import httpx
from pydantic import Field, field_validator

from dart_agent.chat_api.api_dialect import ApiDialect
from dart_agent.chat_api.prompt_overflow import is_prompt_overflow
from dart_agent.errors import ConfigError, PolicyUnavailableError, PromptTooLongError, RequestRejected, WorkerError
from dart_agent.inference.decisions import retries
from dart_agent.inference.decisions.retries import RequestFailure, Retry, RetrySettings
from dart_agent.strict_model import StrictModel
from dart_agent.types import Completion, FinishReason, PolicyRequest
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.observations.transforms import encode_png
from dart_envs.types import RgbImage
from dart_server.wire import Clock
from dart_server.wire.guest_answers import JsonLimit, parse_json

_BUSY_STATUS = frozenset({429, 503, 529})
"""529: Anthropic's, overloaded."""
_RETRYABLE_STATUS = frozenset({408, 409, 425, 500, 502, 504})
_MAX_DETAIL = 300
_ANSWER_LIMIT = JsonLimit(32 * 1024**2, depth=64, values=200_000)
"""Of a reply, which an endpoint can fill with anything. Those of the APIs have less than ten levels."""


class EndpointSettings(StrictModel):
    """Where the model is, and how it is asked.

    base_url: such as `https://host/v1`. model: its name there. api_key_variable: NAME of the environment variable that holds the key;
    None: no key is sent. deadline_s: for all attempts of one request.
    """

    base_url: str
    model: str = Field(min_length=1)
    api_key_variable: str | None = "OPENAI_API_KEY"
    attempt_timeout_s: float = Field(default=120.0, gt=0)
    deadline_s: float = Field(default=600.0, gt=0)
    max_attempts: int = Field(default=5, ge=1)

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or "@" in value:
            raise ValueError("give an address like https://host/v1, without a user name or key in it")
        return value.rstrip("/")

    def read_key(self) -> str | None:
        """The key. Raises ConfigError when the variable is not set."""
        if self.api_key_variable is None:
            return None
        key = os.environ.get(self.api_key_variable)
        if not key:
            raise ConfigError(
                f"the environment variable {self.api_key_variable} is not set: put the endpoint's key there; for an endpoint "
                'without keys leave --api-key-variable out, and write api_key_variable = "none" in a recipe'
            )
        return key


class EndpointPolicy:
    """A policy without log-probs. `async with EndpointPolicy(settings)` closes its connections.

    transport: instead of the network, in tests. chance: of the retries' jitter. dialect: of another API than chat completions. Raises
    ConfigError when the key is not there.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        chance: random.Random | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        dialect: ApiDialect | None = None,
    ) -> None:
        self._settings = settings
        self._dialect = dialect
        self._clock = clock
        self._chance = chance or random.Random()
        self._key = settings.read_key()
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        if dialect is not None:
            headers = dict(dialect.headers(self._key))
        self._http = httpx.AsyncClient(headers=headers, timeout=settings.attempt_timeout_s, transport=transport)
        self._retry = RetrySettings(
            deadline_s=settings.deadline_s,
            attempt_timeout_s=settings.attempt_timeout_s,
            max_attempts=settings.max_attempts,
            base_delay_s=1.0,
            max_delay_s=30.0,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def complete(self, request: PolicyRequest) -> Completion:
        """One answer.

        Raises PromptTooLongError when the prompt is longer than the model takes, RequestRejected when the endpoint refuses the request for
        another reason, PolicyUnavailableError when it gives no answer.
        """
        write = self._body if self._dialect is None else self._dialect.body
        body = await asyncio.to_thread(write, request)
        # The same for all attempts: an endpoint that knows this header answers a repeated request once.
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        began_s = self._clock.monotonic()
        failed = 0
        while True:
            try:
                return await self._attempt(body, headers)
            except WorkerError as error:
                failure, said = error.failure, str(error)
            failed += failure is not RequestFailure.BUSY
            elapsed_s = self._clock.monotonic() - began_s
            decision = retries.decide(failure, failed, elapsed_s, self._retry, self._chance.random())
            if not isinstance(decision, Retry):
                raise PolicyUnavailableError(f"{self._settings.base_url}: {decision.reason}; the last failure: {said}")
            await self._clock.sleep(decision.delay_s)

    async def _attempt(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        url = f"{self._settings.base_url}/{'chat/completions' if self._dialect is None else self._dialect.path}"
        try:
            reply = await self._http.post(url, json=body, headers=headers)
        except httpx.TimeoutException as error:
            raise WorkerError(f"no answer in time ({type(error).__name__})", RequestFailure.TIMEOUT) from None
        except httpx.HTTPError as error:
            raise WorkerError(self._without_key(f"{type(error).__name__}: {error}")) from None
        if reply.status_code in _BUSY_STATUS:
            raise WorkerError(f"status {reply.status_code}", RequestFailure.BUSY)
        if reply.status_code in _RETRYABLE_STATUS:
            raise WorkerError(f"status {reply.status_code}", RequestFailure.ENGINE)
        if not reply.is_success:
            detail = self._without_key(reply.text)[:_MAX_DETAIL]
            refused = PromptTooLongError if is_prompt_overflow(reply.status_code, reply.text) else RequestRejected
            raise refused(f"{self._settings.base_url} refused (status {reply.status_code}): {detail}")
        if self._dialect is not None:
            return self._read(self._dialect, body, reply)
        try:
            answer = parse_json(reply.content, _ANSWER_LIMIT)
            choice = answer["choices"][0]
            text = str(choice["message"].get("content") or "")  # a model that refuses, or is filtered, may say nothing
            reason = choice.get("finish_reason")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            detail = self._without_key(reply.text)[:_MAX_DETAIL]
            raise WorkerError(f"its answer is no chat completion: {detail}", RequestFailure.ENGINE) from None
        return Completion(
            text=text,
            prompt_ids_P=(),
            token_ids_T=(),
            logprobs_T=(),
            version_spans=(),
            finish_reason=FinishReason.LENGTH if reason == "length" else FinishReason.STOP,
            worker=self._settings.model,
            counted_tokens=_counted_tokens(answer),
        )

    def _read(self, dialect: ApiDialect, body: dict[str, Any], reply: httpx.Response) -> Completion:
        try:
            return dialect.read(body, parse_json(reply.content, _ANSWER_LIMIT))
        except ValueError as error:
            detail = self._without_key(reply.text)[:_MAX_DETAIL]
            raise WorkerError(f"its answer is none of its API, {error}: {detail}", RequestFailure.ENGINE) from None

    def _body(self, request: PolicyRequest) -> dict[str, Any]:
        images = iter(request.images)
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": [
                {"role": message["role"], "content": _content(message["content"], images)}
                for message in request.messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        return body

    def _without_key(self, text: str) -> str:
        return text if not self._key else text.replace(self._key, "***")


def _counted_tokens(answer: dict[str, Any]) -> int | None:
    """Sampled tokens of a chat completion, as the endpoint counts them; None where it does not."""
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens >= 0 else None


def _content(content: Any, images: Any) -> Any:
    if isinstance(content, str):
        return content
    parts = [_image_part(next(images)) if part["type"] == "image" else dict(part) for part in content]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _image_part(image: RgbImage) -> dict[str, Any]:
    png = base64.b64encode(encode_png(image)).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
