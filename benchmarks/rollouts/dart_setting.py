"""DART's setting (arXiv 2509.23866) as latency models, and the frozen calibration of its coupled system.

Role: the constants of `bench_decoupling`. Rule: what DART's paper or code says is used as it is; two numbers are calibrated to two
published figures of the coupled system, once, and a test keeps them. Non-goals: the simulation (`dart_train.simulation`).

From DART's code and paper: 80 environments and 4 inference GPUs (figure 4), one vLLM per GPU, 8 rollouts per task, 8 tasks per batch
(`bz8`), at most 30 steps, 5 screenshots and all texts in a prompt, 1920 x 1080 pixels, at most 500 sampled tokens; the start of a
machine 22.5 s, 60 s of waiting after a reset, 5 s of pause per step, a question for a batch every 30 s (15 s on average); a new version
starts vLLM again and fails its requests.

Assumed: 1 s for an action and its screenshot, 10 s for the evaluator, 150 tokens per response, a median of 13.5 steps before the cut (a
mean of about 15.5 after it, as DART's notebooks show), 60 s for writing a checkpoint, 90 s for the start of vLLM with a 7B model, and
the speeds of an H100 in `EngineModel`.

Calibrated: `TRAINER_TOKENS_PER_S` and `LENGTH_SIGMA`, to 29.6 % GPU utilisation and 12.2 % environment utilisation of the coupled system.
"""

from __future__ import annotations

from typing import Any

from dart_agent.inference.decisions.routing import RoutingSettings
from dart_train.scheduling.settings import BatchSettings, SchedulerSettings, SchedulingMode, SchedulingSettings
from dart_train.simulation.models import (
    DesktopModel,
    EngineModel,
    EpisodeModel,
    Latency,
    PublishModel,
    SystemModels,
    TrainerModel,
)
from dart_train.simulation.scenario import Scenario

PUBLISHED = {
    "coupled": {"actions_per_min": 22.6, "env_util": 0.122, "worker_util": 0.296},
    "decoupled": {"actions_per_min": 43.6, "env_util": 0.677, "worker_util": 0.467},
}
DESKTOPS, WORKERS, GROUP, STEPS, GROUPS_PER_BATCH = 80, 4, 8, 30, 8

TRAINER_TOKENS_PER_S = 37_000.0
LENGTH_SIGMA = 0.6

DART_STEP = Latency(mean_s=6.0, sigma=0.15)
DART_DESKTOP = DesktopModel(
    reset_s=Latency(mean_s=82.5, sigma=0.05),
    forks=False,
    step_s=DART_STEP,
    performs_done=True,
    evaluate_s=Latency(mean_s=10.0, sigma=0.3),
    park_s=Latency(mean_s=82.5, sigma=0.05),
)
OWN_DESKTOP = DesktopModel(step_s=DART_STEP, performs_done=True)
"""Our resets and forks (benchmarks/results/desktops_runc.json: restore 0.19 to 0.40 s, cold start 2.5 s), with DART's pause per step."""
OWN_FAST_DESKTOP = DesktopModel()
"""Without the pause: 1 s per step, where a settled step was measured with 0.083 s."""
DART_PUBLISH = PublishModel(
    publish_s=60.0, publish_s_per_gib=0.0, stage_s_per_gib=0.0, swap_s=90.0, keeps_requests=False
)
OWN_PUBLISH = PublishModel(keeps_prefixes=True)
"""Weights are swapped in place and the key-value cache is kept, as the setting for it allows."""
OWN_PUBLISH_RECOMPUTED = PublishModel()
"""Weights are swapped in place and running requests compute their prompts again."""

FACTORS: dict[str, dict[str, Any]] = {
    "scheduling": {"mode": SchedulingMode.ROLLOUT_GLOBAL},
    "desktops": {"desktop": OWN_DESKTOP},
    "update_in_place": {"publish": OWN_PUBLISH},
    "streams": {"streams": True},
}
"""What differs between the coupled and the decoupled system, besides the per-worker order of updates, which needs rollout-wise
scheduling."""


def scenario(
    *,
    mode: SchedulingMode = SchedulingMode.BATCH,
    desktop: DesktopModel = DART_DESKTOP,
    publish: PublishModel = DART_PUBLISH,
    streams: bool = False,
    desktops: int = DESKTOPS,
    workers: int = WORKERS,
    hours: float = 4.0,
    seed: int = 0,
    tokens_per_s: float = TRAINER_TOKENS_PER_S,
    sigma: float = LENGTH_SIGMA,
) -> Scenario:
    """Return DART's setting; without arguments its coupled system.

    Args:
        mode: What a desktop waits for.
        desktop: The desktops.
        publish: How weights are published and taken.
        streams: Append-only prompts: prefixes are reused, and each token of a trajectory is trained on once.
        desktops: Number of desktops.
        workers: Number of inference workers.
        hours: Simulated hours of the window.
        seed: Seed.
        tokens_per_s: Speed of the trainer.
        sigma: Spread of the lengths.
    """
    return Scenario(
        desktops=desktops,
        workers=workers,
        rollouts_per_task=GROUP,
        max_steps=STEPS,
        tasks=203,
        hours=hours,
        warm_up_hours=1.0,
        seed=seed,
        batch_waits_for_workers=True,
        routing=RoutingSettings(prefix_affinity=streams),
        scheduler=SchedulerSettings(
            seed=seed,
            scheduling=SchedulingSettings(mode=mode),
            batch=BatchSettings(min_groups=GROUPS_PER_BATCH, max_groups=GROUPS_PER_BATCH),
        ),
        models=SystemModels(
            desktop=desktop,
            episode=EpisodeModel(median_steps=13.5, sigma=sigma, history_images=0 if streams else 5),
            engine=EngineModel(),
            trainer=TrainerModel(
                update_s=10.0,
                tokens_per_s=tokens_per_s,
                streams=streams,
                poll_s=15.0 if publish is DART_PUBLISH else 0.0,
            ),
            publish=publish,
        ),
    )
