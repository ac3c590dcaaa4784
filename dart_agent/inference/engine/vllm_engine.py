"""vLLM behind the few calls that a worker needs.

Role: `VllmEngine`, an `EngineBackend`. Rule: the prompt is expanded once, by the engine, and its ids go back to the caller; what makes a
request impossible is found before it is queued, and everything later is the engine's failure, which another worker may not have.
Non-goals: versions, states and leases (`worker_engine`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dart_agent.errors import RequestRejected, WorkerError
from dart_agent.grounding.model import has_head
from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
from dart_agent.inference.compat import patch_torch_extras
from dart_agent.inference.engine.arguments import engine_arguments
from dart_agent.inference.engine.pointing import PointingEngine
from dart_agent.inference.engine.rendering import RENDERS, lost_images, render_request
from dart_agent.inference.engine.vllm_plugin import register
from dart_agent.inference.engine.worker_engine import EngineLoad
from dart_agent.inference.pointer_wire import PointRequest, ServedLogits
from dart_agent.inference.settings import WorkerSettings
from dart_agent.inference.weights.files import tensor_shapes
from dart_agent.prompts.chat_template import chat_template
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import Completion, FinishReason, PolicyRequest, VersionSpan

# vLLM spawns its engine, and the spawned process imports this module before it imports vLLM: mend here, for both.
patch_torch_extras()


class VllmEngine:
    """One AsyncLLM with integer policy versions."""

    def __init__(self, settings: WorkerSettings) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        model = resolve_checkpoint(settings.model)
        points = has_head(model)
        if points:
            # The head reads which request a row of a batch is from the first runner; the second keeps that to itself.
            os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
            register()
        _register_model_class(model)
        facts = read_checkpoint_info(model)
        arguments = engine_arguments(settings, model, facts.max_pixels, has_pointer=points)
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self._max_images = settings.max_images
        self._tokenizer = self._llm.get_tokenizer()
        self._processor = self._llm.renderer.get_mm_processor().info.get_hf_processor()
        chat_template(self._processor)
        self._suppressed_logit_bias = dict.fromkeys(suppressed_token_ids(self._llm.model_config.hf_config), -100.0)
        self._pointing = PointingEngine(self._llm, self._processor, model) if points else None
        self.checkpoint = model
        self.shapes = tensor_shapes(model)
        self.tied = facts.tied

    async def set_version(self, number: int) -> None:
        """Number the weights that it has."""
        await self._llm.update_weight_version(str(number))

    async def sample(self, request: PolicyRequest, *, prefix_salt: str) -> Completion:
        """Sample one response.

        Raises RequestRejected for a request that can never be answered, WorkerError for one that may be answered later.
        """
        for _ in range(RENDERS):
            final = await self._sample_once(request, prefix_salt)
            if not lost_images(final):
                return _completion(final)
        raise WorkerError(
            f"the engine had lost images of request {request.request_id}, also after they were sent again"
        )

    async def _sample_once(self, request: PolicyRequest, prefix_salt: str) -> Any:
        """vLLM's last output for a request."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError

        sampling = request.sampling
        try:
            prompt = await render_request(
                self._llm,
                self._processor,
                self._tokenizer,
                request,
                max_images=self._max_images,
                prefix_salt=prefix_salt,
            )
            params = SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=sampling.seed,
                stop=list(sampling.stop) or None,
                logprobs=0,
                logit_bias=self._suppressed_logit_bias or None,
            )
        except (ValueError, VLLMClientError) as error:
            raise RequestRejected(str(error)) from error
        final = None
        try:
            async for output in self._llm.generate(prompt, params, request.request_id):
                final = output
        except VLLMClientError as error:
            raise RequestRejected(str(error)) from error
        if final is None:
            raise RuntimeError(f"the engine ended request {request.request_id} without an answer")
        return final

    async def point(self, asked: PointRequest, *, prefix_salt: str) -> tuple[ServedLogits, ...]:
        """What the head says about targets. Raises RequestRejected where the model has none, or cannot be asked this."""
        if self._pointing is None:
            raise RequestRejected(
                f"the model in {self.checkpoint} has no action head: start the worker with one (see the page Grounding)"
            )
        return await self._pointing.ask(asked, prefix_salt=prefix_salt)

    async def pause(self, *, clear_cache: bool) -> None:
        """Let all requests stand still at the next token."""
        await self._llm.pause_generation(mode="keep", clear_cache=clear_cache)

    async def resume(self) -> None:
        """Let them go on."""
        await self._llm.resume_generation()

    async def load(self, path: Path, digest: str | None, number: int) -> None:
        """Replace all weights. Any failure leaves the engine unusable."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info={"path": str(path), "digest": digest}))
        await self._llm.finish_weight_update(str(number))

    async def check(self) -> None:
        """Raises what vLLM raises when this engine cannot be trusted any more."""
        await self._llm.check_health()

    def load_now(self) -> EngineLoad:
        """From vLLM's own gauges."""
        values = {"vllm:num_requests_waiting": 0.0, "vllm:kv_cache_usage_perc": 0.0}
        from prometheus_client import REGISTRY

        for family in REGISTRY.collect():
            if family.name in values:
                values[family.name] = sum(sample.value for sample in family.samples)
        return EngineLoad(int(values["vllm:num_requests_waiting"]), values["vllm:kv_cache_usage_perc"])

    def metrics(self) -> str:
        """Prometheus text of vLLM's metrics."""
        from prometheus_client import generate_latest

        return generate_latest().decode()

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
        cached_prompt_tokens=output.num_cached_tokens or 0,
        queue_s=_queued_s(output.metrics),
    )


def _queued_s(times: Any) -> float:
    """Seconds in which a request waited for room in the batch; 0 where vLLM does not tell."""
    if times is None or not times.scheduled_ts or not times.queued_ts:
        return 0.0
    return max(0.0, float(times.scheduled_ts - times.queued_ts))


def _register_model_class(model: Path) -> None:
    """Resolve the model's class here. vLLM would start a Python process for it: slower, and without the mended extras."""
    from vllm.model_executor.models.registry import ModelRegistry

    for name in json.loads((model / "config.json").read_text()).get("architectures", ()):
        entry = ModelRegistry.models.get(name)
        if entry is not None:
            ModelRegistry.register_model(name, entry.load_model_cls())
