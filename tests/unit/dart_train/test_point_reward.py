"""Pointing is learnt from the reward of sampled points alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dart_agent.grounding.pointing import PointDistribution  # noqa: E402
from dart_agent.grounding.scoring import is_hit  # noqa: E402
from dart_train.grounding.__main__ import main  # noqa: E402
from dart_train.grounding.batches import SampleSet  # noqa: E402
from dart_train.grounding.config import PointRewardConfig  # noqa: E402
from dart_train.grounding.fit import load_start_model  # noqa: E402
from dart_train.grounding.reward import PointRewardTrainer, train_by_reward  # noqa: E402
from tests.unit.dart_train.test_grounding_training import config as supervised  # noqa: E402

OF_LABELS = ("pointer_weight", "offset_weight", "language_weight", "soft_labels")
"""What is for learning from labels alone."""


def make_config(folder: Path, **changes: Any) -> PointRewardConfig:
    content = supervised(folder).model_dump(exclude={"dropout", *OF_LABELS})
    return PointRewardConfig.model_validate(content | {"stage": "all"} | changes)


def test_reward_rises(tmp_path: Path) -> None:
    lines: list[Any] = []
    optimizer = {"learning_rate": 1e-3, "lr_warmup_updates": 3}
    train_by_reward(
        make_config(tmp_path, updates=60, images_per_update=6, group=16, optimizer=optimizer, checkpoint_every=1000),
        lines.append,
    )
    first, last = (sum(line["reward"] for line in part) / len(part) for part in (lines[:1], lines[-10:]))
    assert first < 0.3
    assert last > 0.8, (first, last)


def test_gradient_is_the_policy_gradient_of_the_sampled_points(tmp_path: Path) -> None:
    """The loss is -mean(A log p) of the points that its seed draws, recomputed here."""
    settings = make_config(tmp_path, images_per_update=1, questions_per_image=2, group=4, advantage="no_std")
    trainer = PointRewardTrainer(settings, SampleSet(settings.samples), load_start_model(settings))
    rows = trainer.rows(0)
    losses = trainer.losses(rows, rows)
    batch = trainer.batch(0)
    _, output = trainer.forward(batch)
    generator = torch.Generator().manual_seed(0)
    wanted = []
    for found, sample in zip(output.questions[0], batch[0][1], strict=True):
        if sample.is_refusal:
            continue
        distribution = PointDistribution.of_head(trainer.model.head, found)
        choices = [distribution.sample(generator) for _ in range(4)]
        rewards = [float(is_hit(sample, [distribution.point(choice)])) for choice in choices]
        mean = sum(rewards) / 4
        terms = [(r - mean) * distribution.logprob(c).detach() for r, c in zip(rewards, choices, strict=True)]
        wanted.append(-sum(terms) / 4)
        assert float(losses["reward"]) == pytest.approx(mean)
    assert len(wanted) == 1
    assert float(losses["policy_loss"].detach()) == pytest.approx(float(wanted[0]), abs=1e-6)


def test_the_process_trains_by_reward_without_dropout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = make_config(tmp_path, updates=1)
    path = tmp_path / "config.json"
    path.write_text(settings.model_dump_json())
    assert main(["--reward", "--config", str(path)]) == 0
    assert (settings.out_dir / "model.safetensors").is_file()
    path.write_text(settings.model_dump_json().replace('"dropout":0.0', '"dropout":0.1'))
    assert main(["--reward", "--config", str(path)]) == 2
    assert "dropout" in capsys.readouterr().err


def test_an_advantage_of_ones_own_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faulty_advantage.py").write_text(
        "def divided(rewards_G, steps_G):\n    return [1 / 0 for _ in rewards_G]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "config.json"
    path.write_text(make_config(tmp_path, updates=1, advantage="faulty_advantage:divided").model_dump_json())
    assert main(["--reward", "--config", str(path)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("grounding: the advantage 'faulty_advantage:divided' failed for the rewards [")
    assert told.endswith("it goes on from its last checkpoint")


@pytest.mark.parametrize("key", OF_LABELS)
def test_settings_of_labels_are_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = json.loads(make_config(tmp_path).model_dump_json())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings | {key: supervised(tmp_path).model_dump()[key]}))
    assert main(["--reward", "--config", str(path)]) == 2
    assert f"unknown key `{key}`" in capsys.readouterr().err
