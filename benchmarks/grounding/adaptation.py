"""A held-out application before and after exploration data, and after as much generic data.

Role: `adapt` trains the head of a seed on the samples of an exploration, and on as many generic samples, and asks both and the head as it
was about pages that the exploration never showed. Rule: the application has symbols, layouts and a size of window that no training
screen has; both adaptations start from the same model and have the same numbers of samples and updates. What the adaptation costs elsewhere
is measured on the held-out screens of the generic kind. Non-goals: figures.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from benchmarks.grounding.arms import Answers, SeedRun, points_of
from benchmarks.grounding.drawn_application import DrawnApplication, explore_application, write_pages
from benchmarks.grounding.drawn_screens import write_screens
from benchmarks.grounding.drawn_source import NOVEL_APPLICATION, SYMBOLS, TRAINED
from benchmarks.work_folder import write_json
from dart_agent.grounding.evaluation import Answerer
from dart_agent.grounding.grounder import Grounder
from dart_agent.grounding.model import load_grounding_model
from dart_agent.grounding.samples import GroundingSample, read_samples, write_samples


def adapt(run: SeedRun) -> tuple[Answers, dict[str, int]]:
    """Adapt the head of a seed.

    Args:
        run: The seed.

    Returns:
        Answers about the application (`before`, `explored`, `generic`) and about generic screens (`elsewhere_...`); what the exploration
        found.
    """
    run.head()
    folder, setting = run.folder / "adaptation", run.setting

    def answer() -> Answers:
        application = DrawnApplication(
            str(run.seed), NOVEL_APPLICATION, setting.pages, SYMBOLS, setting.reachable_pages
        )
        samples = _explore(run, application, folder)
        generic = _generic(run, folder, sum(1 for _ in read_samples(samples)))
        test = _unseen_pages(application, folder)
        start = run.folder / "models" / "head"
        rate = {"learning_rate": setting.adaptation_learning_rate, "lr_warmup_updates": 5, "lr_schedule": "cosine"}
        found: Answers = {}
        for name, file in (("before", None), ("explored", samples), ("generic", generic)):
            model = start
            if file is not None:
                model = run.train_head(f"adapted_{name}", file, start, setting.adaptation_updates, optimizer=rate)
            ask = points_of(Answerer(Grounder(load_grounding_model(model))))
            found[name], found[f"elsewhere_{name}"] = run.judge(ask, test), run.judge(ask)
        return found

    answers = run.kept("adaptation", answer)
    counts: dict[str, int] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return answers, counts


def _explore(run: SeedRun, application: DrawnApplication, folder: Path) -> Path:
    """The samples of the exploration, and notes of what it saw."""
    path = folder / "explored" / "samples" / "all.jsonl"
    if not (folder / "found.json").exists():
        setting = run.setting
        counts, seen = asyncio.run(
            explore_application(application, folder / "explored", setting.explore_steps, run.seed)
        )
        (folder / "seen.txt").write_text("\n".join(sorted(seen)), encoding="utf-8")
        write_json(folder / "found.json", counts)  # the last: what is without it is explored again
    return path


def _generic(run: SeedRun, folder: Path, count: int) -> Path:
    """As many samples of new generic screens."""
    path = write_screens(
        folder, "generic", run.setting.reachable_pages * 2, TRAINED, f"{run.seed}/more", symbols=SYMBOLS
    )
    samples = list(read_samples(path))
    if len(samples) < count:
        raise RuntimeError(f"{len(samples)} generic samples are fewer than the {count} of the exploration")
    write_samples(path, samples[:count])
    return path


def _unseen_pages(application: DrawnApplication, folder: Path) -> list[tuple[Path, GroundingSample]]:
    seen = set((folder / "seen.txt").read_text(encoding="utf-8").splitlines())
    path = write_pages(application, folder, "unseen", seen)
    return [(folder / sample.image, sample) for sample in read_samples(path)]
