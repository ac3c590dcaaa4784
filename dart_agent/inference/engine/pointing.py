"""Questions to the action head of the engine's model.

Role: `PointingEngine` turns each target into a request of one token whose prompt ends with the pointer token, and fetches what the head
said in the workers. Rule: images carry their content hash and the caller's salt, so that questions about one image compute it once, and
never share it with other weights. Non-goals: which request in a batch is a question (`dart_agent.grounding.serving.worker`).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_agent.errors import ConfigError, ContextExceededError, RequestRejected
from dart_agent.grounding.model import head_settings
from dart_agent.grounding.packing import pointing_ids
from dart_agent.grounding.serving.asked_head import ASKS, ATTACH, TAKE
from dart_agent.inference.engine.rendering import RENDERS, image_name, lost_images
from dart_agent.inference.pointer_wire import PointRequest, ServedLogits


@dataclass(frozen=True, slots=True)
class _Prompted:
    processor: Any
    system: str


class PointingEngine:
    """Asks one engine.

    Args:
        llm: vLLM's engine.
        processor: Its Hugging Face processor.
        checkpoint: Directory of its model.
    """

    def __init__(self, llm: Any, processor: Any, checkpoint: Path) -> None:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        self._llm = llm
        self._prompted = _Prompted(processor, str(head_settings(config)["system"]))
        self._attached = False
        self._attaching = asyncio.Lock()

    async def ask(self, asked: PointRequest, *, prefix_salt: str) -> tuple[ServedLogits, ...]:
        """The head's logits for each target.

        Raises RequestRejected for a question that can never be answered, and anything else when the engine failed.
        """
        async with self._attaching:
            if not self._attached:
                await self._llm.collective_rpc(ATTACH)
                self._attached = True
        image = image_name(asked.image, asked.image_sha256, prefix_salt)
        questions = (self._ask_one(asked, number, image, prefix_salt) for number in range(len(asked.instructions)))
        found: list[ServedLogits] = []
        for outcome in await asyncio.gather(*questions, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found.append(outcome)
        return tuple(found)

    async def _ask_one(self, asked: PointRequest, number: int, image: str, prefix_salt: str) -> ServedLogits:
        for _ in range(RENDERS):
            final = await self._ask_once(asked, number, image, prefix_salt)
            if not lost_images(final):
                break
        name = _name(asked, number)
        answers = await self._llm.collective_rpc(TAKE, args=(name,))
        if not answers or answers[0] is None:
            raise RuntimeError(f"the action head gave no answer to request {name}")
        return ServedLogits.of_bytes(*answers[0])

    async def _ask_once(self, asked: PointRequest, number: int, image: str, prefix_salt: str) -> Any:
        """vLLM's last output for a question; None where there is none."""
        from PIL import Image
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError

        name, final = _name(asked, number), None
        try:
            prompt: dict[str, Any] = {
                "prompt_token_ids": pointing_ids(self._prompted, asked.instructions[number]),
                "multi_modal_data": {"image": [Image.fromarray(asked.image)]},
                "multi_modal_uuids": {"image": [image]},
            }
            if prefix_salt:
                prompt["cache_salt"] = prefix_salt
            (rendered,) = await self._llm.renderer.render_cmpl_async([prompt])
            tokens, context = len(rendered["prompt_token_ids"]), int(self._llm.model_config.max_model_len)
            if tokens + 1 > context:
                raise ContextExceededError(tokens, 1, context)
            params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, extra_args={ASKS: name})
        except (ConfigError, ValueError, VLLMClientError) as error:
            raise RequestRejected(str(error)) from error
        try:
            async for output in self._llm.generate(rendered, params, name):
                final = output
        except VLLMClientError as error:
            raise RequestRejected(str(error)) from error
        return final


def _name(asked: PointRequest, number: int) -> str:
    """The name of one question, and of its answer."""
    return f"{asked.request_id}@{number}"
