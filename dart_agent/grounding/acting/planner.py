"""The backbone of a grounding model as a planner, with transformers in this process.

Role: `TransformersPlanner` is a `Policy` that samples token by token. Rule: prompts continue the exact ids of earlier turns, as in the
inference workers (`dart_agent.prompts.exact_prefix`); log-probs are those of the distribution that was drawn from, at temperature 0
those of temperature 1. One answer at a time. Non-goals: throughput (`dart_agent.inference`), new weights
(`dart_agent.grounding.acting.following`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dart_agent.errors import ContextExceededError
from dart_agent.grounding.acting.pointer import request_seed
from dart_agent.grounding.model import GroundingModel
from dart_agent.prompts.chat_template import render_chat
from dart_agent.prompts.exact_prefix import prompt_ids
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import Completion, FinishReason, PolicyRequest, SamplingParams, VersionSpan

if TYPE_CHECKING:
    from torch import Generator, Tensor

WORKER = "transformers"
_IMAGE, _END = "<|image_pad|>", "<|im_end|>"


class TransformersPlanner:
    """Writes answers.

    Args:
        model: The model, in evaluation mode.
        version: Policy version of its weights.
        max_context: Most tokens of prompt and answer together; None: as many as the model has positions.
    """

    def __init__(self, model: GroundingModel, version: int = 0, max_context: int | None = None) -> None:
        self._model = model
        self._version = version
        positions = int(model.backbone.config.text_config.max_position_embeddings)
        self._max_context = positions if max_context is None else max_context
        self._one_at_a_time = threading.Lock()

    async def complete(self, request: PolicyRequest) -> Completion:
        """Sample an answer. Raises ContextExceededError where the prompt leaves no room for one."""
        return await asyncio.to_thread(self._complete, request)

    def _complete(self, request: PolicyRequest) -> Completion:
        import torch

        tokenizer, sampling = self._model.tokenizer, request.sampling
        inputs, prompt = self._inputs(request)
        if len(prompt) + sampling.max_tokens > self._max_context:
            raise ContextExceededError(len(prompt), sampling.max_tokens, self._max_context)
        end = int(tokenizer.convert_tokens_to_ids(_END))
        suppressed = suppressed_token_ids(self._model.backbone.config)
        generator = torch.Generator(self._model.device).manual_seed(request_seed(request))
        ids: list[int] = []
        logprobs: list[float] = []
        stopped = False
        with self._one_at_a_time, torch.inference_mode():
            output = self._model.backbone(**inputs, use_cache=True)
            position = int(inputs["position_ids"].max())
            while not stopped and len(ids) < sampling.max_tokens:
                if ids:
                    position += 1
                    output = self._model.backbone(
                        input_ids=torch.tensor([ids[-1:]], device=self._model.device),
                        position_ids=torch.full((3, 1, 1), position, device=self._model.device),
                        past_key_values=output.past_key_values,
                        use_cache=True,
                    )
                token, logprob = draw_token(output.logits[0, -1], sampling, generator, suppressed)
                ids.append(token)
                logprobs.append(logprob)
                stopped = token == end or any(stop in tokenizer.decode(ids) for stop in sampling.stop)
        text = str(tokenizer.decode(ids[:-1] if ids[-1] == end else ids))
        for stop in sampling.stop:
            text = text.partition(stop)[0]
        return Completion(
            text=text,
            prompt_ids_P=tuple(prompt),
            token_ids_T=tuple(ids),
            logprobs_T=tuple(logprobs),
            version_spans=(VersionSpan(self._version, 0, len(ids)),),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            worker=WORKER,
        )

    def _inputs(self, request: PolicyRequest) -> tuple[dict[str, Any], list[int]]:
        """The tensors of the prompt, and its ids with expanded images."""
        import torch

        processor, backbone = self._model.processor, self._model.backbone
        image_id = int(backbone.config.image_token_id)
        collapsed = prompt_ids(
            request.messages,
            request.prefix_ids_P,
            request.prefix_messages,
            render=partial(render_chat, processor),
            tokenize=partial(processor.tokenizer.encode, add_special_tokens=False),
            image_token_id=image_id,
        )
        features: dict[str, Tensor] = {}
        cells: list[int] = []
        if request.images:
            features = dict(processor.image_processor(images=list(request.images), return_tensors="pt"))
            cells = (features["image_grid_thw"].prod(dim=1) // processor.image_processor.merge_size**2).tolist()
        ids: list[int] = []
        left = iter(cells)
        for token in collapsed:
            ids += [token] * (next(left) if token == image_id else 1)
        input_ids = torch.tensor([ids])
        positions_31P, _ = backbone.model.get_rope_index(
            input_ids,
            image_grid_thw=features.get("image_grid_thw"),
            attention_mask=torch.ones_like(input_ids),
            mm_token_type_ids=(input_ids == image_id).to(torch.int32),
        )
        tensors = {"input_ids": input_ids, "position_ids": positions_31P, **features}
        return {name: tensor.to(self._model.device) for name, tensor in tensors.items()}, ids


def draw_token(
    logits_V: Tensor, sampling: SamplingParams, generator: Generator, suppressed: Sequence[int] = ()
) -> tuple[int, float]:
    """Draw a token.

    Args:
        logits_V: Logits over the vocabulary.
        sampling: Temperature and top_p.
        generator: Source of randomness.
        suppressed: Tokens that are never drawn (`dart_agent.prompts.suppressed_tokens`).

    Returns:
        The token, and its log-prob in nats.
    """
    import torch

    scaled_V = logits_V.float() / (sampling.temperature or 1.0)
    scaled_V[list(suppressed)] = -torch.inf
    log_probs_V = torch.log_softmax(scaled_V, dim=-1)
    if not sampling.temperature:
        token = int(log_probs_V.argmax())
        return token, float(log_probs_V[token])
    if sampling.top_p < 1:
        ordered_V, places_V = log_probs_V.exp().sort(descending=True)
        beyond_V = ordered_V.cumsum(0) - ordered_V >= sampling.top_p
        log_probs_V = log_probs_V.index_fill(0, places_V[beyond_V], -torch.inf)
        log_probs_V = torch.log_softmax(log_probs_V, dim=-1)
    token = int(torch.multinomial(log_probs_V.exp(), 1, generator=generator))
    return token, float(log_probs_V[token])
