"""Losses against float64, what each stage trains, exact resuming, and learning."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from dart_agent.errors import ConfigError  # noqa: E402
from dart_agent.grounding.forward import QuestionOutput, run_forward  # noqa: E402
from dart_agent.grounding.head import ActionHead  # noqa: E402
from dart_agent.grounding.labels import PatchGrid, offset_targets, token_targets  # noqa: E402
from dart_agent.grounding.model import HEAD_PREFIX, load_grounding_model  # noqa: E402
from dart_agent.grounding.packing import Question, pack  # noqa: E402
from dart_agent.grounding.samples import GroundingSample, GroundingTarget, read_image, write_samples  # noqa: E402
from dart_train.grounding.__main__ import main  # noqa: E402
from dart_train.grounding.batches import SampleSet  # noqa: E402
from dart_train.grounding.config import GroundingConfig  # noqa: E402
from dart_train.grounding.fit import GroundingTrainer, load_start_model, train_grounding  # noqa: E402
from dart_train.grounding.losses import attention_loss, mean_loss, offset_divergences, offset_loss  # noqa: E402
from dart_train.model.init_model import init_model  # noqa: E402

GRID = PatchGrid(4, 2, (128, 64))


def target(left: float, top: float, right: float, bottom: float) -> GroundingTarget:
    return GroundingTarget(boxes=((left, top, right, bottom),))


def test_loss_is_zero_where_the_attention_is_the_target() -> None:
    labels = torch.from_numpy(token_targets(GRID, [target(16, 0, 64, 32), target(0, 0, 128, 64)], soft=True))
    assert float(attention_loss(labels.clamp(min=1e-300).log(), labels)) == pytest.approx(0, abs=1e-7)
    assert float(attention_loss(torch.zeros(2, 8).double(), labels)) > 0.1


def test_loss_and_gradient_equal_the_formula_in_float64() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    labels = token_targets(GRID, [target(16, 0, 64, 32), target(96, 0, 128, 64)])
    wanted = 0.0
    attention = torch.softmax(logits, dim=1).detach().numpy()
    for row in range(2):
        for cell in range(8):
            p = labels[row, cell]
            wanted += p * math.log(p / attention[row, cell]) if p > 0 else 0.0
    loss = attention_loss(logits, torch.from_numpy(labels))
    assert float(loss.detach()) == pytest.approx(wanted / 2, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, [logits])
    by_hand = (attention * labels.sum(axis=1, keepdims=True) - labels) / 2  # d KL / d logits = a - p
    assert np.allclose(gradient.numpy(), by_hand, atol=1e-12)


def test_offset_loss_is_the_divergence_over_the_parts_of_all_cells() -> None:
    head = ActionHead(16, offset_parts=2).double()
    targets = [target(16, 0, 64, 32)]  # the right half of cell 0, all of cell 1
    labels = torch.from_numpy(token_targets(GRID, targets))
    offsets = torch.from_numpy(offset_targets(GRID, targets, 2))
    output = QuestionOutput(GRID, torch.zeros(1, 8).double(), torch.randn(8, 16).double(), torch.randn(1, 16).double())
    loss = float(offset_loss(head, output, labels, offsets).detach())
    wanted = [1 / 4] * 2 + [1 / 8] * 4  # two parts of cell 0, four of cell 1
    assert loss == pytest.approx(sum(p * math.log(p * 32) for p in wanted))  # a new head is uniform over 32 parts


def test_an_exact_distribution_over_parts_has_the_loss_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    head = ActionHead(16, offset_parts=2).double()
    targets = [target(16, 0, 64, 32), target(0, 0, 128, 64)]
    labels, offsets = (
        torch.from_numpy(token_targets(GRID, targets)),
        torch.from_numpy(offset_targets(GRID, targets, 2)),
    )
    exact = (labels[:, :, None] * offsets).clamp(min=1e-300).log()
    monkeypatch.setattr(ActionHead, "all_offset_logits", lambda *_: exact)
    output = QuestionOutput(GRID, torch.zeros(2, 8).double(), torch.randn(8, 16).double(), torch.randn(2, 16).double())
    assert float(offset_loss(head, output, labels, offsets)) == pytest.approx(0, abs=1e-7)


def test_images_in_one_go_are_images_one_by_one() -> None:
    torch.manual_seed(0)
    head = ActionHead(16, offset_parts=2).double().eval()
    torch.nn.init.normal_(head.offset.key.weight)
    visual_BMD = torch.randn(2, 8, 16).double()
    pointers_B = [torch.randn(count, 16).double() for count in (1, 3)]
    targets_B = [[target(16, 0, 64, 32)], [target(0, 0, 128, 64), target(96, 32, 128, 64), target(40, 8, 70, 50)]]
    context_BMD = head.context(visual_BMD)
    padded_BKD = torch.nn.utils.rnn.pad_sequence(pointers_B, batch_first=True)
    logits_BKM = head.attend(context_BMD, padded_BKD)
    wanted = 0.0
    for index, (pointers_KD, targets) in enumerate(zip(pointers_B, targets_B, strict=True)):
        context_MD = head.context(visual_BMD[index])
        assert torch.allclose(context_MD, context_BMD[index], atol=1e-12)
        logits_KM = head.attend(context_MD, pointers_KD)
        assert torch.allclose(logits_KM, logits_BKM[index, : len(pointers_KD)], atol=1e-12)
        labels = torch.from_numpy(token_targets(GRID, targets, soft=True))
        offsets = torch.from_numpy(offset_targets(GRID, targets, 2))
        output = QuestionOutput(GRID, logits_KM, context_MD, pointers_KD)
        wanted += len(targets) * float(offset_loss(head, output, labels, offsets).detach())
    every = [one for targets in targets_B for one in targets]
    found = offset_divergences(
        head, context_BMD, torch.cat(pointers_B), torch.tensor([0, 1, 1, 1]),
        torch.from_numpy(token_targets(GRID, every, soft=True)), torch.from_numpy(offset_targets(GRID, every, 2)),
    )  # fmt: skip
    assert float(found.mean().detach()) == pytest.approx(wanted / 4, abs=1e-12)


def test_no_target_is_a_loss_of_zero_with_a_gradient() -> None:
    tensor = torch.ones(3, requires_grad=True)
    loss = mean_loss([], tensor)
    loss.backward()
    assert float(loss.detach()) == 0
    assert tensor.grad is not None


def make_samples(folder: Path, count: int = 6, refusals: bool = False) -> Path:
    """Screens of 128 x 64 with a dark square in one of eight cells."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = []
    for number in range(count):
        x, y = 32 * (number % 4) + 4, 32 * (number // 4 % 2) + 4
        image = Image.new("RGB", (128, 64), "white")
        ImageDraw.Draw(image).rectangle((x, y, x + 23, y + 23), fill="navy")
        image.save(folder / f"{number}.png")
        samples.append(
            GroundingSample(
                sample_id=str(number), image=f"{number}.png", image_wh=(128, 64), instruction="click the button",
                targets=(target(x, y, x + 24, y + 24),),
            )
        )  # fmt: skip
        if refusals:
            samples.append(
                samples[-1].model_copy(
                    update={"sample_id": f"{number}r", "targets": (), "instruction": "click the list"}
                )
            )
    write_samples(folder / "samples.jsonl", samples)
    return folder / "samples.jsonl"


def config(folder: Path, **changes: Any) -> GroundingConfig:
    if not (folder / "start").exists():
        init_model("tiny", folder / "start")
        make_samples(folder / "data", refusals=True)
    name = changes.pop("name", "model")
    return GroundingConfig.model_validate(
        {
            "start_model": str(folder / "start"), "samples": (folder / "data" / "samples.jsonl",),
            "out_dir": folder / name, "checkpoints": folder / f"{name}-states", "metrics": folder / f"{name}.jsonl",
            "updates": 4, "images_per_update": 2, "checkpoint_every": 2, "report_every": 1, "threads": 1, "device": "cpu",
        }
        | changes
    )  # fmt: skip


def changed(folder: Path, name: str, start: str) -> set[str]:
    """Names of the tensors that training changed."""
    before, after = load_file(folder / start / "model.safetensors"), load_file(folder / name / "model.safetensors")
    return {key for key, tensor in after.items() if key not in before or not torch.equal(before[key], tensor)}


def test_stage_head_trains_head_and_new_rows_only(tmp_path: Path) -> None:
    train_grounding(config(tmp_path, updates=1, optimizer={"learning_rate": 0.0}))
    settings = {"learning_rate": 1e-2, "weight_decay": 0.1}
    train_grounding(config(tmp_path, name="after", start_model=str(tmp_path / "model"), optimizer=settings))
    names = changed(tmp_path, "after", "model")
    embedding = next(name for name in names if "embed_tokens" in name)
    assert {name for name in names if not name.startswith(HEAD_PREFIX)} == {embedding}
    assert len(names) > 10
    before = load_file(tmp_path / "model" / "model.safetensors")[embedding]
    after = load_file(tmp_path / "after" / "model.safetensors")[embedding]
    assert torch.equal(before[:-5], after[:-5])
    # No answer is read beyond its pointers, so that what follows them gets no gradient.
    assert not torch.equal(before[-5:], after[-5:])


def test_stage_all_trains_everything(tmp_path: Path) -> None:
    train_grounding(config(tmp_path, updates=1, optimizer={"learning_rate": 0.0}))
    settings = {"learning_rate": 1e-4}
    train_grounding(
        config(tmp_path, name="after", start_model=str(tmp_path / "model"), stage="all", optimizer=settings)
    )
    names = changed(tmp_path, "after", "model")
    assert any("visual" in name for name in names)
    assert any("lm_head" in name for name in names)
    assert any(".q_proj" in name for name in names)


def test_adapters_are_merged_and_the_vision_tower_is_kept(tmp_path: Path) -> None:
    train_grounding(config(tmp_path, updates=1, optimizer={"learning_rate": 0.0}))
    options = {"stage": "all", "lora": {"rank": 2}, "optimizer": {"learning_rate": 1e-2}}
    trained = train_grounding(config(tmp_path, name="after", start_model=str(tmp_path / "model"), **options))
    names = changed(tmp_path, "after", "model")
    assert any(".q_proj" in name for name in names)
    assert not any("visual" in name or "lora" in name for name in names)
    picture = np.full((64, 128, 3), 200, np.uint8)
    again = load_grounding_model(tmp_path / "after")
    with torch.no_grad():
        ours, theirs = (
            run_forward(model, pack(model, [picture], [[Question.point("click the button")]])).questions[0][0].logits_KM
            for model in (trained, again)
        )
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    options = {"stage": "all", "optimizer": {"learning_rate": 1e-3, "lr_schedule": "cosine"}}
    train_grounding(config(tmp_path, name="whole", **options))
    stopped = config(tmp_path, name="resumed", **options)

    class Killed(Exception):
        pass

    def kill(line: Any) -> None:
        if line["update"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train_grounding(stopped, kill)
    assert not stopped.out_dir.exists()
    lines: list[int] = []
    train_grounding(stopped, lambda line: lines.append(line["update"]))
    assert lines == [3, 4]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def break_updates(monkeypatch: pytest.MonkeyPatch, broken: Collection[int]) -> None:
    """Let the loss of some updates, from 0, be no number."""
    losses, update, now = GroundingTrainer.losses, GroundingTrainer.update, -1

    def noted_update(trainer: GroundingTrainer, number: int) -> dict[str, float]:
        nonlocal now
        now = number
        return update(trainer, number)

    def broken_losses(trainer: GroundingTrainer, *given: Any) -> dict[str, torch.Tensor]:
        return {name: loss * (math.nan if now in broken else 1.0) for name, loss in losses(trainer, *given).items()}

    monkeypatch.setattr(GroundingTrainer, "update", noted_update)
    monkeypatch.setattr(GroundingTrainer, "losses", broken_losses)


def test_an_update_whose_gradient_is_not_finite_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_updates(monkeypatch, [0, 2])
    train_grounding(config(tmp_path))
    assert all(bool(tensor.isfinite().all()) for tensor in load_file(tmp_path / "model" / "model.safetensors").values())
    assert len(changed(tmp_path, "model", "start")) > 10
    break_updates(monkeypatch, range(9))
    with pytest.raises(ConfigError, match=r"^5 updates in a row .* not finite: lower optimizer.learning_rate"):
        train_grounding(config(tmp_path, name="broken", updates=9))
    assert not (tmp_path / "broken").exists()


def test_the_bound_of_the_gradient_leaves_updates_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="above max_grad_norm = 1e-09"):
        train_grounding(config(tmp_path, updates=5, optimizer={"max_grad_norm": 1e-9}))


def test_the_seed_decides_also_about_adapters(tmp_path: Path) -> None:
    for name in ("one", "other"):
        train_grounding(config(tmp_path, name=name, stage="all", lora={"rank": 2}))
        torch.rand(3)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    first = config(tmp_path)
    train_grounding(first)
    whole = {"stage": "all", "optimizer": first.optimizer}
    for changes, named in ((whole, "stage"), ({"start_model": str(tmp_path / "model")}, "start_model")):
        with pytest.raises(ConfigError, match=rf"states of another training \({named} differ\)"):
            train_grounding(config(tmp_path, name="other", checkpoints=first.checkpoints, **changes))
    (tmp_path / "data" / "samples.jsonl").write_text((tmp_path / "data" / "samples.jsonl").read_text() * 2)
    with pytest.raises(ConfigError, match=r"\(samples differ\)"):
        train_grounding(config(tmp_path, name="other", checkpoints=first.checkpoints))


def test_a_whole_model_learns_slowly_unless_told_otherwise(tmp_path: Path) -> None:
    """GUI-Actor: 1e-4 for the head, 5e-6 for everything, where 1e-4 collapses."""
    default = config(tmp_path).optimizer
    assert (default.learning_rate, default.lr_schedule) == (1e-4, "cosine")
    assert config(tmp_path, stage="all").optimizer == default.model_copy(update={"learning_rate": 5e-6})
    assert config(tmp_path, stage="all", lora={"rank": 2}).optimizer == default
    assert config(tmp_path, stage="all", optimizer={"lr_warmup_updates": 3}).optimizer.learning_rate == 5e-6
    assert config(tmp_path, stage="all", optimizer={"learning_rate": 1e-4}).optimizer.learning_rate == 1e-4
    for chosen in (config(tmp_path, stage="all"), config(tmp_path, stage="all", optimizer={"learning_rate": 1e-4})):
        assert GroundingConfig.model_validate_json(chosen.model_dump_json()) == chosen
    whole = config(tmp_path, stage="all")
    trainer = GroundingTrainer(whole, SampleSet(whole.samples), load_start_model(whole))
    trainer.update(29)  # the warm-up is over
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {5e-6}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (30, "cosine")),
        ({"learning_rate": 1e-3}, (30, "cosine")),
        ({"weight_decay": 0.1, "lr_schedule": "constant"}, (30, "constant")),
        ({"lr_warmup_updates": 0}, (0, "cosine")),
    ],
)
def test_a_setting_of_the_optimizer_leaves_the_others_as_they_are(
    tmp_path: Path, given: dict[str, Any], expected: tuple[int, str]
) -> None:
    optimizer = config(tmp_path, optimizer=given).optimizer
    assert (optimizer.lr_warmup_updates, optimizer.lr_schedule) == expected
    assert given.items() <= optimizer.model_dump().items()
    again = GroundingConfig.model_validate_json(config(tmp_path, optimizer=given).model_dump_json())
    assert again.optimizer == optimizer


@pytest.mark.slow
def test_head_and_backbone_learn_to_point(tmp_path: Path) -> None:
    lines: list[Any] = []
    make = config(tmp_path, stage="all", updates=60, images_per_update=6, checkpoint_every=1000, language_weight=0.1,
                  optimizer={"learning_rate": 2e-3, "lr_warmup_updates": 5})  # fmt: skip
    model = train_grounding(make, lines.append)
    assert lines[-1]["pointer_loss"] < 0.25 * lines[0]["pointer_loss"]
    samples = SampleSet(make.samples)
    for path, (sample, *_) in samples.batch(0, 6, 1, 0):
        if sample.is_refusal:
            continue
        picture = read_image(path)
        with torch.no_grad():
            found = run_forward(model, pack(model, [picture], [[Question.point(sample.instruction)]])).questions[0][0]
        assert int(found.logits_KM.argmax()) == int(token_targets(found.grid, sample.targets).argmax())


def test_batches_are_a_function_of_seed_and_update(tmp_path: Path) -> None:
    samples = SampleSet([make_samples(tmp_path)])
    epoch = [path for update in range(3) for path, _ in samples.batch(update, 2, 1, seed=0)]
    assert sorted(epoch) == sorted({*epoch})
    assert len(epoch) == 6
    assert samples.batch(1, 2, 1, seed=0) == SampleSet([tmp_path / "samples.jsonl"]).batch(1, 2, 1, seed=0)
    assert [samples.batch(u, 2, 1, seed=1) for u in range(3)] != [samples.batch(u, 2, 1, seed=0) for u in range(3)]


def test_samples_that_cannot_be_learnt_are_named(tmp_path: Path) -> None:
    path = make_samples(tmp_path)
    outside = GroundingSample(
        sample_id="far", image="0.png", image_wh=(128, 64), instruction="x", targets=(target(130, 0, 140, 9),)
    )
    write_samples(path, [outside])
    with pytest.raises(ConfigError, match="far lies outside"):
        SampleSet([path])
    write_samples(path, [outside.model_copy(update={"image": "none.png"})])
    with pytest.raises(ConfigError, match="are missing"):
        SampleSet([path])
    inside = outside.model_copy(update={"targets": (target(0, 0, 9, 9),)})
    write_samples(path, [inside, inside.model_copy(update={"image_wh": (64, 64)})])
    with pytest.raises(ConfigError, match="do not agree on its size"):
        SampleSet([path])
    for changes, reason in (
        ({"targets": inside.targets * 3}, "at most 2 targets"),
        ({"instruction": "click <|image_pad|>"}, "cannot contain"),
        ({"image_wh": (2010, 10)}, "more than 200 times"),
    ):
        write_samples(path, [inside.model_copy(update=changes)])
        with pytest.raises(ConfigError, match=f"grounding sample far cannot be learnt: .*{reason}"):
            SampleSet([path])
    write_samples(path, [])
    with pytest.raises(ConfigError, match="no grounding sample"):
        SampleSet([path])


def test_wrong_input_is_a_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = config(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(good.model_dump_json()) | {"freeze_vision": True}))
    assert main(["--config", str(path)]) == 2
    assert "are for stage all" in capsys.readouterr().err
    path.write_text(good.model_copy(update={"start_model": str(tmp_path / "none")}).model_dump_json())
    assert main(["--config", str(path)]) == 2
    assert "none" in capsys.readouterr().err
    assert main(["--config", str(tmp_path / "missing.json")]) == 2
