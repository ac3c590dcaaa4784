"""Images with their questions as the tensors of one forward pass.

Role: `QuestionPacker` arranges each image and any number of questions about it in one row, so that every question sees the image and
itself only, at the positions that it would have alone; the image's features are computed once. Rule: the attention of a packed question is
that of the same question by itself; the text around it is rendered by the checkpoint's own chat template. An answer is given with its
question, so that the head needs no decoding. Non-goals: the forward pass, choosing questions.
Axes: B images, T tokens, Q questions of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from dart_agent.errors import ConfigError
from dart_agent.grounding.answers import IMAGE_PAD, POINTER_PAD, answer_text, check_image, check_instruction
from dart_agent.grounding.labels import PatchGrid
from dart_agent.prompts.chat_template import render_chat
from dart_envs.types import RgbImage

NO_LABEL = -100
KEPT_QUESTIONS = 4096
KEPT_IMAGE_SIZES = 64


class PromptedModel(Protocol):
    """What the text of questions needs of a model."""

    @property
    def processor(self) -> Any:
        """Its processor."""
        ...

    @property
    def system(self) -> str:
        """System prompt; "": none."""
        ...


class AskedModel(PromptedModel, Protocol):
    """What packing needs of a model."""

    @property
    def backbone(self) -> Any:
        """The transformers model."""
        ...


@dataclass(frozen=True, slots=True)
class PackedQuestions:
    """Rows of one forward pass, right-padded.

    Attributes:
        input_ids_BT: Token ids, int64.
        labels_BT: The token to predict from the position before it; NO_LABEL outside answers and at the end of a pointer.
        position_ids_3BT: Positions along time, height and width.
        attention_mask_B1TT: True where a token may attend.
        pixel_values: Patches of all images.
        image_grid_thw: Patches along time, height and width, [B, 3].
        grids: Visual tokens of each image.
        pointers: By image and question: positions of the pointer tokens.
        decisions: By image and question: position of the answer's first token, which predicts the second.
    """

    input_ids_BT: Tensor
    labels_BT: Tensor
    position_ids_3BT: Tensor
    attention_mask_B1TT: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    grids: tuple[PatchGrid, ...]
    pointers: tuple[tuple[tuple[int, ...], ...], ...]
    decisions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One question about an image, with its answer.

    Attributes:
        instruction: What is asked.
        answer: The text after the head of the assistant's turn, without a line break before it.
    """

    instruction: str
    answer: str

    @classmethod
    def point(cls, instruction: str, targets: int = 1) -> Self:
        """Ask for points.

        Args:
            instruction: What is asked.
            targets: How many points the answer has; 0: it refuses.

        Returns:
            The question.

        Raises:
            ConfigError: No answer has so many points.
        """
        return cls(instruction, answer_text(targets))


class QuestionPacker:
    """Packs for one model; texts that were rendered and tokenised are kept for the next time.

    Args:
        model: The model; neither its chat template nor its system prompt changes.

    Raises:
        ConfigError: The chat template names the task before the image.
    """

    def __init__(self, model: AskedModel) -> None:
        self._model = model
        self._before, self._shared = _prefix(model)
        self._pad = getattr(model.backbone.config, "pointer_pad_token_id", None)
        self._question = lru_cache(KEPT_QUESTIONS)(self._encode_question)
        self._image = lru_cache(KEPT_IMAGE_SIZES)(self._encode_image)

    def pack(self, images: Sequence[RgbImage], questions_B: Sequence[Sequence[Question]]) -> PackedQuestions:
        """Pack images with their questions.

        Args:
            images: Images, uint8 [H, W, 3] each; the processor resizes them.
            questions_B: Questions of each image, at least one.

        Returns:
            The rows.

        Raises:
            ConfigError: An image or an instruction cannot be asked.
        """
        for image in images:
            check_image((image.shape[1], image.shape[0]))
        processor = self._model.processor.image_processor
        # Said, because the processor takes an image of 1 or 3 rows for one whose channels are first.
        features = processor(images=list(images), input_data_format="channels_last", return_tensors="pt")
        thw = features["image_grid_thw"]
        grids = tuple(
            PatchGrid.of(grid.tolist(), int(processor.merge_size), (image.shape[1], image.shape[0]))
            for grid, image in zip(thw, images, strict=True)
        )
        sizes = [tuple(grid.tolist()) for grid in thw]
        rows = [
            self._row(grid.cells, size, questions)
            for grid, size, questions in zip(grids, sizes, questions_B, strict=True)
        ]
        width = max(len(row.ids) for row in rows)
        ids_BT = torch.zeros(len(rows), width, dtype=torch.int64)
        labels_BT = torch.full((len(rows), width), NO_LABEL, dtype=torch.int64)
        positions_3BT = torch.zeros(3, len(rows), width, dtype=torch.int64)
        blocks_BT = torch.full((len(rows), width), -1, dtype=torch.int64)
        for index, row in enumerate(rows):
            length = len(row.ids)
            ids_BT[index, :length] = torch.tensor(row.ids)
            labels_BT[index, :length] = torch.tensor(row.labels)
            positions_3BT[:, index, :length] = row.positions_3L
            blocks_BT[index, :length] = torch.tensor(row.blocks)
        sees = (blocks_BT[:, :, None] == blocks_BT[:, None, :]) | (blocks_BT[:, None, :] == 0)
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        return PackedQuestions(
            input_ids_BT=ids_BT,
            labels_BT=labels_BT,
            position_ids_3BT=positions_3BT,
            attention_mask_B1TT=(sees & causal)[:, None],
            pixel_values=features["pixel_values"],
            image_grid_thw=thw,
            grids=grids,
            pointers=tuple(tuple(row.pointers) for row in rows),
            decisions=tuple(tuple(row.decisions) for row in rows),
        )

    def learnt_tokens(self, question: Question) -> int:
        """How many tokens of a question's answer are learnt.

        Args:
            question: The question.

        Returns:
            The number of its labels that are not NO_LABEL.
        """
        _, _, labels = self._question(question)
        return sum(label != NO_LABEL for label in labels)

    def _row(self, cells: int, size_thw: tuple[int, ...], questions: Sequence[Question]) -> _Row:
        prefix, prefix_positions = self._image(cells, size_thw)
        positions = [prefix_positions]
        row = _Row(list(prefix), [NO_LABEL] * len(prefix), [0] * len(prefix), prefix_positions, [], [])
        first = int(prefix_positions.max()) + 1
        for number, question in enumerate(questions, 1):
            prompt, answer, labels = self._question(question)
            start = len(row.ids) + len(prompt)
            row.ids += prompt + answer
            row.labels += [NO_LABEL] * len(prompt) + labels
            length = len(prompt) + len(answer)
            row.blocks += [number] * length
            positions.append((first + torch.arange(length)).expand(3, length))
            row.pointers.append(tuple(start + at for at, token in enumerate(answer) if token == self._pad))
            row.decisions.append(start)
        row.positions_3L = torch.cat(positions, dim=1)
        return row

    def _encode_question(self, question: Question) -> tuple[list[int], list[int], list[int]]:
        """Ids of the prompt and of the answer, and the labels of the answer."""
        text = _question_text(self._model, question.instruction, self._before, self._shared)
        answer = _encode(self._model, question.answer)
        return _encode(self._model, text), answer, [_label(self._model, token) for token in answer]

    def _encode_image(self, cells: int, size_thw: tuple[int, ...]) -> tuple[list[int], Tensor]:
        """Ids and positions of what comes before the questions about an image of this size."""
        before, image, shared = (_encode(self._model, text) for text in (self._before, IMAGE_PAD, self._shared))
        ids = [*before, *image * cells, *shared]
        return ids, _positions(self._model, ids, torch.tensor(size_thw))


def pack(model: AskedModel, images: Sequence[RgbImage], questions_B: Sequence[Sequence[Question]]) -> PackedQuestions:
    """Pack images with their questions once; `QuestionPacker` is faster where one model is asked again and again.

    Args:
        model: The model.
        images: Images, uint8 [H, W, 3] each; the processor resizes them.
        questions_B: Questions of each image, at least one.

    Returns:
        The rows.

    Raises:
        ConfigError: An image or an instruction cannot be asked, or the chat template names the task before the image.
    """
    return QuestionPacker(model).pack(images, questions_B)


def pointing_ids(model: PromptedModel, instruction: str) -> list[int]:
    """The ids of one question for one point, up to its pointer token: the same as in a packed row.

    Args:
        model: Processor and system prompt.
        instruction: What is asked.

    Returns:
        Ids with a single image token, as engines take them that expand images themselves.

    Raises:
        ConfigError: The instruction or the chat template does not allow the question.
    """
    before, shared = _prefix(model)
    texts = (before, IMAGE_PAD, shared, _question_text(model, instruction, before, shared), answer_text(1))
    ids = [token for text in texts for token in _encode(model, text)]
    pad = model.processor.tokenizer.convert_tokens_to_ids(POINTER_PAD)
    return ids[: ids.index(pad) + 1]


@dataclass(slots=True)
class _Row:
    ids: list[int]
    labels: list[int]
    blocks: list[int]
    positions_3L: Tensor
    pointers: list[tuple[int, ...]]
    decisions: list[int]


def _label(model: AskedModel, token: int) -> int:
    """The token, except for the end of a pointer, which decoding forces."""
    return NO_LABEL if token == getattr(model.backbone.config, "pointer_end_token_id", None) else token


def _prefix(model: PromptedModel) -> tuple[str, str]:
    """The text before the image, and what follows it in every prompt."""
    before, after = _render(model, "").split(IMAGE_PAD)
    end = "<|vision_end|>"
    return before, after[: after.index(end) + len(end)]


def _question_text(model: PromptedModel, instruction: str, before: str, shared: str) -> str:
    check_instruction(instruction)
    begun, after = _render(model, instruction).split(IMAGE_PAD)
    if begun != before:
        raise ConfigError(
            "the chat template names the task before the image, so that questions cannot share an image: give the model another template"
        )
    return after.removeprefix(shared).removesuffix("\n")


def _render(model: PromptedModel, instruction: str) -> str:
    """The prompt's text; its answer begins with the recipient where the template has a line break."""
    user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": instruction}]}
    system = [{"role": "system", "content": model.system}] if model.system else []
    return render_chat(model.processor, [*system, user])


def _encode(model: PromptedModel, text: str) -> list[int]:
    return list(model.processor.tokenizer(text, add_special_tokens=False).input_ids)


def _positions(model: AskedModel, prefix: Sequence[int], thw_3: Tensor) -> Tensor:
    ids: Any = torch.tensor([list(prefix)])
    positions, _ = model.backbone.model.get_rope_index(
        ids,
        image_grid_thw=thw_3[None],
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == model.backbone.config.image_token_id).to(torch.int32),
    )
    found: Tensor = positions[:, 0]
    return found
