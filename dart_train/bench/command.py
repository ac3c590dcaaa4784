"""The command `dart-train bench`: measures on this host what `dart-train plan` predicts.

Role: prepares policy and configurations as a run does, has train steps, a published version and an inference worker measured, one after the
other, and prints predicted against measured. Rule: one trainer process and one inference worker are measured, whatever the recipe has; what
cannot be measured here is a sentence in the result, and the rest is measured all the same. Everything is made in a temporary folder
(`scratch`), and every process ends with this one. Non-goals: formulas (`comparison`), desktops.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Literal

from rich.console import Console
from rich.table import Table

from dart_agent.errors import AgentError, ConfigError
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.config import load_inference_config
from dart_agent.inference.process_group import set_parent_death_signal
from dart_agent.inference.settings import PublishedWeights
from dart_agent.prompts.builder import PromptSpec
from dart_train.bench.comparison import Row, engine_rows, training_rows
from dart_train.bench.engine_rate import measure_engine
from dart_train.bench.scratch import scratch_folder
from dart_train.bench.train_step import TrainFigures, TrainJob
from dart_train.config import Recipe, RecipeError
from dart_train.plan.latencies import Assumptions
from dart_train.plan.policy_size import ANSWER_TOKENS, PolicySize, read_policy_size
from dart_train.run import components, training_components
from dart_train.run.paths import RunPaths
from dart_train.run.recipe_policy import prompt_spec, recipe_prompt
from dart_train.trainer.config import TrainerConfig

Part = Literal["train", "publish", "engine"]
PARTS: tuple[Part, ...] = ("train", "publish", "engine")
MOST_STEPS = 5
"""Steps of a measured trajectory, at most."""
LOG_TAIL = 1500
ENGINE_LOG = "bench-engine.log"
"""In the temporary folder, which is gone at the end: a failure quotes the end of it."""


def run_bench(
    recipe: Recipe,
    *,
    skip: Collection[Part] = (),
    repeats: int = 3,
    rollouts: int = 2,
    mfu: float = 0.35,
    tflops: float | None = None,
    json_file: Path | None = None,
    console: Console | None = None,
) -> bool:
    """Measure, print, and write.

    Args:
        recipe: The recipe.
        skip: Parts that are left out.
        repeats: Train steps that are measured.
        rollouts: Trajectories of their batch.
        mfu: Fraction of the device's speed that the plan assumes of train steps.
        tflops: Speed of the device that the plan assumes; None: that of a matrix product on it.
        json_file: File for all figures; None: none is written.
        console: Where the table is printed; None: standard output.

    Returns:
        Whether every part that was asked for was measured.

    Raises:
        RecipeError: The policy is not on this host, or nothing is left to measure.
    """
    if not set(PARTS) - set(skip):
        raise RecipeError("--skip leaves nothing to measure: leave one of train, publish and engine")
    rows: list[Row] = []
    failed: dict[str, str] = {}
    with scratch_folder() as place:
        paths = RunPaths(place / "run")
        paths.make()
        measured = measured_recipe(recipe, paths)
        size, spec = read_policy_size(measured), prompt_spec(measured)
        found = None
        if not {"train", "publish"} <= set(skip):
            try:
                found = _measure_training(measured, paths, size, spec, skip, repeats, rollouts)
                assumed = Assumptions(tflops=tflops or found.device_tflops, mfu=mfu)
                rows += training_rows(measured, size, assumed, found)
            except _PartFailedError as error:
                failed |= {part: str(error) for part in ("train", "publish") if part not in skip}
        if "engine" not in skip:
            try:
                rows += _measure_engine(measured, paths, place / "w", spec, found)
            except AgentError as error:
                failed["engine"] = f"{error}\n{_end_of(paths.logs / ENGINE_LOG)}".rstrip()
    _print(console or Console(), rows, failed, found)
    if json_file is not None:
        figures: dict[str, Any] = {
            "training": None if found is None else found.model_dump(mode="json", exclude={"version"}),
            "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
            "failed": failed,
        }
        json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return not failed


def measured_recipe(recipe: Recipe, paths: RunPaths) -> Recipe:
    """Derive what is measured: one trainer process and one inference worker, from the policy before any warm start.

    Args:
        recipe: The recipe.
        paths: Folder of the measurement; a model that the recipe makes is made there.

    Returns:
        The recipe.

    Raises:
        RecipeError: The policy is not on this host.
    """
    plain = recipe.model_dump()
    if recipe.model.path is not None:
        try:
            resolve_checkpoint(recipe.model.path)
        except ConfigError as error:
            raise RecipeError(
                f"model.path: {error}; a bench needs the weights: fetch them, or use dart-train plan"
            ) from None
    if recipe.model.preset is not None:
        from dart_train.model.init_model import init_model

        init_model(recipe.model.preset, paths.initial_model, recipe.run.seed)
        plain["model"] |= {"preset": None, "path": str(paths.initial_model), "prompt": recipe_prompt(recipe)}
    plain["warmup"]["enabled"] = False
    plain["train"] |= {"processes": 1, "devices": None, "sft_coefficient": 0.0}
    plain["inference"] |= {"workers": 1, "devices": None}
    plain["eval"]["during_workers"] = 0
    plain["data"] |= {"database_url": None, "images_url": None, "listen": None, "url": None}
    return Recipe.model_validate(plain)


class _PartFailedError(Exception):
    """A part cannot be measured here."""


def _measure_training(
    recipe: Recipe,
    paths: RunPaths,
    size: PolicySize,
    spec: PromptSpec,
    skip: Collection[Part],
    repeats: int,
    rollouts: int,
) -> TrainFigures:
    training_components.trainer(recipe, paths)
    config = TrainerConfig.model_validate_json((paths.configs / "trainer.json").read_text(encoding="utf-8"))
    job = TrainJob(
        config=config,
        folder=paths.root,
        image_wh=spec.picture_wh(recipe.desktops.resolution),
        patch_px=size.patch_px,
        rollouts=rollouts,
        steps=max(1, min(MOST_STEPS, recipe.tasks.max_steps, size.images if size.images > 1 else MOST_STEPS)),
        response_tokens=min(recipe.rollout.max_tokens, ANSWER_TOKENS),
        repeats=0 if "train" in skip else repeats,
        publish="publish" not in skip,
    )
    job_file = paths.root / "train-job.json"
    job_file.write_text(job.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "dart_train.bench.train_step", str(job_file)]
    output = paths.root / "train-figures.txt"
    with output.open("w", encoding="utf-8") as file:
        code, said = run_measurement(command, file)
    if code:
        raise _PartFailedError(f"the process ended with exit code {code}: {said.strip()[-LOG_TAIL:]}".rstrip(": "))
    return TrainFigures.model_validate_json(output.read_text(encoding="utf-8").strip().splitlines()[-1])


def run_measurement(argv: Sequence[str], output: IO[str]) -> tuple[int, str]:
    """Run a process that measures; it is killed when this process ends, however that ends.

    Args:
        argv: The program and its arguments.
        output: Where its standard output goes.

    Returns:
        Its exit code, negative where a signal ended it, and its standard error.
    """
    done = subprocess.run(
        argv, check=False, stdout=output, stderr=subprocess.PIPE, text=True, preexec_fn=_end_with_parent
    )
    return done.returncode, done.stderr


def _end_with_parent() -> None:
    set_parent_death_signal(signal.SIGKILL)


def _measure_engine(
    recipe: Recipe, paths: RunPaths, directory: Path, spec: PromptSpec, found: TrainFigures | None
) -> list[Row]:
    components.inference(recipe, paths)
    settings = load_inference_config(paths.configs / "inference.json").worker
    published = None
    if found is not None and found.version is not None:
        published = PublishedWeights(1, found.version, found.digest)
    figures = asyncio.run(
        measure_engine(
            settings,
            spec,
            recipe.rollout.sampling,
            screen_wh=recipe.desktops.resolution,
            requests=recipe.inference.max_num_seqs,
            directory=directory,
            log=paths.logs / ENGINE_LOG,
            published=published,
        )
    )
    return engine_rows(figures, None if found is None else found.published_bytes)


def _print(console: Console, rows: list[Row], failed: dict[str, str], found: TrainFigures | None) -> None:
    if found is not None:
        console.print(f"Trainer on {found.device}; a matrix product reaches {found.device_tflops:.3g} TFLOP/s there.")
    table = Table(title="Predicted and measured", title_justify="left")
    for index, name in enumerate(("what", "unit", "predicted", "measured", "measured / predicted")):
        table.add_column(name, justify="right" if index > 1 else "left")
    for row in rows:
        table.add_row(row.name, row.unit, *map(_number, (row.predicted, row.measured, row.ratio)))
    console.print(table)
    for part, reason in failed.items():
        console.print(f"Not measured: {part}: {reason}", style="bold red", markup=False, soft_wrap=True)


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:] if log.exists() else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
