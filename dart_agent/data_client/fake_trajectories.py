"""Fake rollouts: made-up trajectories with the right form, for tests, dry runs and throughput measurements.

Role: what a rollout worker would report for a work item, without a desktop and without a model. Rule: everything here says `fake` in
its text; nothing in a real run imports this module. Non-goals: plausible behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import numpy as np

from dart_agent.types import FinishReason, StepRecord, StopReason, Trajectory, VersionSpan, WorkItem
from dart_envs.hashing import image_sha256
from dart_envs.types import EndReason, RgbImage

FAKE_TEXT = "fake response"


def fake_image(seed: int, height: int = 32, width: int = 64) -> RgbImage:
    """A noise image, uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def fake_trajectory(
    item: WorkItem,
    *,
    reward: float | None = 1.0,
    version: int = 0,
    steps: int = 2,
    tokens: int = 4,
    spans: Sequence[VersionSpan] | None = None,
    prompt_ids_P: Sequence[int] = (1, 2, 3),
    image: RgbImage | None = None,
    end: EndReason | None = None,
    seed: int = 0,
    started_at_s: float = 0.0,
    duration_s: float = 1.0,
) -> tuple[Trajectory, Mapping[str, RgbImage]]:
    """A trajectory for a work item, and its images by hash. Token ids are drawn from 3..63, log-probs from (-3, 0)."""
    random = Random(f"{item.rollout_id}/{seed}")
    images = {} if image is None else {image_sha256(image): image}
    sizes = () if image is None else ((int(image.shape[0]), int(image.shape[1])),)
    rows = tuple(
        StepRecord(
            index=index,
            prompt_ids_P=tuple(prompt_ids_P),
            token_ids_T=tuple(random.randrange(3, 64) for _ in range(tokens)),
            logprobs_T=tuple(float(np.float32(-3 * random.random())) for _ in range(tokens)),
            version_spans=tuple(spans) if spans is not None else (VersionSpan(version, 0, tokens),),
            image_sha256=tuple(images),
            image_hw=sizes,
            text=FAKE_TEXT,
            action=None,
            parse_error="fake",
            sampling=item.sampling,
            finish_reason=FinishReason.STOP,
            model_s=0.0,
            env_s=0.0,
        )
        for index in range(steps)
    )
    if end is None:
        end = EndReason.FARM_FAULT if reward is None else EndReason.DONE
    return (
        Trajectory(
            rollout_id=item.rollout_id,
            group_id=item.group_id,
            task_id=item.task_id,
            purpose=item.purpose,
            phase=item.phase,
            steps_S=rows,
            reward=reward,
            stop=StopReason(end.value),
            cause=None if reward is not None else "fake fault",
            started_at_s=started_at_s,
            duration_s=duration_s,
        ),
        images,
    )
