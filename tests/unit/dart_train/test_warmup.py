"""The warm start: how questions are packed, and that it learns and writes a model."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dart_agent.grounding.model import load_grounding_model
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_envs import tasks
from dart_train.model.fast_vision import optimize_vision
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs
from dart_train.warmup import WarmupConfig, warm_start
from dart_train.warmup.__main__ import main
from dart_train.warmup.fit import _WarmStartTrainer, held_out_tasks, imitated_steps
from dart_train.warmup.packing import NO_LABEL, Packer
from dart_train.warmup.queries import Query
from dart_train.warmup.screens import ScreenError, read_screens
from tests.unit.dart_train.warmup_screens import list_dialog, screen_of

torch = pytest.importorskip("torch")

TO_TRAIN_ON, TO_JUDGE = (tasks.load_suite("basics").tasks(split, ["choose_nth"]) for split in ("train", "validation"))


def test_whether_order_is_taught_decides_what_is_imitated(tmp_path: Path, loaded: LoadedModel) -> None:
    loaded.save(tmp_path / "start")
    _store(tmp_path / "screens", 4)
    for imitate_order, wanted in ((True, {"first row"}), (False, {"first row", "OK"})):
        config = _config(tmp_path, tmp_path / "start", imitate_order=imitate_order, imitation_fraction=1.0)
        fit = _WarmStartTrainer(config, load_model(config.start_model), lambda line: None)
        fit.lessons._screens = fit.screens[:1]
        asked = [example.queries[0] for example in fit.lessons.draw_images(40)]
        assert {query.answer.partition("\n")[0].removeprefix("Thought: ") for query in asked} == wanted


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(init_model("tiny", tmp_path_factory.mktemp("models") / "tiny", seed=1))


def _inputs(loaded: LoadedModel, images: list[np.ndarray]) -> tuple[Any, Any]:
    return pixel_inputs(loaded.processor, images)


def test_a_packed_answer_scores_as_it_would_alone(loaded: LoadedModel) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (160, 256, 3), dtype=np.uint8)
    builder = PromptBuilder(preset("tiny", images=1))
    packer = Packer(loaded.model, loaded.processor, builder, (1, 10, 16))
    done = "Action: click(start_box='(12,20)')"
    queries = [
        Query("the first row", (), done, None),
        Query("Choose it", (done,), "Action: wait()", None),
        Query("OK", (), done, None),
    ]
    pixels, grid = _inputs(loaded, [image])

    def scores(asked: list[Query]) -> list[Any]:
        batch = packer.pack([asked])
        with torch.no_grad():
            hidden = loaded.model.model(
                input_ids=batch.input_ids_BT, attention_mask=batch.attention_mask_B1TT, position_ids=batch.position_ids_3BT,
                pixel_values=pixels, image_grid_thw=grid, use_cache=False,
            ).last_hidden_state  # fmt: skip
        wanted = batch.labels_BT[:, 1:] != NO_LABEL
        log_probs = loaded.model.lm_head(hidden[:, :-1][wanted]).log_softmax(-1)
        chosen = log_probs.gather(-1, batch.labels_BT[:, 1:][wanted].unsqueeze(-1)).squeeze(-1)
        return list(chosen.split([len(packer.answer_ids(query)) for query in asked]))

    for together, query in zip(scores(queries), queries, strict=True):
        torch.testing.assert_close(together, scores([query])[0], atol=1e-4, rtol=1e-4)


def test_a_packed_prompt_is_the_prompt_that_the_engine_sees(loaded: LoadedModel) -> None:
    image = np.zeros((160, 256, 3), np.uint8)
    builder = PromptBuilder(preset("tiny", images=1))
    packer = Packer(loaded.model, loaded.processor, builder, (1, 10, 16))
    query = Query("Tick the last box, then press OK.", ("Action: click(start_box='(12,20)')",), "Action: wait()", None)
    ids = packer.pack([[query]]).input_ids_BT[0].tolist()
    text = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Tick the last box, then press OK.\n"
        "Action: click(start_box='(12,20)')<|im_end|>\n<|im_start|>assistant\n"
    )
    prompt = loaded.processor(text=[text], images=[image], return_tensors="pt")["input_ids"][0].tolist()
    assert ids[: len(prompt)] == prompt
    assert ids[len(prompt) :] == packer.answer_ids(query)


def test_what_is_given_is_not_learnt(loaded: LoadedModel) -> None:
    packer = Packer(loaded.model, loaded.processor, PromptBuilder(preset("tiny", images=1)), (1, 10, 16))
    given = Query("Press OK.", (), "Thought: OK\nAction: wait()", None, given=len("Thought: OK"))
    batch = packer.pack([[given]])
    learnt = batch.labels_BT[batch.labels_BT != NO_LABEL].tolist()
    assert learnt == packer.target_ids(given)
    assert loaded.tokenizer.decode(learnt) == "\nAction: wait()<|im_end|>"
    assert loaded.tokenizer.decode(packer.answer_ids(given)) == "Thought: OK\nAction: wait()<|im_end|>"


def test_rearranged_vision_gives_the_same_features(loaded: LoadedModel, tmp_path: Path) -> None:
    loaded.save(tmp_path / "copy")
    other = load_model(tmp_path / "copy")
    assert optimize_vision(other.model)
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (height, 256, 3), dtype=np.uint8) for height in (160, 160, 96)]
    pixels, grid = _inputs(loaded, images)
    with torch.no_grad():
        plain = loaded.model.model.visual(pixels, grid_thw=grid)
        fast = other.model.model.visual(pixels, grid_thw=grid)
    torch.testing.assert_close(fast.pooler_output, plain.pooler_output, atol=1e-4, rtol=1e-4)


def _store(directory: Path, tasks: int, instruction: str = "Choose the first row, then press OK.") -> None:
    directory.mkdir()
    random = Random(0)
    for number in range(tasks):
        x, y = random.randint(0, 390), random.randint(0, 200)
        pixels = np.full((400, 640, 3), 220, np.uint8)
        for element in list_dialog(x, y):
            pixels[element.y : element.y + element.h, element.x : element.x + element.w] = (
                255 if element.role == "dialog" else 120
            )
        name = f"{number:064d}"
        Image.fromarray(pixels).save(directory / f"{name}.png")
        record = {
            "task_id": TO_TRAIN_ON[number], "instruction": instruction, "step": 0,
            "resolution": [640, 400], "elements": [element.model_dump() for element in list_dialog(x, y)],
            "action": {"type": "click", "x": x + 115, "y": y + 55},
        }  # fmt: skip
        (directory / f"{name}.json").write_text(json.dumps(record))


def _config(root: Path, model_dir: Path, **changes: Any) -> WarmupConfig:
    values: dict[str, Any] = {
        "start_model": str(model_dir), "screens": root / "screens", "out_dir": root / "warm",
        "metrics": root / "metrics.jsonl", "threads": 1,
        "images": 24, "batch_size": 4, "report_every_images": 8, "held_out_fraction": 0.3, "learning_rate": 3e-3, "lr_warmup_updates": 1,
    }  # fmt: skip
    return WarmupConfig(**(values | changes))


def test_warm_start_learns_reports_and_writes_a_loadable_model(tmp_path: Path, loaded: LoadedModel) -> None:
    loaded.save(tmp_path / "start")
    _store(tmp_path / "screens", 8)
    result = warm_start(_config(tmp_path, tmp_path / "start"))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["images"] for line in lines] == [8, 16, 24]
    assert all(line["kind"] == "warmup" and 0 <= line["grounding_accuracy"] <= 1 for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.2
    assert result.images == 24
    before, after = loaded.model.state_dict(), load_model(tmp_path / "warm").model.state_dict()
    assert not torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    with pytest.raises(FileExistsError, match="exists already"):
        warm_start(_config(tmp_path, tmp_path / "start"))


def test_a_warm_start_sees_pictures_of_the_size_that_rollouts_have(tmp_path: Path, loaded: LoadedModel) -> None:
    _store(tmp_path / "screens", 4)
    trainer = _WarmStartTrainer(_config(tmp_path, tmp_path, max_pixels=320 * 192), loaded, lambda _: None)
    ((image, _),) = trainer.lessons.draw_images(1)
    assert 256 * 160 < image.shape[0] * image.shape[1] <= 320 * 192


@pytest.mark.parametrize("pointer", [False, True])
@pytest.mark.parametrize(
    ("instruction", "reads"), [("Choose Moon, then press OK.", True), ("Choose the first row, then press OK.", False)]
)
def test_what_has_to_be_read_is_measured_apart(
    pointer: bool, instruction: str, reads: bool, tmp_path: Path, loaded: LoadedModel
) -> None:
    loaded.save(tmp_path / "start")
    _store(tmp_path / "screens", 8, instruction)
    warm_start(_config(tmp_path, tmp_path / "start", pointer=pointer, images=8))
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][:1]
    assert ("text_accuracy" in line) is reads
    assert not reads or 0 <= line["text_accuracy"] <= 1


def test_a_policy_learns_to_describe_and_its_head_to_point(tmp_path: Path, loaded: LoadedModel) -> None:
    loaded.save(tmp_path / "start")
    _store(tmp_path / "screens", 8)
    config = _config(tmp_path, tmp_path / "start", pointer=True, images=240, batch_size=8, offset_parts=2)
    result = warm_start(config)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert result.imitation_accuracy == 1.0
    warm = load_grounding_model(tmp_path / "warm")
    assert warm.head.offset_parts == 2
    again = warm_start(
        _config(tmp_path, tmp_path / "warm", pointer=True, images=8, batch_size=8, out_dir=tmp_path / "more")
    )
    assert again.grounding_accuracy >= 0


def test_a_head_without_demonstrations_is_refused(tmp_path: Path, loaded: LoadedModel) -> None:
    loaded.save(tmp_path / "start")
    _store(tmp_path / "screens", 8)
    with pytest.raises(ScreenError, match=r"raise warmup\.imitated_demos_per_family"):
        warm_start(_config(tmp_path, tmp_path / "start", pointer=True, imitated_demos_per_family=0))
    for file in (tmp_path / "screens").glob("*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"action": None}))
    with pytest.raises(ScreenError, match=r"learns what to say from demonstrations alone"):
        warm_start(_config(tmp_path, tmp_path / "start", pointer=True, imitated_demos_per_family=8))


def test_the_knobs_choose_what_is_imitated(tmp_path: Path) -> None:
    screens = [
        screen_of(task_id=f"basics/{family}/{number:04d}", step=step, image=Path(f"{family}/{number}/{step}"))
        for family in ("a", "b")
        for number in range(5)
        for step in (0, 1)
    ]

    def chosen(**knobs: Any) -> set[str]:
        imitated = imitated_steps(screens, _config(tmp_path, tmp_path, **knobs))
        assert imitated == imitated_steps(list(reversed(screens)), _config(tmp_path, tmp_path, **knobs))
        return {task_id for task_id, _ in imitated}

    few = chosen(imitated_families=("b",), imitated_demos_per_family=2)
    assert len(few) == 2
    assert all(task_id.startswith("basics/b/") for task_id in few)
    assert chosen(imitated_demos_per_family=0) == set()


def test_held_out_tasks_depend_on_ids_alone() -> None:
    screens = [
        screen_of(task_id=f"basics/press_nth/{number:04d}", step=step) for number in range(40) for step in (0, 1)
    ]
    chosen = held_out_tasks(screens, 0.1)
    assert len(chosen) == 4
    assert chosen == held_out_tasks(list(reversed(screens)), 0.1)
    assert len(held_out_tasks(screens[:4], 0.1)) == 1


def test_previous_actions_come_from_the_step_before(tmp_path: Path) -> None:
    _store(tmp_path / "screens", 1)
    first = json.loads((tmp_path / "screens" / f"{0:064d}.json").read_text())
    (tmp_path / "screens" / "second.json").write_text(json.dumps(first | {"step": 1, "action": None}))
    (tmp_path / "screens" / "lost.json").write_text(json.dumps(first | {"step": 2, "task_id": TO_TRAIN_ON[1]}))
    screens = read_screens(tmp_path / "screens")
    assert [(screen.step, screen.previous is not None) for screen in screens] == [(0, False), (1, True)]


@pytest.mark.parametrize(
    ("task_id", "reason"),
    [
        (TO_JUDGE[0], "of the validation split, which must not be trained on"),
        ("basics/pick_day/0001", "of the test split, which must not be trained on"),
        ("basics/choose_nth/9999", "the split of its task is not known"),
        ("elsewhere/choose_nth/0001", "the split of its task is not known"),
    ],
)
def test_only_screens_of_training_tasks_teach(tmp_path: Path, task_id: str, reason: str) -> None:
    _store(tmp_path / "screens", 3)
    path = tmp_path / "screens" / f"{1:064d}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"task_id": task_id}))
    with pytest.raises(ScreenError, match=reason) as refused:
        read_screens(tmp_path / "screens")
    assert path.name in str(refused.value)


def test_unusable_input_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScreenError, match="collect demonstrations first"):
        read_screens(tmp_path / "empty")
    (tmp_path / "empty" / "bad.json").write_text("{}")
    with pytest.raises(ScreenError, match=r"bad\.json"):
        read_screens(tmp_path / "empty")
    (tmp_path / "config.json").write_text('{"imagess": 3}')
    assert main(["--config", str(tmp_path / "config.json")]) == 2
    assert "imagess" in capsys.readouterr().err
