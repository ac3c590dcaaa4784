"""A stage of the warm start keeps its state, and a warm start that was interrupted goes on there."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_warmup_pages import config, store

from dart_agent.errors import ConfigError
from dart_envs.clock import SYSTEM_CLOCK
from dart_train.model.init_model import init_model
from dart_train.trainer.ranks import Ranks
from dart_train.warmup.__main__ import main
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.fit import warm_start
from dart_train.warmup.optimisation import make_optimizer, sum_of
from dart_train.warmup.stage import Stage, StageLimits, StageProgress, UnfinishedWarmStart, unfinished_file

torch = pytest.importorskip("torch")

LIMITS = StageLimits(images=24, max_minutes=60.0, report_every=8, learning_rate=0.1)
WANTED = (3.0, -1.0, 2.0, 0.5, -4.0, 1.0)
"""What the updates of a stage pull the parameters to."""


class Interrupted(Exception):
    """The warm start ends here."""


class ToyStage:
    """Six updates of two parameters with reports after two, four and six."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.config = WarmupConfig(
            start_model="none", screens=root, out_dir=root / "warm", metrics=root / "metrics.jsonl",
            batch_size=4, lr_warmup_updates=2,
        )  # fmt: skip
        torch.manual_seed(1)
        self.parameters = [torch.nn.Parameter(torch.randn(2, 2)), torch.nn.Parameter(torch.randn(2))]
        self.optimizer = make_optimizer(self.parameters, LIMITS.learning_rate, self.config)
        self.unfinished = UnfinishedWarmStart(self.config)
        self.progress = self.unfinished.restore("images", self.optimizer, self.parameters)
        self.reported: list[int] = []

    def run(self, until: int | None = None, broken: Collection[int] = ()) -> None:
        stage = Stage(
            "images", LIMITS, self.config, self.optimizer, self.parameters, self.progress, self.unfinished, Ranks(), SYSTEM_CLOCK
        )  # fmt: skip

        def losses() -> list[Any]:
            if self.progress.updates == until:
                raise Interrupted
            wanted = float("nan") if self.progress.updates in broken else WANTED[self.progress.updates]
            return [(parameter - wanted).square().sum() for parameter in self.parameters]

        def report(progress: StageProgress) -> None:
            self.reported.append(progress.seen)

        stage.run(losses, sum_of, report)


def lines_of(root: Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["kind"], line.get("pages", line.get("images"))) for line in lines]


def interrupt_after(kind: str, count: int) -> Any:
    """A listener that ends the warm start at a report."""
    left = [count]

    def on_progress(line: Mapping[str, Any]) -> None:
        left[0] -= line["kind"] == kind
        if left[0] < 0:
            raise Interrupted

    return on_progress


@pytest.mark.parametrize("until", [4, 5])
def test_a_stage_that_goes_on_makes_the_updates_of_one_that_was_not_interrupted(tmp_path: Path, until: int) -> None:
    whole = ToyStage(tmp_path / "whole")
    whole.run()
    first = ToyStage(tmp_path / "parts")
    with pytest.raises(Interrupted):
        first.run(until)
    second = ToyStage(tmp_path / "parts")
    assert (second.progress.seen, second.progress.updates) == (16, 4)
    second.run()
    assert whole.reported == first.reported + second.reported == [8, 16, 24]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters, second.parameters, strict=True))
    assert second.progress.mean_loss == pytest.approx(whole.progress.mean_loss, rel=1e-12)


def test_an_update_whose_gradient_is_not_finite_is_left_out(tmp_path: Path) -> None:
    stage = ToyStage(tmp_path)
    before = [parameter.detach().clone() for parameter in stage.parameters]
    with pytest.raises(
        ConfigError, match=r"^5 updates in a row .* \(5\) .* not finite: begin another run with a lower"
    ):
        stage.run(broken=range(6))
    assert all(torch.equal(a, b) for a, b in zip(before, stage.parameters, strict=True))
    (tmp_path / "one").mkdir()
    once = ToyStage(tmp_path / "one")
    once.run(broken=[0, 3])
    assert once.progress.seen == 24
    assert all(bool(parameter.isfinite().all()) for parameter in once.parameters)
    assert math.isfinite(once.progress.mean_loss)


def test_a_stage_ends_with_its_minutes_counting_those_of_earlier_goes() -> None:
    assert not StageProgress(seen=20, elapsed_s=3599.0).is_over(LIMITS)
    assert StageProgress(seen=20, elapsed_s=3600.0).is_over(LIMITS)
    assert StageProgress(seen=24).is_over(LIMITS)


def test_a_state_of_another_stage_changes_nothing(tmp_path: Path) -> None:
    kept = ToyStage(tmp_path)
    with pytest.raises(Interrupted):
        kept.run(4)
    other = UnfinishedWarmStart(kept.config)
    assert (other.stage, other.seen, other.seed_suffix) == ("images", 16, "/after 16 images")
    parameters = [torch.nn.Parameter(torch.zeros(3))]
    optimizer = make_optimizer(parameters, 0.1, kept.config)
    assert other.restore("pages", optimizer, parameters).seen == 0
    assert torch.equal(parameters[0], torch.zeros(3))


@pytest.mark.parametrize(("kind", "reports"), [("reading", 0), ("reading", 1), ("warmup", 0), ("warmup", 1)])
def test_an_interrupted_warm_start_goes_on_from_its_last_report(tmp_path: Path, kind: str, reports: int) -> None:
    start_model = init_model("tiny", tmp_path / "start", seed=1)
    store(tmp_path / "screens", 14)
    settings = config(tmp_path, start_model, pointer=True, imitated_demos_per_family=14, report_every_images=4)
    with pytest.raises(Interrupted):
        warm_start(settings, interrupt_after(kind, reports))
    assert unfinished_file(settings.out_dir).exists()
    assert not settings.out_dir.exists()
    result = warm_start(settings)
    wanted = [("reading", 12), ("reading", 24), ("warmup", 4), ("warmup", 8)]
    assert lines_of(tmp_path) == (wanted + wanted[-1:] if (kind, reports) == ("warmup", 1) else wanted)
    assert result.images == 8
    assert (settings.out_dir / "model.safetensors").exists()
    assert not unfinished_file(settings.out_dir).exists()


def test_an_unfinished_warm_start_with_other_settings_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_model = init_model("tiny", tmp_path / "start", seed=1)
    store(tmp_path / "screens", 14)
    settings = config(tmp_path, start_model)
    with pytest.raises(Interrupted):
        warm_start(settings, interrupt_after("reading", 1))
    file = tmp_path / "config.json"
    file.write_text(settings.model_copy(update={"seed": 3}).model_dump_json(), encoding="utf-8")
    assert main(["--config", str(file)]) == 2
    assert "is of a warm start with other settings: remove it to begin anew" in capsys.readouterr().err
    UnfinishedWarmStart(settings.model_copy(update={"threads": 2, "metrics": tmp_path / "other.jsonl"}))
