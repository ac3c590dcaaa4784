"""The head of a served model, with the little that it keeps between requests.

Role: `AskedHead` answers from the state of a pointer and the features of its image, and holds each answer until it is fetched. Rule: both
stores are bounded; what was computed from an image is forgotten with the weights that computed it. Imports no vLLM. Non-goals: finding
states and features in an engine (`dart_agent.grounding.serving.worker`).
Axes: M visual tokens of one image, P parts of a cell, D hidden size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from dart_agent.grounding.head import ActionHead

ASKS = "dart_pointer"
"""Key of `SamplingParams.extra_args`: the name under which a request's answer is fetched."""
ATTACH, TAKE = "dart_attach_pointer", "dart_take_answer"
"""What the engine calls in its workers: methods of `dart_agent.grounding.serving.worker.PointerWorker`."""
MAX_IMAGES = 16
"""Images whose context is kept; at 2,000 visual tokens of 4,096 numbers, 32 MB each."""
MAX_ANSWERS = 1024
"""Answers that are kept for whoever asked, who may have gone; at 2,000 visual tokens of 4 x 4 parts, 140 KB each."""

FetchedAnswer = tuple[int, int, int, bytes, bytes]
"""Columns and rows of the image's cells, parts per side of a cell, and as little-endian float32 the logits [M] and [M, P]; the last are
empty where a cell has one part."""


class AskedHead:
    """Answers, kept by the name of the request.

    Args:
        head: The head, in evaluation mode.
    """

    def __init__(self, head: ActionHead) -> None:
        self._head = head
        self._contexts: OrderedDict[str, Tensor] = OrderedDict()
        self._answers: OrderedDict[str, FetchedAnswer] = OrderedDict()

    def forget_images(self) -> None:
        """Forget what was computed from images: the weights are others now."""
        self._contexts.clear()

    def answer(
        self, name: str, image: str, grid: tuple[int, int], features: Callable[[], Tensor], pointer_D: Tensor
    ) -> None:
        """Evaluate the head, and keep its answer.

        Args:
            name: The answer is fetched by it.
            image: Identity of the image.
            grid: (columns, rows) of its visual tokens.
            features: Gives the visual features as they enter the language model, [M, D]; called where no context of the image is kept.
            pointer_D: Final hidden state of the pointer token.
        """
        head = self._head
        dtype = head.layer_norm.weight.dtype
        with torch.inference_mode():
            context_MD = self._contexts.get(image)
            if context_MD is None:
                context_MD = self._contexts[image] = head.context(features().to(dtype))
            self._contexts.move_to_end(image)
            pointer_1D = pointer_D.to(dtype)[None]
            logits_M = head.attend(context_MD, pointer_1D)[0]
            parts = b""
            if head.offset is not None:
                parts = _packed(head.offset_logits(context_MD, pointer_1D.expand(len(context_MD), -1)))
        while len(self._contexts) > MAX_IMAGES:
            self._contexts.popitem(last=False)
        self._answers[name] = (*grid, head.offset_parts, _packed(logits_M), parts)
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def take(self, name: str) -> FetchedAnswer | None:
        """Fetch an answer.

        Args:
            name: Of the request.

        Returns:
            The answer, which is not kept any longer; None where there is none.
        """
        return self._answers.pop(name, None)


def _packed(logits: Tensor) -> bytes:
    return logits.float().cpu().contiguous().numpy().astype("<f4").tobytes()
