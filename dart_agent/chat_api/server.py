"""The chat API's HTTP server: OpenAI's routes in front of a `Policy`.

Role: `build_chat_app` (routes, key, errors in OpenAI's form) and `serve_chat`. Rule: loopback unless told otherwise; every route but
/health needs the key; a caller that goes away ends its generation, and so does a choice that fails; a body has a limit. Non-goals:
streaming, embeddings, TLS.

    GET  /health                  200 without a key
    GET  /v1/models               the one model
    POST /v1/chat/completions     `dart_agent.chat_api.protocol`
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from dart_agent.chat_api.prompt_overflow import CONTEXT_LENGTH_EXCEEDED
from dart_agent.chat_api.protocol import ChatRequestError, chat_answer, read_request
from dart_agent.client_disconnect import unless_disconnected
from dart_agent.errors import ConfigError, PolicyUnavailableError, PromptTooLongError, RequestRejected
from dart_agent.key_file import make_key_file
from dart_agent.strict_model import StrictModel
from dart_agent.types import Completion, Policy, PolicyRequest

logger = logging.getLogger(__name__)
MAX_BODY_BYTES = 64 * 2**20
KEY_VARIABLE = "DART_AGENT_API_KEY"


class ChatApiSettings(StrictModel):
    """Where the chat API listens, and how its model is called.

    port: 0 takes a free one. key_file: holds the API key; made with a new key where it is missing.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8100, ge=0, le=65535)
    key_file: Path
    model_name: str
    max_tokens: int = Field(ge=1)

    def bind(self) -> socket.socket:
        """Listen. Raises ConfigError where the address is taken or none of this machine's."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise ConfigError(
                f"the chat API cannot listen at {self.host}:{self.port}: {error.strerror}; choose another --port"
            ) from error

    def read_key(self) -> str:
        """The key of `DART_AGENT_API_KEY`, else of the file, which is made where it is missing (mode 0600). Raises ConfigError."""
        return os.environ.get(KEY_VARIABLE) or make_key_file(self.key_file)


def build_chat_app(policy: Policy, settings: ChatApiSettings, key: str, decode: Callable[[int], str]) -> Any:
    """The ASGI application. decode: text of one token id."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    expected = f"Bearer {key}".encode()

    def problem(status: int, sentence: str, kind: str, param: str | None = None, code: str | None = None) -> Any:
        error = {"message": sentence, "type": kind, "param": param, "code": code}
        return JSONResponse({"error": error}, status_code=status)

    def guarded(handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def handle(request: Any) -> Any:
            if not hmac.compare_digest(request.headers.get("authorization", "").encode(), expected):
                return problem(401, "The API key is missing or wrong.", "invalid_request_error", "api_key")
            try:
                return JSONResponse(await handler(request))
            except ChatRequestError as error:
                return problem(400, str(error), "invalid_request_error", error.param)
            except PromptTooLongError as error:
                return problem(400, str(error), "invalid_request_error", code=CONTEXT_LENGTH_EXCEEDED)
            except RequestRejected as error:
                return problem(400, str(error), "invalid_request_error")
            except _UnknownModelError as error:
                return problem(404, str(error), "invalid_request_error", "model")
            except PolicyUnavailableError as error:
                return problem(503, str(error), "server_error")

        return handle

    async def health(_request: Any) -> Any:
        return JSONResponse({"status": "ok"})

    async def models(_request: Any) -> Any:
        return {"object": "list", "data": [{"id": settings.model_name, "object": "model", "owned_by": "dart"}]}

    async def complete(request: Any) -> Any:
        body = await _read_json(request)
        asked = read_request(body)
        if asked.model != settings.model_name:
            raise _UnknownModelError(f"There is no model {asked.model!r} here; there is {settings.model_name!r}.")
        answer_id = f"chatcmpl-{uuid.uuid4().hex}"
        requests = await asyncio.to_thread(asked.policy_requests, answer_id, settings.max_tokens)
        sampled = asyncio.ensure_future(_complete_all(policy, requests))
        completions = await unless_disconnected(request, sampled)
        return chat_answer(asked, completions, answer_id, decode)

    return Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/v1/models", guarded(models), methods=["GET"]),
            Route("/v1/chat/completions", guarded(complete), methods=["POST"]),
        ]
    )


async def _complete_all(policy: Policy, requests: Sequence[PolicyRequest]) -> list[Completion]:
    """The answers to all choices. The first one that fails ends the others, because none of them is returned; its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(policy.complete(one)) for one in requests]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


class _UnknownModelError(Exception):
    """The request names another model than the one that is served."""


async def _read_json(request: Any) -> Any:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ChatRequestError(f"The body has more than {MAX_BODY_BYTES} bytes.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ChatRequestError(f"The body is no JSON: {error}") from error


async def serve_chat(policy: Policy, settings: ChatApiSettings, listener: socket.socket, model: str) -> None:
    """Serve at `listener` until cancelled. model: the checkpoint, for the text of single tokens."""
    import uvicorn

    decode = await asyncio.to_thread(_token_decoder, model)

    class Server(uvicorn.Server):
        """Signals are the component's."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    app = build_chat_app(policy, settings, settings.read_key(), decode)
    server = Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    host, port = listener.getsockname()[:2]
    logger.info("chat API of %s at http://%s:%d/v1", settings.model_name, host, port)
    try:
        await server.serve(sockets=[listener])
    finally:
        listener.close()


def _token_decoder(model: str) -> Callable[[int], str]:
    from transformers import AutoTokenizer

    from dart_agent.inference.checkpoint_files import resolve_checkpoint

    tokenizer = AutoTokenizer.from_pretrained(resolve_checkpoint(model))
    return lambda token: str(tokenizer.decode([token]))
