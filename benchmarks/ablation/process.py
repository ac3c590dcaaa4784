"""One run of the ablation in a process of its own: `python -m benchmarks.ablation.process FILE`, with a `Job` as JSON.

Role: the real orchestrator, or an evaluation of what it trained. Rule: the same job resumes where it was stopped; a finished one ends at
once. Exit code 0 where the job is done. Non-goals: what is run (`arms`), where (`session`).
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from dart_agent.errors import StoreError
from dart_agent.strict_model import StrictModel
from dart_train.config import Recipe, RecipeError
from dart_train.evaluation.stored import EvaluationRequest, evaluate, kept_versions, version_of_model, version_of_run
from dart_train.run.launcher import ComponentSpec, ProcessHandle, spawn_locally
from dart_train.run.orchestrator import Interrupted, run_recipe
from dart_train.run.paths import RunPaths
from dart_train.run.preflight import check_recipe
from dart_train.run.run_folder import check_run_folder
from dart_train.run.waiting import RunFailed

REAL, LATE = "dart_agent.inference", "benchmarks.ablation.late_inference"


class Job(StrictModel):
    """What one process does.

    Attributes:
        kind: `run`: a recipe to its end; `evaluate`: the newest version of its run, or `model`.
        recipe: The recipe.
        folder: The run folder; of a model, the folder of its evaluations.
        late: Whether inference workers learn of versions late.
        model: A model that is evaluated in place of a run.
        split: Split of the evaluation.
        tasks: Its tasks.
        samples: Episodes per task.
        temperature: Sampling temperature; 0: greedy.
    """

    kind: Literal["run", "evaluate"]
    recipe: Recipe
    folder: Path
    late: bool = False
    model: Path | None = None
    split: Literal["validation", "test"] = "validation"
    tasks: int = Field(default=1, ge=1)
    samples: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.0, ge=0)


async def spawn_with_late_inference(spec: ComponentSpec) -> ProcessHandle:
    """Start a component; the inference component learns of versions late.

    Args:
        spec: The component.

    Returns:
        Its process.
    """
    return await spawn_locally(replace(spec, argv=tuple(LATE if word == REAL else word for word in spec.argv)))


def run(job: Job) -> None:
    """Run a recipe to its end.

    Args:
        job: The job.
    """
    paths = RunPaths(job.folder)
    check_run_folder(job.recipe, paths)
    check_recipe(job.recipe, paths)
    asyncio.run(run_recipe(job.recipe, paths, spawn=spawn_with_late_inference if job.late else spawn_locally))


def evaluate_job(job: Job) -> None:
    """Evaluate the newest version of a run, or a model.

    Args:
        job: The job.
    """
    from dart_train.data_commands.open_run import open_run

    if job.model is not None:
        version = version_of_model(job.model, job.recipe, job.folder)
    else:
        paths = RunPaths(job.folder)
        with open_run(paths.root) as opened:
            newest = max(kept_versions(opened))
        version = version_of_run(paths, job.recipe, str(newest))
    request = EvaluationRequest(job.split, job.tasks, job.samples, job.temperature)
    asyncio.run(evaluate(version, request))


def main(file: Path) -> int:
    """Do a job.

    Args:
        file: The job as JSON.

    Returns:
        The exit code.
    """
    job = Job.model_validate_json(file.read_text(encoding="utf-8"))
    try:
        (run if job.kind == "run" else evaluate_job)(job)
    except (RecipeError, RunFailed, StoreError, Interrupted) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
