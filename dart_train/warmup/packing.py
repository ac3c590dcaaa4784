"""One image, many questions, one sequence.

Role: `Packer.pack` arranges an image and several question-answer pairs so that every pair sees only the image and itself, at the
positions that it would have alone. Rule: log-probs of a packed answer equal those of the same prompt by itself; prompts are rendered by
`dart_agent.prompts.builder` and the model's own chat template. Non-goals: prompts with more than one image.
Axes: B images, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dart_agent.prompts.builder import PromptBuilder
from dart_agent.prompts.chat_template import render_chat
from dart_envs.types import Observation, RgbImage
from dart_train.warmup.queries import Query

if TYPE_CHECKING:
    from torch import Tensor

NO_LABEL = -100
_IMAGE = "<|image_pad|>"


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Packed sequences, right-padded.

    Attributes:
        input_ids_BT: Token ids, int64.
        labels_BT: The token to predict from the position before it, NO_LABEL elsewhere.
        position_ids_3BT: Positions along time, height and width.
        attention_mask_B1TT: True where a token may attend.
    """

    input_ids_BT: Tensor
    labels_BT: Tensor
    position_ids_3BT: Tensor
    attention_mask_B1TT: Tensor


class Packer:
    """Packs for one model, one prompt preset and one image size, which all images of a run have.

    Args:
        model: A transformers model.
        processor: Its processor.
        builder: Builds the prompts.
        grid_thw: Patches of an image along time, height and width.
    """

    def __init__(self, model: Any, processor: Any, builder: PromptBuilder, grid_thw: tuple[int, int, int]) -> None:
        self._tokenizer = processor.tokenizer
        self._processor = processor
        self._builder = builder
        self._end = self._encode(self._tokenizer.eos_token)
        cells = grid_thw[0] * grid_thw[1] * grid_thw[2] // processor.image_processor.merge_size**2
        self._before_image, after = self._render(Query("", (), "", None)).split(_IMAGE)
        shared = after[: after.index("<|vision_end|>") + len("<|vision_end|>")]
        self._after_image = shared
        self._prefix = self._encode(self._before_image) + self._encode(_IMAGE) * cells + self._encode(shared)
        self._prefix_positions_3P = _positions(model, self._prefix, grid_thw)
        self._suffixes: dict[tuple[str, tuple[str, ...]], list[int]] = {}

    def pack(self, queries_B: Sequence[Sequence[Query]]) -> PackedBatch:
        """Pack images with their questions.

        Args:
            queries_B: Queries per image.

        Returns:
            The packed sequences.
        """
        import torch

        rows = [self._row(queries) for queries in queries_B]
        width = max(len(ids) for ids, *_ in rows)
        ids_BT = np.zeros((len(rows), width), np.int64)
        labels_BT = np.full((len(rows), width), NO_LABEL, np.int64)
        positions_3BT = np.zeros((3, len(rows), width), np.int64)
        block_BT = np.full((len(rows), width), -1, np.int64)
        for index, (ids, labels, positions_3L, blocks) in enumerate(rows):
            ids_BT[index, : len(ids)] = ids
            labels_BT[index, : len(ids)] = labels
            positions_3BT[:, index, : len(ids)] = positions_3L
            block_BT[index, : len(ids)] = blocks
        block = torch.from_numpy(block_BT)
        same_block = (block[:, :, None] == block[:, None, :]) | (block[:, None, :] == 0)
        may_see = same_block & torch.ones(width, width, dtype=torch.bool).tril()
        return PackedBatch(
            torch.from_numpy(ids_BT), torch.from_numpy(labels_BT), torch.from_numpy(positions_3BT), may_see[:, None]
        )

    def answer_ids(self, query: Query) -> list[int]:
        """Tokenise the answer of a query, including its given head and the end of turn.

        Args:
            query: The query.

        Returns:
            Token ids.
        """
        given, learnt = query.answer[: query.given], query.answer[query.given :]
        return self._encode(given) + self._encode(learnt) + self._end

    def target_ids(self, query: Query) -> list[int]:
        """Tokenise the part of an answer that is learnt, including the end of turn.

        Args:
            query: The query.

        Returns:
            Token ids.
        """
        return self._encode(query.answer[query.given :]) + self._end

    def _row(self, queries: Sequence[Query]) -> tuple[list[int], list[int], np.ndarray, list[int]]:
        ids = list(self._prefix)
        labels = [NO_LABEL] * len(ids)
        blocks = [0] * len(ids)
        positions = [self._prefix_positions_3P]
        first = int(self._prefix_positions_3P.max()) + 1
        for number, query in enumerate(queries, 1):
            question = self._question(query)
            answer = self.answer_ids(query)
            ids += question + answer
            given = len(self._encode(query.answer[: query.given]))
            labels += [NO_LABEL] * (len(question) + given) + answer[given:]
            length = len(question) + len(answer)
            blocks += [number] * length
            positions.append(np.broadcast_to(first + np.arange(length), (3, length)))
        return ids, labels, np.concatenate(positions, axis=1), blocks

    def _question(self, query: Query) -> list[int]:
        key = (query.instruction, query.past_answers)
        if key not in self._suffixes:
            before, after = self._render(query).split(_IMAGE)
            if before != self._before_image:
                raise ValueError(
                    "the warm start packs prompts that name the task after the image: take another model.prompt or "
                    "set warmup.enabled = false"
                )
            self._suffixes[key] = self._encode(after.removeprefix(self._after_image))
        return self._suffixes[key]

    def _render(self, query: Query) -> str:
        """The prompt's text with one image placeholder."""
        history = self._builder.new_history()
        for answer in query.past_answers:
            history.add(_NO_PIXELS, answer)
        prompt = self._builder.build(Observation(_NO_PIXELS, query.instruction), history)
        text = render_chat(self._processor, prompt.messages)
        if text.count(_IMAGE) != 1:
            raise ValueError("the warm start packs prompts with exactly one image: set model.history_images = 1")
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)


_NO_PIXELS: RgbImage = np.zeros((32, 32, 3), np.uint8)


def _positions(model: Any, prefix: Sequence[int], grid_thw: tuple[int, int, int]) -> np.ndarray:
    """Positions [3, P] that the model itself gives the prefix."""
    import torch

    ids = torch.tensor([list(prefix)])
    positions, _ = model.model.get_rope_index(
        ids,
        image_grid_thw=torch.tensor([grid_thw]),
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == model.config.image_token_id).to(torch.int32),
    )
    return np.asarray(positions[:, 0].numpy())
