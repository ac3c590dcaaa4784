"""The process of one inference worker: a vLLM engine behind four routes on a Unix socket.

Role: `python -m dart_agent.inference.engine.server --settings JSON --directory DIR --parent PID`. Chat messages and raw pixels in; token
ids, log-probs of the sampled distribution, policy versions and text out. Rule: the prompt is expanded once, by the engine, and its ids go
back to the caller; weights change only between two tokens, with every cache cleared, so that each token's log-prob can be
computed again from the weights of its version. The engine may not outlive its parent: a thread ends the whole process group.
Non-goals: routing, restarts (`dart_agent.inference.pool`).

vLLM's own OpenAI server is not used: its chat route returns no version spans, and its token route wants images that another
process has already expanded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from dart_agent.client_disconnect import unless_disconnected
from dart_agent.errors import RequestRejected, WeightUpdateError
from dart_agent.inference import wire
from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
from dart_agent.inference.compat import patch_torch_extras
from dart_agent.inference.process_group import kill_members, mark_group_leader
from dart_agent.inference.settings import KEY_NAME, SOCKET_NAME, PublishedWeights, WorkerSettings
from dart_agent.inference.weights.files import check_weights_match, tensor_shapes
from dart_agent.prompts.chat_template import chat_template, render_chat
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import Completion, FinishReason, PolicyRequest, VersionSpan

# vLLM spawns its engine, and the spawned process imports this module before it imports vLLM: mend here, for both.
patch_torch_extras()


class InferenceEngine:
    """One AsyncLLM with integer policy versions."""

    def __init__(self, settings: WorkerSettings) -> None:
        from PIL import Image
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._pil_image = Image
        model = resolve_checkpoint(settings.model)
        _register_model_class(model)
        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(model),
                dtype=settings.dtype,
                enforce_eager=settings.eager,
                max_model_len=settings.max_model_len,
                max_num_seqs=settings.max_num_seqs,
                max_num_batched_tokens=max(2048, settings.max_model_len),
                kv_cache_memory_bytes=None if settings.kv_cache_mib is None else settings.kv_cache_mib * 2**20,
                gpu_memory_utilization=settings.gpu_memory_fraction,
                tensor_parallel_size=settings.tensor_parallel,
                distributed_executor_backend="uni" if settings.tensor_parallel == 1 else "mp",
                limit_mm_per_prompt={"image": settings.max_images, "video": 0},
                mm_processor_cache_gb=0.1,
                logprobs_mode="processed_logprobs",
                weight_transfer_config={"backend": "dart_file"},
                seed=settings.seed,
                disable_log_stats=True,
            )
        )
        self._tokenizer = self._llm.get_tokenizer()
        self._processor = self._llm.renderer.get_mm_processor().info.get_hf_processor()
        chat_template(self._processor)
        self._suppressed_logit_bias = dict.fromkeys(suppressed_token_ids(self._llm.model_config.hf_config), -100.0)
        self._shapes = tensor_shapes(model)
        self._tied = read_checkpoint_info(model).tied
        self._swap = asyncio.Lock()
        self.broken = ""
        self.in_flight = 0
        self.version = 0

    async def start(self) -> None:
        """Number the weights of the start-up: version 0."""
        await self._llm.update_weight_version("0")

    async def generate(self, request: PolicyRequest) -> Completion:
        """Sample one response. Raises RequestRejected for a request that can never be answered."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError

        sampling = request.sampling
        if self.broken:
            raise RuntimeError(self.broken)
        self.in_flight += 1
        try:
            prompt = await self._render(request)
            params = SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=sampling.seed,
                stop=list(sampling.stop) or None,
                logprobs=0,
                logit_bias=self._suppressed_logit_bias or None,
            )
            final = None
            async for output in self._llm.generate(prompt, params, request.request_id):
                final = output
        except (ValueError, VLLMClientError) as error:
            raise RequestRejected(str(error)) from error
        finally:
            self.in_flight -= 1
        if final is None or self.broken:
            raise RuntimeError(self.broken or f"the engine ended request {request.request_id} without an answer")
        return _completion(final)

    async def _render(self, request: PolicyRequest) -> Any:
        text = render_chat(self._processor, request.messages)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        prompt: dict[str, Any] = {"prompt_token_ids": ids}
        if request.images:
            images = [self._pil_image.fromarray(image) for image in request.images]
            prompt["multi_modal_data"] = {"image": images}
        (rendered,) = await self._llm.renderer.render_cmpl_async([prompt])
        return rendered

    async def load(self, path: Path, version: int) -> dict[str, float]:
        """Swap the weights between two tokens; running requests go on under the new version. Idempotent. Returns seconds.

        Raises WeightUpdateError when the files do not fit: nothing was paused, the old weights serve on. Any other error leaves
        the engine broken.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        check_weights_match(path, self._shapes, tied=self._tied)
        async with self._swap:
            if version == self.version:
                return {"pause_s": 0.0, "load_s": 0.0}
            began_s = time.monotonic()
            await self._llm.pause_generation(mode="keep", clear_cache=True)
            paused_s = time.monotonic()
            try:
                await self._llm.start_weight_update()
                await self._llm.update_weights(WeightTransferUpdateRequest(update_info={"path": str(path)}))
                await self._llm.finish_weight_update(str(version))
                self.version = version
            except BaseException:  # a cancelled load is half-way, too; raised again
                self.broken = f"loading version {version} failed half-way"
                raise
            finally:
                loaded_s = time.monotonic()
                await self._llm.resume_generation()
        return {"pause_s": paused_s - began_s, "load_s": loaded_s - paused_s}

    async def check(self) -> None:
        """Raises RuntimeError, or what vLLM raises, when this engine cannot be trusted any more."""
        if self.broken:
            raise RuntimeError(self.broken)
        await self._llm.check_health()

    def close(self) -> None:
        """End the engine process."""
        self._llm.shutdown(timeout=2.0)


def _completion(output: Any) -> Completion:
    (answer,) = output.outputs
    ids = tuple(answer.token_ids)
    logprobs = tuple(float(step[token].logprob) for step, token in zip(answer.logprobs or [], ids, strict=True))
    spans = tuple(VersionSpan(int(span.version), span.start, span.end) for span in answer.weight_versions or ())
    return Completion(
        text=answer.text,
        prompt_ids_P=tuple(output.prompt_token_ids),
        token_ids_T=ids,
        logprobs_T=logprobs,
        version_spans=spans,
        finish_reason=FinishReason(answer.finish_reason or "abort"),
    )


def _register_model_class(model: Path) -> None:
    """Resolve the model's class here. vLLM would start a Python process for it: slower, and without the mended extras."""
    import json

    from vllm.model_executor.models.registry import ModelRegistry

    for name in json.loads((model / "config.json").read_text()).get("architectures", ()):
        entry = ModelRegistry.models.get(name)
        if entry is not None:
            ModelRegistry.register_model(name, entry.load_model_cls())


def build_app(engine: InferenceEngine, key: str) -> Any:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    expected = f"Bearer {key}"

    def problem(status: int, code: str, detail: str) -> Any:
        return JSONResponse({"error": code, "detail": detail}, status_code=status)

    def guarded(handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def handle(request: Any) -> Any:
            if not hmac.compare_digest(request.headers.get("authorization", ""), expected):
                return problem(401, "unauthenticated", "the key of this worker is missing or wrong")
            try:
                return JSONResponse(await handler(request))
            except (ValueError, RequestRejected) as error:
                return problem(400, "invalid", str(error))
            except WeightUpdateError as error:
                return problem(409, "weights", str(error))
            except Exception as error:  # noqa: BLE001 - every other failure of the engine means: use another worker
                return problem(500, "broken", f"{type(error).__name__}: {error}")

        return handle

    async def health(request: Any) -> Any:
        await engine.check()
        return {"ready": True, "version": engine.version, "in_flight": engine.in_flight, "pid": os.getpid()}

    async def generate(request: Any) -> Any:
        decoded = wire.decode_request(await request.body())
        task = asyncio.ensure_future(engine.generate(decoded))
        return wire.encode_completion(await unless_disconnected(request, task))

    async def weights(request: Any) -> Any:
        body = await request.json()
        # Shielded: a caller that goes away must not leave the engine paused.
        seconds = await asyncio.shield(asyncio.ensure_future(engine.load(Path(body["path"]), int(body["version"]))))
        return {"version": engine.version, **seconds}

    return Starlette(
        routes=[
            Route(wire.HEALTH_PATH, guarded(health), methods=["GET"]),
            Route(wire.GENERATE_PATH, guarded(generate), methods=["POST"]),
            Route(wire.WEIGHTS_PATH, guarded(weights), methods=["POST"]),
        ]
    )


@contextlib.asynccontextmanager
async def engine_context(settings: WorkerSettings) -> AsyncIterator[InferenceEngine]:
    """An engine that is ready, closed at the end."""
    engine = InferenceEngine(settings)
    try:
        await engine.start()
        yield engine
    finally:
        engine.close()


async def serve(settings: WorkerSettings, socket_path: Path, key: str, published: PublishedWeights | None) -> None:
    """Serve until SIGTERM or SIGINT; the socket appears once the weights of `published` are in."""
    import uvicorn

    async with engine_context(settings) as engine:
        if published is not None:
            await engine.load(published.path, published.version)
        config = uvicorn.Config(
            build_app(engine, key), uds=str(socket_path), log_level="warning", access_log=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        watcher = asyncio.ensure_future(_exit_when_broken(engine, server))
        await server.serve()
        watcher.cancel()
        if server.should_exit and engine.broken:
            raise SystemExit(f"this worker ends: {engine.broken}")


async def _exit_when_broken(engine: InferenceEngine, server: Any, poll_s: float = 1.0) -> None:
    """A worker that cannot answer any more ends itself; its supervisor starts a new one."""
    while True:
        await asyncio.sleep(poll_s)
        try:
            await engine.check()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not healthy
            engine.broken = engine.broken or f"{type(error).__name__}: {error}"
            server.should_exit = server.force_exit = True
            return


def exit_with_parent(parent: int, directory: Path, key: str, poll_s: float = 0.5) -> None:
    """End this process group as soon as the process `parent` that started it is gone, however it went; `directory` is removed too.

    A directory that holds another key belongs to a successor already and is left alone.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll_s)
        with contextlib.suppress(OSError):
            if (directory / KEY_NAME).read_text().strip() == key:
                shutil.rmtree(directory, ignore_errors=True)
        kill_members(os.getpgid(0), spare_trackers=True, spare=(os.getpid(),))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


def main() -> None:
    """Entry point of the worker process."""
    parser = argparse.ArgumentParser(description="One vLLM inference worker on a Unix socket.")
    parser.add_argument("--settings", required=True, help="WorkerSettings as JSON")
    parser.add_argument("--directory", required=True, type=Path, help="holds the file `key`; the socket is made in it")
    parser.add_argument(
        "--parent", required=True, type=int, help="process id of the launcher: this worker ends with it"
    )
    parser.add_argument("--weights", type=Path, help="directory of the weights to serve instead of the model's own")
    parser.add_argument("--version", type=int, help="policy version of --weights")
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    key = (directory / KEY_NAME).read_text().strip()
    exit_with_parent(arguments.parent, directory, key)
    mark_group_leader()
    os.umask(0o077)
    settings = WorkerSettings.model_validate_json(arguments.settings)
    published = None if arguments.weights is None else PublishedWeights(arguments.version, arguments.weights)
    asyncio.run(serve(settings, directory / SOCKET_NAME, key, published))


if __name__ == "__main__":
    main()
