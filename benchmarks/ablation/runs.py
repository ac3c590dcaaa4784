"""The runs of an ablation: warm start, arms, and what the hard families need beforehand.

Role: `warm_start`, `run_arm`. Rule: each step is recorded in the work folder and never done twice; an arm is judged by the real engine on
the version that it ended with, greedily on all validation tasks and on all test tasks with the held-out families; on the hard families by
sampling. Non-goals: arms (`arms`), processes (`session`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.ablation.arms import Arm, arm_overrides, is_of_today, sampling_overrides
from benchmarks.ablation.curves import read_curve, read_evaluation
from benchmarks.ablation.dialogs import HARD, HELD_OUT, SUITE, TRAINED
from benchmarks.ablation.process import Job
from benchmarks.ablation.session import Session
from dart_envs.errors import UnsupportedCapabilityError
from dart_train.evaluation.stored import EvaluationRequest

WARM = "warm-start"
PROBE_TASKS, PROBE_SAMPLES = 8, 32
"""Of each candidate for a hard family: 256 samples."""
JUDGED_TASKS, JUDGED_SAMPLES = 8, 8
"""Of each hard family, to judge an arm."""
COLLECTOR_MINUTES = 3.0
DEMONSTRATIONS = 16
"""Recorded demonstrations per hard family for the imitation term."""


def warm_start(session: Session, seed: int) -> dict[str, Any]:
    """Make the policy that all arms of a seed begin with.

    Args:
        session: The work folder.
        seed: The seed.

    Returns:
        Its success.
    """
    folder = session.folder(seed) / WARM

    def make() -> dict[str, Any]:
        recipe = session.recipe({"run.name": WARM, "run.seed": seed, "train.updates": 0, "eval.every_minutes": None})
        session.do(seed, WARM, Job(kind="run", recipe=recipe, folder=folder))
        evaluations = folder / "as-a-model"
        return _judge(
            session, seed, WARM, Job(kind="evaluate", recipe=recipe, folder=evaluations, model=folder / "warm")
        )

    return session.recorded(seed, WARM, make)


def run_arm(session: Session, seed: int, arm: Arm) -> dict[str, Any]:
    """Run an arm, or go on with it.

    Args:
        session: The work folder.
        seed: The seed.
        arm: The arm.

    Returns:
        Its record.
    """
    warm_start(session, seed)
    hard = hard_families(session, seed) if arm.hard else ()
    folder = session.folder(seed) / arm.name

    def make() -> dict[str, Any]:
        if arm.hard and not hard:
            return {"skipped": "every candidate for a hard family had a success in the probe"}
        overrides = arm_overrides(
            arm,
            seed=seed,
            minutes=session.minutes,
            model=str(session.folder(seed) / WARM / "warm"),
            hard_families=hard,
        )
        if arm.imported:
            overrides["curation.pool_import"] = [str(collected(session, seed, hard))]
        if "train.sft_coefficient" in arm.overrides:
            overrides["demos.path"] = str(demonstrations(session, seed, hard))
        recipe = session.recipe(overrides)
        job = Job(kind="run", recipe=recipe, folder=folder, late=arm.perturbed)
        session.do(seed, arm.name, job, perturbed=arm.perturbed)
        judged = _judge(session, seed, arm.name, Job(kind="evaluate", recipe=recipe, folder=folder))
        found = {"changes": dict(arm.overrides), "curve": read_curve(folder).as_dict(), **judged}
        if arm.hard:
            recipe = session.recipe(sampling_overrides(overrides, hard))
            found["hard"] = _sample(session, seed, arm.name, recipe, folder, None, JUDGED_TASKS, JUDGED_SAMPLES)
        return found

    record = session.recorded(seed, arm.name, make)
    if not is_of_today(arm.name, record):
        raise UnsupportedCapabilityError(
            f"{session.folder(seed) / arm.name}.json was measured when the arm changed {record['changes']}: remove it "
            "with the folder beside it to run the arm again, or give another --work"
        )
    return record


def hard_families(session: Session, seed: int) -> tuple[str, ...]:
    """Fix the families of which the warm start solves nothing, before any arm runs.

    Args:
        session: The work folder.
        seed: The seed.

    Returns:
        Their names.
    """
    folder = session.folder(seed) / WARM

    def probe() -> dict[str, Any]:
        recipe = session.recipe(sampling_overrides({"run.name": "hard-probe", "run.seed": seed}, HARD))
        model = folder / "warm"
        rows = _sample(session, seed, "hard-probe", recipe, folder / "probe", model, PROBE_TASKS, PROBE_SAMPLES)
        return {"samples": rows, "families": [name for name, row in rows.items() if row["success"] == 0]}

    return tuple(session.recorded(seed, "hard-probe", probe)["families"])


def collected(session: Session, seed: int, hard: tuple[str, ...]) -> Path:
    """Collect successes on the hard families, with the log-probs of the policy that sampled them.

    The collector is a policy of its own, whose warm start was shown the order of demonstrations of the hard families; it is not trained.

    Args:
        session: The work folder.
        seed: The seed.
        hard: The hard families.

    Returns:
        Folder of the successes.
    """
    folder, out = session.folder(seed) / "collector", session.folder(seed) / "collected"

    def collect() -> dict[str, Any]:
        recipe = session.recipe(
            {
                "run.name": "collector",
                "run.seed": seed + 1000,
                "tasks.families": list(hard),
                "warmup.imitate_order": True,
                "train.learning_rate": 0.0,
                "train.max_minutes": min(session.minutes, COLLECTOR_MINUTES),
                "eval.every_minutes": None,
            }
        )
        session.do(seed, "collector", Job(kind="run", recipe=recipe, folder=folder))
        if not out.exists():
            partial = out.with_suffix(".partial")
            session.remove(partial)
            arguments = ["--format", "portable", "--phase", "train", "--min-reward", "1"]
            session.call("data", "export", str(folder), str(partial), *arguments)
            partial.rename(out)
        lines = (out / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
        return {"successes": len(lines), "rollouts": read_curve(folder).rollouts}

    session.recorded(seed, "collector", collect)
    return out


def demonstrations(session: Session, seed: int, hard: tuple[str, ...]) -> Path:
    """Record demonstrations of train tasks of the hard families, as `dart-envs demos record` does.

    Args:
        session: The work folder.
        seed: The seed.
        hard: The hard families.

    Returns:
        Folder of the recordings.
    """
    folder = session.folder(seed) / "demonstrations"

    def record() -> dict[str, Any]:
        recorded = 0
        for family in hard:
            for task_id in SUITE.tasks("train", [family])[:DEMONSTRATIONS]:
                place = folder / task_id.replace("/", "-")
                session.remove(place)
                session.record_demonstration(task_id, place)
                recorded += 1
        session.stop_farm()
        return {"demonstrations": recorded}

    session.recorded(seed, "demonstrations", record)
    return folder


def _judge(session: Session, seed: int, name: str, job: Job) -> dict[str, Any]:
    """Greedy success on all validation tasks, and on all test tasks with the held-out families."""
    found = {}
    for split, families in (("validation", TRAINED), ("test", (*TRAINED, *HELD_OUT))):
        tasks = session.judged_tasks or len(SUITE.tasks(split, families))
        recipe = session.recipe({"run.name": "judge", "run.seed": seed})
        asked = job.model_copy(update={"split": split, "tasks": tasks, "recipe": recipe})
        session.do(seed, f"{name}-{split}", asked)
        found[split] = read_evaluation(_result(asked))
    return found


def _sample(
    session: Session, seed: int, name: str, recipe: Any, folder: Path, model: Path | None, tasks: int, samples: int
) -> dict[str, Any]:
    """Sampled success by family on the first validation tasks of each."""
    asked = Job(
        kind="evaluate",
        recipe=recipe,
        folder=folder,
        model=model,
        tasks=tasks * len(recipe.tasks.families),
        samples=samples,
        temperature=recipe.rollout.temperature,
    )
    session.do(seed, f"{name}-sampled", asked)
    rows = read_evaluation(_result(asked))
    return {family: rows[family] for family in recipe.tasks.families}


def _result(job: Job) -> Path:
    """The result of an evaluation that is done: of a run in its folder of evaluations, of a model in its own in the job's."""
    request = EvaluationRequest(job.split, job.tasks, job.samples, job.temperature)
    place = "*" if job.model is not None else "evaluations"
    pattern = request.name(0).replace("-v0-", "-v*-")
    return max(job.folder.glob(f"{place}/{pattern}/result.json"), key=lambda file: file.stat().st_mtime)
