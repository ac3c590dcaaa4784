"""Latency models: what desktops, engines, trainer and publishing take, and how often they fail.

Role: the schema of everything that the simulator assumes. Rule: unknown keys are errors; seconds, tokens and GiB are in the names; a
value is an assumption until it was fitted on a recorded run (`fitting`). Files are JSON or TOML by their suffix. Non-goals: how the
parts act on each other (`engine`, `system`).
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from random import Random
from typing import Any

from pydantic import Field, ValidationError

from dart_agent.strict_model import StrictModel, format_validation_error


class ModelFileError(Exception):
    """A file of latency models cannot be used; the message says why, and what to do."""


class Latency(StrictModel):
    """A duration: lognormal around its mean.

    Attributes:
        mean_s: Mean in seconds.
        sigma: Standard deviation of its logarithm; 0: constant.
    """

    mean_s: float = Field(ge=0)
    sigma: float = Field(default=0.0, ge=0, le=3)

    def draw(self, random: Random) -> float:
        """Draw a duration.

        Args:
            random: Source of randomness.

        Returns:
            Seconds.
        """
        if not self.sigma or not self.mean_s:
            return self.mean_s
        return self.mean_s * math.exp(self.sigma * random.gauss(0.0, 1.0) - 0.5 * self.sigma * self.sigma)


class DesktopModel(StrictModel):
    """The desktops.

    Attributes:
        reset_s: A desktop without a snapshot of its task: start, setup, fixed waits.
        forks: Whether a task is prepared once, and every other rollout of it, of its group and of later ones, starts from that snapshot.
        prepared_tasks: Snapshots of prepared tasks without an open group that the farm keeps; the one that was used least recently makes
            room. The default is the farm's quota of 4 GiB at 50 MB each.
        fork_s: A desktop from a snapshot: of a fork, and of a parked rollout that is continued.
        step_s: Performing an action, settling and the screenshot; fixed pauses included.
        performs_done: Whether the action that ends an episode (`DONE`) takes the time of a step. OSWorld's environment pauses after it;
            ours does not perform it.
        evaluate_s: The evaluator, once per episode.
        park_s: Keeping a stopped rollout's desktop as a snapshot.
    """

    reset_s: Latency = Latency(mean_s=2.5, sigma=0.3)
    forks: bool = True
    prepared_tasks: int = Field(default=80, ge=0)
    fork_s: Latency = Latency(mean_s=0.4, sigma=0.4)
    step_s: Latency = Latency(mean_s=1.0, sigma=0.5)
    performs_done: bool = False
    evaluate_s: Latency = Latency(mean_s=0.5, sigma=0.5)
    park_s: Latency = Latency(mean_s=0.9, sigma=0.2)


class EpisodeModel(StrictModel):
    """Episodes: lengths, responses, prompts and rewards.

    The number of steps is lognormal, rounded up and cut at the step limit; an episode that is cut fails. Part of the variance is
    between tasks.

    Attributes:
        median_steps: Median number of steps before the cut.
        sigma: Standard deviation of the logarithm of the number of steps.
        between_tasks: Fraction of its variance that is between tasks, the rest is between rollouts of a task.
        success_alpha: First parameter of the Beta distribution of a task's success probability.
        success_beta: Second parameter.
        response_tokens: Mean number of sampled tokens of a response.
        response_sigma: Standard deviation of its logarithm.
        max_response_tokens: Limit of a response.
        system_tokens: Tokens before the first screenshot.
        image_tokens: Tokens of a screenshot.
        history_images: Screenshots in a prompt; older ones are dropped. 0: none is dropped until the context is full.
        context_tokens: Longest prompt with its response. A history that outgrows it begins a new segment with the newest screenshots.
    """

    median_steps: float = Field(default=12.0, gt=0)
    sigma: float = Field(default=0.8, ge=0, le=3)
    between_tasks: float = Field(default=0.5, ge=0, le=1)
    success_alpha: float = Field(default=1.2, gt=0)
    success_beta: float = Field(default=1.0, gt=0)
    response_tokens: float = Field(default=150.0, gt=0)
    response_sigma: float = Field(default=0.4, ge=0, le=3)
    max_response_tokens: int = Field(default=500, ge=1)
    system_tokens: int = Field(default=600, ge=0)
    image_tokens: int = Field(default=2691, ge=0)
    history_images: int = Field(default=0, ge=0)
    context_tokens: int = Field(default=32_000, ge=64)


class EngineModel(StrictModel):
    """One inference worker: an engine with continuous batching.

    Prompts are computed one after the other; responses are sampled together. A decoding step takes `step_s + step_s_per_request * n` for n
    requests, and `1 / decode_share` times as long while a prompt is computed.

    Attributes:
        prefill_tokens_per_s: Prompt tokens per second that are not in the prefix cache.
        image_s: Seconds per screenshot that is not in the cache of image features.
        request_s: Fixed seconds per request.
        step_s: Fixed part of a decoding step in seconds.
        step_s_per_request: Part of a decoding step per request, in seconds.
        decode_share: Fraction of the decoding speed that is left while a prompt is computed.
        max_requests: Most requests that are computed at the same time.
        kv_cache_tokens: Size of the key-value cache in tokens.
        prefix_cache: Whether prefixes of an episode are reused.
    """

    prefill_tokens_per_s: float = Field(default=20_000.0, gt=0)
    image_s: float = Field(default=0.04, ge=0)
    request_s: float = Field(default=0.02, ge=0)
    step_s: float = Field(default=0.009, gt=0)
    step_s_per_request: float = Field(default=0.0006, ge=0)
    decode_share: float = Field(default=0.4, gt=0, le=1)
    max_requests: int = Field(default=64, ge=1)
    kv_cache_tokens: int = Field(default=900_000, ge=1)
    prefix_cache: bool = True


class TrainerModel(StrictModel):
    """The trainer.

    Attributes:
        update_s: Fixed seconds of a train step.
        tokens_per_s: Tokens per second, all passes included: of old log-probs, forward and backward.
        streams: Whether each token of a trajectory is computed once, where prompts are append-only; False: each row with its whole prompt.
        poll_s: Seconds from the moment at which a batch could be formed to the question for it.
    """

    update_s: float = Field(default=5.0, ge=0)
    tokens_per_s: float = Field(default=40_000.0, gt=0)
    streams: bool = True
    poll_s: float = Field(default=0.0, ge=0)


class PublishModel(StrictModel):
    """Publishing a version, and taking it.

    Attributes:
        weights_gib: Size of the weights in GiB.
        publish_s_per_gib: Seconds per GiB in which the trainer writes them.
        publish_s: Fixed seconds of publishing.
        stage_s_per_gib: Seconds per GiB in which a worker reads them while it serves.
        swap_s: Seconds in which a worker's requests stand still.
        keeps_requests: Whether requests go on after a swap; False: they fail and are sent again, as where the engine is started again.
        keeps_prefixes: Whether the prefix cache outlives a swap.
    """

    weights_gib: float = Field(default=15.4, ge=0)
    publish_s_per_gib: float = Field(default=0.25, ge=0)
    publish_s: float = Field(default=1.0, ge=0)
    stage_s_per_gib: float = Field(default=0.25, ge=0)
    swap_s: float = Field(default=1.0, ge=0)
    keeps_requests: bool = True
    keeps_prefixes: bool = False


class FaultModel(StrictModel):
    """What fails. Times are seconds since the begin of the simulation.

    Attributes:
        desktops_per_hour: Fraction of the desktops that fail per hour.
        repair_s: Seconds until a failed desktop is replaced.
        worker_lost_at_s: When one inference worker fails; None: never.
        worker_repair_s: Seconds until it serves again.
        trainer_lost_at_s: When the trainer fails; None: never.
        trainer_repair_s: Seconds until it is back.
    """

    desktops_per_hour: float = Field(default=0.0, ge=0)
    repair_s: float = Field(default=30.0, ge=0)
    worker_lost_at_s: float | None = Field(default=None, ge=0)
    worker_repair_s: float = Field(default=120.0, ge=0)
    trainer_lost_at_s: float | None = Field(default=None, ge=0)
    trainer_repair_s: float = Field(default=600.0, ge=0)


class PriceModel(StrictModel):
    """Prices in US dollars; settings, not quotes.

    Attributes:
        gpu_hour: One GPU for an hour.
        desktop_hour: One desktop for an hour. The default is 0.23 dollars a day (OSGym, secondary source).
        gpus_per_worker: GPUs of one inference worker; 0: it runs on a CPU.
        trainer_gpus: GPUs of the trainer; 0: it runs on a CPU.
    """

    gpu_hour: float = Field(default=2.5, ge=0)
    desktop_hour: float = Field(default=0.0096, ge=0)
    gpus_per_worker: int = Field(default=1, ge=0)
    trainer_gpus: int = Field(default=8, ge=0)


class SystemModels(StrictModel):
    """All models of a system.

    Attributes:
        desktop: The desktops.
        episode: The episodes.
        engine: One inference worker.
        trainer: The trainer.
        publish: Publishing and taking versions.
        faults: What fails.
        prices: Prices.
    """

    desktop: DesktopModel = DesktopModel()
    episode: EpisodeModel = EpisodeModel()
    engine: EngineModel = EngineModel()
    trainer: TrainerModel = TrainerModel()
    publish: PublishModel = PublishModel()
    faults: FaultModel = FaultModel()
    prices: PriceModel = PriceModel()


def load_models(path: Path, start: SystemModels | None = None) -> SystemModels:
    """Read latency models.

    Args:
        path: A file that ends in `.json` or `.toml`.
        start: Values of what the file does not name; None: the defaults.

    Returns:
        The models.

    Raises:
        ModelFileError: The file cannot be read, or a key or value is wrong.
    """
    if path.suffix not in {".json", ".toml"}:
        raise ModelFileError(f"the models {path} must be a .json or a .toml file")
    try:
        text = path.read_text(encoding="utf-8")
        data: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return SystemModels.model_validate(data if start is None else _merged(start.model_dump(), data))
    except FileNotFoundError:
        raise ModelFileError(
            f"the models {path} do not exist: give the path of a file that `dart-train simulate --fit RUN --save-models FILE` wrote"
        ) from None
    except (ValueError, OSError) as error:
        cause = format_validation_error(error) if isinstance(error, ValidationError) else str(error)
        raise ModelFileError(f"the models {path} cannot be used: {cause}") from None


def save_models(models: SystemModels, path: Path) -> None:
    """Write latency models, all values included.

    Args:
        models: The models.
        path: A file that ends in `.json` or `.toml`.

    Raises:
        ModelFileError: The suffix is another one, or the file cannot be written.
    """
    data = models.model_dump(mode="json")
    if path.suffix == ".json":
        text = json.dumps(data, indent=2) + "\n"
    elif path.suffix == ".toml":
        text = "\n".join(_table(name, values) for name, values in data.items())
    else:
        raise ModelFileError(f"the models {path} must be a .json or a .toml file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ModelFileError(f"the models {path} cannot be written: {error}") from None


def _merged(start: dict[str, Any], named: Any) -> Any:
    """What is named, and the start values of what is not."""
    if not isinstance(named, dict):
        return named
    return start | {
        key: _merged(start[key], value) if isinstance(start.get(key), dict) else value for key, value in named.items()
    }


def _table(name: str, values: dict[str, Any]) -> str:
    """One TOML table; a key without a value is left out, because TOML has no null."""
    lines = [f"[{name}]"]
    for key, value in values.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{each} = {json.dumps(number)}" for each, number in value.items())
            lines.append(f"{key} = {{ {inner} }}")
        elif value is not None:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
