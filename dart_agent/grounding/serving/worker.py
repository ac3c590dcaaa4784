"""What a vLLM worker process does for the head: find the state and the image of each request that asks it.

Role: `PointerWorker` is vLLM's `worker_extension_cls`; the engine calls its methods in every worker (`collective_rpc`). Rule: a question is
a request of its own whose prompt ends with the pointer token. vLLM always computes the last token of a prompt, because it samples from
its state; so that state is there whatever prefix caching skipped and however the prompt was divided (chunked prefill), in any batch. The
features of the image are not taken from the rows of the batch, which prefix caching may skip: they are the encoder's output, from vLLM's
cache of it or computed again from the request's own pixels. Non-goals: the head's arithmetic (`asked_head`), questions
(`dart_agent.inference.engine.pointing`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from dart_agent.grounding.serving.asked_head import ASKS, AskedHead, FetchedAnswer


class PointerWorker:
    """Methods that vLLM adds to its worker class."""

    def dart_attach_pointer(self) -> None:
        """Answer questions from now on. Raises RuntimeError where this vLLM has another model runner."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if not hasattr(runner, "input_batch") or not hasattr(runner, "encoder_cache"):
            raise RuntimeError(
                "the action head needs vLLM's first model runner: start the worker with VLLM_USE_V2_MODEL_RUNNER=0"
            )
        model = runner.get_model()
        rows = AskedRows(runner, model, AskedHead(model.multi_patch_pointer_head))
        model.on_states, model.on_load = rows.answer, rows.head.forget_images
        self.dart_asked_rows = rows

    def dart_take_answer(self, name: str) -> FetchedAnswer | None:
        """Fetch the answer to a request by its name."""
        return self.dart_asked_rows.head.take(name)


class AskedRows:
    """The rows of batches that are questions.

    Args:
        runner: vLLM's model runner.
        model: Its model.
        head: Its head.
    """

    def __init__(self, runner: Any, model: Any, head: AskedHead) -> None:
        self.head = head
        self._runner = runner
        self._model = model

    def answer(self, states_RD: Tensor) -> None:
        """Answer the questions whose prompt ends in this batch.

        Args:
            states_RD: Final hidden states of the last scheduled token of each request.
        """
        batch = self._runner.input_batch
        if len(states_RD) != batch.num_reqs:
            return  # a run for memory or shapes, without requests
        starts = self._runner.query_start_loc.np
        for row, request_id in enumerate(batch.req_ids[: batch.num_reqs]):
            request = self._runner.requests[request_id]
            arguments = request.sampling_params.extra_args if request.sampling_params else None
            if not arguments or ASKS not in arguments:
                continue
            scheduled = int(starts[row + 1] - starts[row])
            if int(batch.num_computed_tokens_cpu[row]) + scheduled != request.num_prompt_tokens:
                continue
            (image,) = request.mm_features
            self.head.answer(
                str(arguments[ASKS]),
                str(image.identifier),
                self._grid(image),
                partial(self._features, image),
                states_RD[row],
            )

    def _grid(self, image: Any) -> tuple[int, int]:
        """Columns and rows of the image's visual tokens."""
        merge = int(self._model.config.vision_config.spatial_merge_size)
        _, height, width = (int(size) for size in image.data["image_grid_thw"].data.reshape(-1))
        return width // merge, height // merge

    def _features(self, image: Any) -> Tensor:
        """The image's visual features as they enter the language model; behind them, Qwen3-VL's encoder gives those of other layers."""
        output = self._runner.encoder_cache.get(image.identifier)
        if output is None:
            from vllm.multimodal.utils import group_and_batch_mm_kwargs

            ((_, _, inputs),) = group_and_batch_mm_kwargs(
                [(image.modality, image.data)], device=self._runner.device, pin_memory=False
            )
            (output,) = self._model.embed_multimodal(**inputs)
        features: Tensor = output[:, : self._model.config.get_text_config().hidden_size]
        return features
