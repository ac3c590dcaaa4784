"""A batch of multi-turn trajectories to measure train steps with.

Role: `write_batch` makes what a trainer reads from one directory. Rule: random screens and random ids by seed; each step's prompt continues
the one before exactly and shows one more screenshot. Non-goals: learning anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.payloads import StepPayload
from dart_agent.data_client.wire import Batch, BatchGroup, BatchMember, BatchRow
from dart_agent.types import FinishReason, SamplingParams, StepRecord, VersionSpan

WORDS = (300, 900)
"""Range of the ids that prompts and responses are made of."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How large a batch is.

    Attributes:
        image_wh: Width and height of a screenshot in pixels.
        rollouts: Trajectories of the batch, one group.
        steps: Steps of each.
        text_tokens: Tokens of a turn beside its screenshot.
        response_tokens: Tokens of a response.
    """

    image_wh: tuple[int, int] = (256, 160)
    rollouts: int = 2
    steps: int = 10
    text_tokens: int = 24
    response_tokens: int = 16


def write_batch(directory: Path, size: BatchSize, image_token: int, seed: int = 0, patch: int = 16) -> Batch:
    """Write screenshots into `images` and the batch into `batch.json`.

    Args:
        directory: Where both are written.
        size: The size.
        image_token: The placeholder of images.
        seed: Seed of everything random.
        patch: Pixels per side of a patch; 2 x 2 of them are one token.

    Returns:
        The batch.
    """
    images, generator = ImageStore(directory / "images"), np.random.default_rng(seed)
    cells = (size.image_wh[0] // (2 * patch)) * (size.image_wh[1] // (2 * patch))
    rows, members = [], []
    for rollout in range(size.rollouts):
        prompt: list[int] = []
        shown: list[str] = []
        for index in range(size.steps):
            screen = generator.integers(180, 256, (size.image_wh[1], size.image_wh[0], 3), dtype=np.uint8)
            shown.append(images.put(screen))
            prompt = prompt + [image_token] * cells + generator.integers(*WORDS, size.text_tokens).tolist()
            answer = generator.integers(*WORDS, size.response_tokens).tolist()
            step = StepRecord(
                index=index,
                prompt_ids_P=tuple(prompt),
                token_ids_T=tuple(answer),
                logprobs_T=(-12.0,) * len(answer),
                version_spans=(VersionSpan(0, 0, len(answer)),),
                image_sha256=tuple(shown),
                image_hw=((size.image_wh[1], size.image_wh[0]),) * len(shown),
                text="",
                action=None,
                parse_error=None,
                sampling=SamplingParams(temperature=1.0),
                finish_reason=FinishReason.STOP,
                model_s=0.0,
                env_s=0.0,
            )
            payload = StepPayload.from_value(step)
            rows.append(BatchRow(group_id="g", rollout_id=f"r{rollout}", step=payload, trainable=[(0, len(answer))]))
            prompt = prompt + answer
        members.append(
            BatchMember(rollout_id=f"r{rollout}", reward=float(rollout % 2), steps=size.steps, source="fresh")
        )
    batch = Batch(
        batch_id="recorded",
        trainer_version=0,
        groups=[BatchGroup(group_id="g", task_id="s/t/0", family="t", members=members)],
        rows=rows,
        staleness_mean=0.0,
        staleness_max=0,
        excluded_steps={},
    )
    (directory / "batch.json").write_text(batch.model_dump_json(), encoding="utf-8")
    return batch
