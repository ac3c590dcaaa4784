"""The four scheduling modes with real inference workers on this host, against the simulator.

Role: `measure` records runs of the training stage, fits the simulator's models on some of them, predicts the others, and compares:
`sim_error`. Rule: real are the orchestrator, the data manager, the rollout worker with its environment, two vLLM workers of the tiny model,
their weight updates and the trainer's process with its batches and published weights; simulated are the desktops (behind the farm client's
protocol, on the system's clock) and the train step, which only takes time, because two cores cannot carry a trainer beside two engines. The
fit sees other runs than those compared. Each recorded run is kept in the folder, so that the next call goes on. Non-goals: pass or fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from dart_agent.data_client.client import DataManagerClient
from dart_agent.rollouts.policy_factory import OpenPolicies, open_policy_factory
from dart_agent.rollouts.worker_config import WorkerConfig
from dart_envs.clock import SYSTEM_CLOCK
from dart_train.config import Recipe
from dart_train.report.build import read_metrics
from dart_train.run.launcher import spawn_locally
from dart_train.run.paths import RunPaths
from dart_train.simulation.command import scenario_of
from dart_train.simulation.components.activity import (
    ComponentFigures,
    RequestLog,
    recorded_figures,
    simulated_figures,
    whole_updates,
)
from dart_train.simulation.components.processes import ComponentHost
from dart_train.simulation.components.system import ComponentSystem, for_minutes
from dart_train.simulation.fitting import fit_models
from dart_train.simulation.models import (
    DesktopModel,
    EpisodeModel,
    Latency,
    SystemModels,
    TrainerModel,
)
from dart_train.simulation.outcome import simulate
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.process import TrainerProcess

COMPARED = tuple(field.name for field in fields(ComponentFigures) if field.name != "window_s")
MODES = ("batch", "task", "rollout-global", "rollout-per-worker")
TRUTH = SystemModels(
    desktop=DesktopModel(
        reset_s=Latency(mean_s=2.5, sigma=0.3),
        fork_s=Latency(mean_s=0.4, sigma=0.3),
        step_s=Latency(mean_s=1.0, sigma=0.4),
        evaluate_s=Latency(mean_s=0.0),
    ),
    episode=EpisodeModel(median_steps=5.0, sigma=0.5, response_tokens=20, system_tokens=0, image_tokens=0),
    trainer=TrainerModel(update_s=4.0, tokens_per_s=1000.0),
)
"""What is simulated in the recorded runs: desktops, lengths of episodes, train step. The fit does not see it."""
SEEDS_OF_PREDICTION = 4
HOURS_OF_PREDICTION = 2.0


@dataclass(frozen=True, slots=True)
class Part:
    """One recorded run.

    Attributes:
        name: Its name.
        mode: Scheduling mode.
        desktops: Number of desktops.
        seed: Seed.
        fitted: Whether the models are fitted on it; otherwise it is compared.
    """

    name: str
    mode: str
    desktops: int
    seed: int
    fitted: bool = False

    @property
    def recipe(self) -> Recipe:
        """What it runs."""
        return Recipe.model_validate(
            {
                "run": {"name": self.name, "seed": self.seed},
                "desktops": {"count": self.desktops},
                "tasks": {"families": ["press_nth", "press_two", "choose_nth", "tick_nth"], "max_steps": 12},
                "model": {"preset": "tiny"},
                "inference": {"workers": 2},
                "rollout": {"group_size": 4, "scheduling": self.mode},
                "train": {"groups_per_batch": 2},
            }
        )


PARTS = (
    Part("fit-few", "rollout-per-worker", 4, 101, fitted=True),
    Part("fit-many", "rollout-per-worker", 12, 102, fitted=True),
    *(Part(mode, mode, 8, 7) for mode in MODES),
)


class RealWorkersSystem(ComponentSystem):
    """A run whose data manager and inference workers are processes; desktops and train step are simulated in this one."""

    def host(self) -> ComponentHost:
        """Rollout worker and trainer run here."""
        return ComponentHost({"rollout": self.play, "trainer": self.train}, spawn_locally)

    def client(
        self, desktops: int | None = None, kv_cache_usage: Callable[[], float | None] | None = None
    ) -> DataManagerClient:
        """Connect over the socket."""
        return DataManagerClient(
            self.paths.data_socket, self.paths.images, desktops=desktops, kv_cache_usage=kv_cache_usage
        )

    def make_start_model(self) -> None:
        """Make the tiny model with random weights."""
        from dart_train.model.init_model import init_model

        init_model("tiny", self.paths.warm_start_model, self.seed)

    def make_trainer(self, config: TrainerConfig, data: DataManagerClient) -> TrainerProcess:
        """Make a trainer that publishes real weights, each version a little changed."""
        from dart_train.simulation.components.trainer import (
            SimulatedPolicyTrainer,
            SimulatedTrainerProcess,
            save_noise,
            trainable_tokens,
        )

        model = self.models.trainer
        trainer = SimulatedPolicyTrainer(
            lambda batch: model.update_s + trainable_tokens(batch) / model.tokens_per_s,
            save_noise(self.paths.warm_start_model),
        )
        return SimulatedTrainerProcess(config, data, self.clock, trainer, publish=None)

    @contextlib.asynccontextmanager
    async def open_policy(self, config: WorkerConfig) -> AsyncIterator[OpenPolicies]:
        """Connect to the inference workers."""
        async with open_policy_factory(
            config.policy, config.prompt_spec, config.addresses, clock=self.clock
        ) as policies:
            yield policies


Record = Callable[[Part, RunPaths, float], RequestLog]
"""Records a run of some minutes; its metrics are in the run folder afterwards."""


def record_really(part: Part, paths: RunPaths, minutes: float) -> RequestLog:
    """Record a run on this host.

    Args:
        part: The run.
        paths: Its folder.
        minutes: How long the trainer runs, the start of the inference workers included.

    Returns:
        The answered requests.
    """
    import torch

    torch.set_num_threads(1)
    system = RealWorkersSystem(for_minutes(part.recipe, minutes, part.seed), paths, TRUTH, part.seed, SYSTEM_CLOCK)
    asyncio.run(system.run())
    return system.log


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Where recorded runs are, and how long they take."""
    command.add_argument(
        "--real", action="store_true", help="the four modes with real inference workers, and nothing else"
    )
    command.add_argument("--folder", type=Path, default=Path("runs/real-modes"), help="keeps the recorded runs")
    command.add_argument("--minutes", type=float, default=3.5, help="length of each recorded run")
    command.add_argument(
        "--parts", default="", help="names of parts to record now, with commas; empty: all that are missing"
    )


def measure(args: argparse.Namespace, record: Record = record_really, parts: Sequence[Part] = PARTS) -> dict[str, Any]:
    """Record the parts that are missing, and compare where all are there.

    Args:
        args: `folder`, `minutes`, `parts`.
        record: Records a run.
        parts: The runs.

    Returns:
        `sim_error` and what it comes from; without it where parts are still missing.
    """
    wanted = set(args.parts.split(",")) - {""} or {part.name for part in parts}
    for part in parts:
        if part.name in wanted and _worker_in_use(args.folder / part.name) is None:
            _record(part, args.folder / part.name, args.minutes, record)
    missing = [part.name for part in parts if _worker_in_use(args.folder / part.name) is None]
    return {"missing": missing} if missing else compare(args.folder, parts)


def compare(folder: Path, parts: Sequence[Part]) -> dict[str, Any]:
    """Fit the models on their runs, predict the others, and compare.

    Args:
        folder: Has all recorded runs.
        parts: The runs.

    Returns:
        `sim_error`: the largest relative error of all figures that a run recorded; figures of each mode; the models.
    """
    models = fit_models([folder / part.name for part in parts if part.fitted], SystemModels())
    modes: dict[str, Any] = {}
    for part in parts:
        if part.fitted:
            continue
        real, predicted = read_figures(folder, part), predict(part, models)
        errors = relative_errors(real, predicted)
        modes[part.name] = {
            "real": _rounded(asdict(real)),
            "predicted": _rounded(asdict(predicted)),
            "errors": _rounded(errors),
        }
    return {
        "sim_error": max(max(mode["errors"].values()) for mode in modes.values()),
        "sim_error_by_figure": {
            name: max(found)
            for name in COMPARED
            if (found := [mode["errors"][name] for mode in modes.values() if name in mode["errors"]])
        },
        "modes": modes,
        "fitted_on": [part.name for part in parts if part.fitted],
        "simulated": "desktops and the duration of the train step; everything else is real",
        "models": models.model_dump(mode="json"),
    }


def relative_errors(real: ComponentFigures, predicted: ComponentFigures) -> dict[str, float]:
    """Compare every figure that a run recorded with its prediction.

    Args:
        real: The run.
        predicted: Its prediction.

    Returns:
        |predicted / real - 1| by figure, without those that were not recorded.
    """
    pairs = {name: (getattr(real, name), getattr(predicted, name)) for name in COMPARED}
    return {name: abs(guess / value - 1) for name, (value, guess) in pairs.items() if value is not None}


def predict(part: Part, models: SystemModels) -> ComponentFigures:
    """Predict the figures of a run: means over several seeds.

    Args:
        part: The run.
        models: Fitted models.

    Returns:
        The figures.
    """
    outcomes = [
        simulated_figures(simulate(scenario_of(part.recipe, models, hours=HOURS_OF_PREDICTION, seed=seed)))
        for seed in range(SEEDS_OF_PREDICTION)
    ]
    names = [field.name for field in fields(ComponentFigures)]
    return ComponentFigures(**{name: fmean(getattr(each, name) for each in outcomes) for name in names})


def read_figures(folder: Path, part: Part) -> ComponentFigures:
    """Compute the figures of a recorded run from what is in its folder.

    Args:
        folder: Has all recorded runs.
        part: The run; it was recorded to its end.

    Returns:
        The figures.
    """
    lines, in_use = read_metrics(RunPaths(folder / part.name)), _worker_in_use(folder / part.name)
    assert in_use is not None, f"{part.name} is recorded"
    return recorded_figures(lines, in_use, part.desktops, part.recipe.inference.workers, whole_updates(lines))


def _worker_in_use(folder: Path) -> float | None:
    """What the senders of requests saw, which is in no metric line; None where a run was not recorded to its end."""
    file = folder / "figures.json"
    return json.loads(file.read_text(encoding="utf-8")).get("worker_in_use") if file.exists() else None


def _record(part: Part, folder: Path, minutes: float, record: Record) -> None:
    if folder.exists():
        raise SystemExit(f"{folder} holds a run that was not recorded to its end: delete it and start again")
    paths = RunPaths(folder)
    log = record(part, paths, minutes)
    workers, window = part.recipe.inference.workers, whole_updates(read_metrics(paths))
    figures = {"worker_in_use": log.in_use(workers, window)}
    (folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _rounded(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in figures.items()}
