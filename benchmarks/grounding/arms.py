"""The trainings and answers of one seed, each kept in its folder.

Role: `SeedRun` makes the data and the start model of a seed, trains each arm, and keeps its answers. Rule: an arm whose answers are there
is not trained again, and a training that was killed goes on from its newest checkpoint, so that the benchmark can be started again
at any time. All arms start from the same weights, see the same batches in the same order, and are asked the same questions.
Non-goals: figures.

    text      backbone from its beginning, coordinates as text          head      the same backbone and updates, with the action head
    share_X   the head with a share of screens and of updates           frozen    a new head on the frozen backbone of `text`
    verifier  a model of its own with the weights of the judged head's backbone as its start: of `head`, and of `text` for `frozen`
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.grounding.earlier import DIGEST, RECORDED
from benchmarks.grounding.setting import REGION_SCORES, ScreenSource, Setting, tiny_preset
from benchmarks.grounding.text_arm import TextTrainer, text_points
from benchmarks.machine import commit, machine
from benchmarks.work_folder import write_json
from dart_agent.grounding.evaluation import Answerer
from dart_agent.grounding.grounder import Grounder
from dart_agent.grounding.model import load_grounding_model
from dart_agent.grounding.samples import GroundingSample, read_image, read_samples, write_samples
from dart_agent.grounding.scoring import Point, is_hit
from dart_agent.grounding.verifier import load_verifier
from dart_agent.grounding.zoom import ZOOM
from dart_agent.metrics_file import append_metrics
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.types import RgbImage
from dart_train.grounding.config import GroundingConfig, SupervisedConfig, VerifierConfig
from dart_train.grounding.fit import train_grounding
from dart_train.grounding.supervised import run_training
from dart_train.grounding.verifier import train_verifier
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import load_model

Answers = dict[str, dict[str, bool]]
"""By method and sample: whether the answer is right."""
Ask = Callable[[RgbImage, list[str]], Sequence[Point]]
CHECKPOINT_EVERY = 50


class SeedRun:
    """One seed.

    Args:
        folder: Where everything of the seed is kept.
        source: Where its screens come from.
        setting: Sizes and budgets.
        seed: The seed.
        threads: CPU threads of torch.
    """

    def __init__(self, folder: Path, source: ScreenSource, setting: Setting, seed: int, threads: int) -> None:
        self.folder, self.source, self.setting, self.seed, self.threads = folder, source, setting, seed, threads

    @cached_property
    def start(self) -> Path:
        """The model that every training begins with."""
        path = self.folder / "start"
        return path if path.exists() else init_model(tiny_preset(self.source.words), path, self.seed)

    @cached_property
    def train_file(self) -> Path:
        """The training samples."""
        return self._screens("train", self.setting.screens)

    @cached_property
    def held_out(self) -> list[tuple[Path, GroundingSample]]:
        """The test samples of all kinds, each with its image."""
        files = [self._screens(name, self.setting.held_out_screens) for name in self.source.held_out]
        return [(file.parent / sample.image, sample) for file in files for sample in read_samples(file)]

    def make_screens(self) -> None:
        """Write all screens, unless there are answers about them: what is recorded on desktops belongs to the time of no arm."""
        if not all((self.folder / f"{arm}.json").exists() for arm in ("text", "head", "frozen")):
            _ = self.train_file, self.held_out
            write_json(self.folder / RECORDED, self.source.told)

    def test_digest(self) -> str | None:
        """What tells the test screens and questions from others; None where an earlier record does not tell."""
        file = self.folder / RECORDED
        told = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        written = [self.folder / "data" / f"{name}.jsonl" for name in self.source.held_out]
        if DIGEST not in told and all(path.exists() for path in written):
            found = hashlib.sha256()
            for path in (*written, *(image for image, _ in self.held_out)):
                found.update(path.read_bytes())
            told[DIGEST] = found.hexdigest()[:16]
            write_json(file, told)
        return told.get(DIGEST)

    def text(self) -> Answers:
        """Coordinates as text."""

        def answer() -> Answers:
            loaded = load_model(str(self._text_model()), "cpu")
            loaded.model.eval()
            return {"text": self.judge(lambda image, asked: text_points(loaded, image, asked))}

        return self.kept("text", answer)

    def head(self) -> Answers:
        """The head, its ways of scoring regions, with the verifier, and with a second look."""

        def answer() -> Answers:
            model = self.train_head("head", self.train_file, self.start, self.setting.updates)
            found = self._head_answers(model, self._verifier("verifier", model))
            pointer = load_grounding_model(model)
            for score in REGION_SCORES:
                found[f"head_{score}"] = self.judge(points_of(Answerer(Grounder(pointer, score))))
            found["zoom"] = self.judge(points_of(Answerer(Grounder(pointer), zoom=ZOOM)))
            return found

        return self.kept("head", answer)

    def frozen(self) -> Answers:
        """A head on the frozen backbone of the text model, alone and with the verifier."""

        def answer() -> Answers:
            updates, start = self.setting.frozen_updates, self._text_model()
            model = self.train_head("frozen", self.train_file, start, updates, stage="head")
            return self._head_answers(model, self._verifier("frozen_verifier", start))

        return self.kept("frozen", answer)

    def share(self, share: float) -> Answers:
        """The head with a share of the screens, each of them seen as often as with all."""

        def answer() -> Answers:
            updates = max(1, round(share * self.setting.updates))
            model = self.train_head(f"share_{share}", self._part(share), self.start, updates)
            return {"head": self.judge(points_of(Answerer(Grounder(load_grounding_model(model)))))}

        return self.kept(f"share_{share}", answer)

    def train_head(self, name: str, samples: Path, start: Path, updates: int, **changes: Any) -> Path:
        """Train a model with a head.

        Args:
            name: Name of the training.
            samples: File of samples.
            start: Where it starts from.
            updates: How many updates.
            changes: Other settings; without, everything is trained.

        Returns:
            Directory of the model.
        """
        config = GroundingConfig(**{"stage": "all", **self._config(name, samples, start, updates), **changes})
        if not config.out_dir.exists():
            train_grounding(config, self._report)
        return config.out_dir

    def judge(self, ask: Ask, asked: Sequence[tuple[Path, GroundingSample]] | None = None) -> dict[str, bool]:
        """Ask test samples.

        Args:
            ask: The method.
            asked: Samples with their images; None: all held-out ones.

        Returns:
            By sample: whether the answer is right.
        """
        by_image: dict[Path, list[GroundingSample]] = defaultdict(list)
        for path, sample in self.held_out if asked is None else asked:
            by_image[path].append(sample)
        hits: dict[str, bool] = {}
        for path, samples in by_image.items():
            points = ask(read_image(path), [sample.instruction for sample in samples])
            hits |= {sample.sample_id: is_hit(sample, [point]) for sample, point in zip(samples, points, strict=True)}
        return hits

    def kept(self, arm: str, answer: Callable[[], Answers]) -> Answers:
        """The answers of an arm; those that are stored where there are some.

        Args:
            arm: Its name.
            answer: Trains and asks.

        Returns:
            The answers.
        """
        path = self.folder / f"{arm}.json"
        if not path.exists():
            began_s = SYSTEM_CLOCK.monotonic()
            answers = answer()
            seconds = round(SYSTEM_CLOCK.monotonic() - began_s, 1)
            where = {"commit": commit(), "cpu": machine()["cpu"]}
            write_json(path, {"answers": answers, "seconds": seconds, **where})
        found: Answers = json.loads(path.read_text(encoding="utf-8"))["answers"]
        return found

    def seconds(self) -> dict[str, float]:
        """Duration of each arm that is stored, training and answers; of one that was resumed, since it was."""
        return {
            path.stem: json.loads(path.read_text(encoding="utf-8"))["seconds"]
            for path in sorted(self.folder.glob("*.json"))
        }

    def _head_answers(self, model: Path, verifier: Path) -> Answers:
        grounder = Grounder(load_grounding_model(model))
        verified = Answerer(grounder, load_verifier(str(verifier)), self.setting.verifier_gamma)
        return {"head": self.judge(points_of(Answerer(grounder))), "verifier": self.judge(points_of(verified))}

    def _text_model(self) -> Path:
        config = SupervisedConfig(**self._config("text", self.train_file, self.start, self.setting.updates))
        if not config.out_dir.exists():
            run_training(
                lambda samples, ranks: TextTrainer(config, samples, load_model(config.start_model, "cpu"), ranks),
                config,
                "text",
                self._report,
                SYSTEM_CLOCK,
            )
        return config.out_dir

    def _verifier(self, name: str, start: Path) -> Path:
        made = self._config(name, self.train_file, start, self.setting.verifier_updates)
        config = VerifierConfig(**made, marking=self.setting.verifier_marking)
        if not config.out_dir.exists():
            train_verifier(config, self._report)
        return config.out_dir

    def _config(self, name: str, samples: Path, start: Path, updates: int) -> dict[str, Any]:
        setting = self.setting
        return {
            "start_model": str(start),
            "samples": (samples,),
            "out_dir": self.folder / "models" / name,
            "checkpoints": self.folder / "states" / name,
            "metrics": self.folder / f"{name}.metrics.jsonl",
            "updates": updates,
            "images_per_update": setting.images_per_update,
            "questions_per_image": setting.questions_per_image,
            "optimizer": {
                "learning_rate": setting.learning_rate,
                "lr_warmup_updates": max(1, min(60, updates // 5)),
                "lr_schedule": "cosine",
                "weight_decay": 0.01,
                "beta2": 0.98,
            },
            "checkpoint_every": CHECKPOINT_EVERY,
            "seed": self.seed,
            "threads": self.threads,
            "device": "cpu",
        }

    def _report(self, line: Mapping[str, Any]) -> None:
        append_metrics(self.folder / "progress.jsonl", {"seed": self.seed, **line})

    def _screens(self, name: str, count: int) -> Path:
        path = self.folder / "data" / f"{name}.jsonl"
        return path if path.exists() else self.source.write(path.parent, name, count, str(self.seed))

    def _part(self, share: float) -> Path:
        """A file with the first screens of the training."""
        path = self.train_file.with_name(f"train_{share}.jsonl")
        if not path.exists():
            most = max(1, round(share * self.setting.screens))
            samples = list(read_samples(self.train_file))
            screens = list(dict.fromkeys(sample.screen_id for sample in samples))[:most]
            kept = set(screens)
            write_samples(path, [sample for sample in samples if sample.screen_id in kept])
        return path


def points_of(answerer: Answerer) -> Ask:
    """Ask a head.

    Args:
        answerer: The head, with what corrects it.

    Returns:
        A function of image and instructions.
    """
    return lambda image, asked: [final.points[0] for final in answerer.answer(image, asked)]
