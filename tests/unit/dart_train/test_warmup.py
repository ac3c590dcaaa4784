"""The warm start: what is asked about screens, how it is packed, and that it learns and writes a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dart_agent.grounding.acting.targets import find_targets
from dart_agent.grounding.model import load_grounding_model
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_envs import tasks
from dart_envs.action_formats import ParsedAnswer
from dart_envs.action_formats.uitars import parse
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement
from dart_train.model.cpu_vision import optimize_vision_for_cpu
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs
from dart_train.warmup import WarmupConfig, warm_start
from dart_train.warmup.__main__ import main
from dart_train.warmup.fit import _WarmStartTrainer, held_out_tasks, imitated_steps
from dart_train.warmup.packing import NO_LABEL, Packer
from dart_train.warmup.queries import Query, QueryBuilder, mentioned_texts
from dart_train.warmup.screens import AnnotatedScreen, ScreenError, read_screens, shift_windows

torch = pytest.importorskip("torch")

POINTS = PointMap((256, 160), (640, 400))
QUERY_BUILDER = QueryBuilder(POINTS, step_px=8)
TO_TRAIN_ON, TO_JUDGE = (tasks.load_suite("basics").tasks(split, ["choose_nth"]) for split in ("train", "validation"))


def _element(role: str, name: str, x: int, y: int, w: int, h: int) -> A11yElement:
    return A11yElement(role=role, name=name, x=x, y=y, w=w, h=h)


def _list_dialog(x: int = 100, y: int = 60) -> tuple[A11yElement, ...]:
    rows = [
        _element("table cell", name, x + 10, y + 40 + 32 * i, 220, 30)
        for i, name in enumerate(["Moon", "Tiger", "Chair"])
    ]
    buttons = [
        _element("push button", "Cancel", x + 8, y + 150, 115, 36),
        _element("push button", "OK", x + 127, y + 150, 115, 36),
    ]
    return (_element("dialog", "List", x, y, 250, 200), *rows, *buttons)


def _screen(**changes: Any) -> AnnotatedScreen:
    values: dict[str, Any] = {
        "image": Path("none.png"),
        "task_id": "basics/choose_nth/0001",
        "instruction": "Choose the last row, then press OK.",
        "step": 1,
        "elements": _list_dialog(),
        "action": Action(ActionType.CLICK, x=240, y=225),
        "previous": Action(ActionType.CLICK, x=215, y=179),
    }
    return AnnotatedScreen(**(values | changes))


def _clicked(answer: str) -> tuple[int, int]:
    parsed = parse(answer, POINTS)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.action.type is ActionType.CLICK
    assert parsed.action.x is not None
    assert parsed.action.y is not None
    return parsed.action.x, parsed.action.y


def test_places_are_named_in_order_and_answers_hit_their_element() -> None:
    asked = {query.instruction: _clicked(query.answer) for query in QUERY_BUILDER.grounding_queries(_screen())}
    elements = {element.name: element for element in _list_dialog()}
    wanted = {
        "Choose the first row.": "Moon",
        "Choose the second row.": "Tiger",
        "Choose the third row.": "Chair",
        "Choose the last row.": "Chair",
        "Press OK.": "OK",
        "Press Cancel.": "Cancel",
    }
    assert asked.keys() == wanted.keys()
    for words, name in wanted.items():
        element, (x, y) = elements[name], asked[words]
        assert element.x <= x < element.x + element.w
        assert element.y <= y < element.y + element.h


def test_two_windows_are_told_apart_by_side() -> None:
    lower = (_element("dialog", "Second", 80, 300, 300, 80), _element("push button", "Yarn", 90, 330, 100, 36))
    upper = (_element("dialog", "First", 90, 20, 300, 80), _element("push button", "Kite", 95, 50, 100, 36))
    asked = {
        query.instruction: _clicked(query.answer)[1]
        for query in QUERY_BUILDER.grounding_queries(_screen(elements=lower + upper))
    }
    assert asked["Press the first button above."] < 100 < 300 < asked["Press the last button below."]


def test_boxes_are_asked_for_instead_of_the_rows_they_stand_in() -> None:
    cells = [_element("table cell", name, x, y, 60, 30) for y in (100, 132) for name, x in (("", 110), ("Word", 180))]
    queries = QUERY_BUILDER.grounding_queries(_screen(elements=(_element("dialog", "Tick", 100, 60, 250, 200), *cells)))
    assert {query.instruction for query in queries} == {
        "Tick the first box.",
        "Tick the second box.",
        "Tick the last box.",
    }


def test_texts_are_asked_for_only_where_an_instruction_names_one() -> None:
    by_place, named = _screen(), _screen(instruction="Choose Tiger, then press OK.")
    assert mentioned_texts([by_place]) == frozenset()
    assert mentioned_texts([by_place, named]) == {"Tiger"}
    reading = replace(QUERY_BUILDER, by_text=True)
    added = {q.instruction for q in reading.grounding_queries(named)} - {
        q.instruction for q in QUERY_BUILDER.grounding_queries(named)
    }
    assert added == {"Choose Moon.", "Choose Tiger.", "Choose Chair."}
    assert _thoughts(reading.unordered_queries(named)) == ["OK", "Tiger"]
    demonstrated = replace(named, action=Action(ActionType.CLICK, x=150, y=140), previous=None, step=0)
    (query,) = [reading.demonstration_query(demonstrated)]
    assert query is not None
    assert _thoughts([query]) == ["Tiger"]


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        (ActionType.DOUBLE_CLICK, "left_double"),
        (ActionType.TRIPLE_CLICK, "left_triple"),
        (ActionType.RIGHT_CLICK, "right_single"),
    ],
)
def test_clicks_of_other_kinds_go_to_an_element_too(kind: ActionType, verb: str) -> None:
    screen = _screen(instruction="Choose Tiger.", action=Action(kind, x=150, y=140), previous=None, step=0)
    described = replace(QUERY_BUILDER, by_text=True, described=True).demonstration_query(screen)
    written = replace(QUERY_BUILDER, by_text=True).demonstration_query(screen)
    assert described is not None
    assert written is not None
    assert described.answer == f"Action: {verb}(start_box='Tiger')"
    assert written.answer.startswith(f"Thought: Tiger\nAction: {verb}(start_box='(")
    assert written.box is not None


def test_a_guided_query_gives_the_thought_and_asks_for_the_click() -> None:
    queries = QUERY_BUILDER.thought_given_queries(_screen(), Random(0))
    assert {query.instruction for query in queries} == {"Choose the last row, then press OK."}
    assert {query.answer[: query.given] for query in queries} == {
        f"Thought: {name}" for name in ("first row", "second row", "third row", "last row", "OK", "Cancel")
    }
    assert all(query.answer[query.given :].startswith("\nAction: click(") for query in queries)
    assert {len(query.past_answers) for query in queries} == {0, 1}


def _thoughts(queries: list[Query]) -> list[str]:
    return sorted(query.answer.partition("\n")[0].removeprefix("Thought: ") for query in queries)


def test_said_parts_come_in_no_order() -> None:
    before = _screen(step=0, action=Action(ActionType.CLICK, x=200, y=175), previous=None)
    for screen in (before, _screen()):
        queries = QUERY_BUILDER.unordered_queries(screen)
        assert _thoughts(queries) == ["OK", "last row"]
        assert all(query.given == 0 for query in queries)


def test_a_part_that_lost_its_side_is_not_confused_with_the_other_windows() -> None:
    instruction = "Press the first button above, then the last button below."
    upper = (
        _element("dialog", "First", 90, 20, 300, 80),
        *(_element("push button", n, x, 50, 90, 36) for n, x in (("Kite", 95), ("Moon", 200))),
    )
    lower = (
        _element("dialog", "Second", 80, 200, 300, 80),
        *(_element("push button", n, x, 230, 90, 36) for n, x in (("Yarn", 90), ("Fork", 190))),
    )
    both = _screen(
        instruction=instruction, elements=upper + lower, action=Action(ActionType.CLICK, x=100, y=60), previous=None
    )
    assert _thoughts(QUERY_BUILDER.unordered_queries(both)) == ["first button above", "last button below"]
    alone = QUERY_BUILDER.unordered_queries(
        _screen(instruction=instruction, elements=lower, action=Action(ActionType.CLICK, x=230, y=250))
    )
    assert _thoughts(alone) == ["last button"]
    assert 190 <= _clicked(alone[0].answer)[0] < 280


def test_what_is_no_click_on_a_mentioned_element_keeps_its_place_in_the_order() -> None:
    field = _element("text", "Wolf", 110, 100, 100, 30)
    form = (_element("dialog", "Entry", 100, 60, 250, 200), field, _element("push button", "OK", 227, 210, 115, 36))
    instruction = "Change the name to Yarn, then press OK."
    typed = _screen(instruction=instruction, elements=form, action=Action(ActionType.TYPE, text="Yarn"))
    (query,) = QUERY_BUILDER.unordered_queries(typed)
    assert query.answer.endswith("type(content='Yarn')")
    marked = Action(ActionType.TRIPLE_CLICK, x=160, y=115)
    (query,) = QUERY_BUILDER.unordered_queries(_screen(instruction=instruction, elements=form, action=marked))
    assert "left_triple" in query.answer
    pressed = Action(ActionType.CLICK, x=280, y=228)
    (query,) = QUERY_BUILDER.unordered_queries(_screen(instruction=instruction, elements=form, action=pressed))
    assert _thoughts([query]) == ["OK"]


def test_unordered_clicks_are_of_the_demonstrated_type() -> None:
    opened = Action(ActionType.DOUBLE_CLICK, x=200, y=175)
    queries = QUERY_BUILDER.unordered_queries(_screen(step=0, action=opened, previous=None))
    assert sorted(_thoughts(queries)) == ["OK", "last row"]
    assert all("left_double" in query.answer for query in queries)


def test_whether_order_is_taught_decides_what_is_imitated(tmp_path: Path, loaded: LoadedModel) -> None:
    loaded.save(tmp_path / "start")
    _store(tmp_path / "screens", 4)
    for imitate_order, wanted in ((True, {"first row"}), (False, {"first row", "OK"})):
        config = _config(tmp_path, tmp_path / "start", imitate_order=imitate_order, imitation_fraction=1.0)
        fit = _WarmStartTrainer(config, load_model(config.start_model), lambda line: None)
        fit.lessons._screens = fit.screens[:1]
        asked = [example.queries[0] for example in fit.lessons.draw_images(40)]
        assert {query.answer.partition("\n")[0].removeprefix("Thought: ") for query in asked} == wanted


def test_the_procedure_says_what_was_done_and_what_came_before() -> None:
    query = QUERY_BUILDER.demonstration_query(_screen())
    assert query is not None
    assert query.instruction == "Choose the last row, then press OK."
    assert len(query.past_answers) == 1
    assert query.answer.startswith("Thought: OK\n")
    aimed = _screen(step=0, action=Action(ActionType.CLICK, x=200, y=175), previous=None)
    first = QUERY_BUILDER.demonstration_query(aimed)
    assert first is not None
    assert first.answer.startswith("Thought: last row\n")
    x, y = _clicked(query.answer)
    assert 227 <= x < 342
    assert 210 <= y < 246
    assert QUERY_BUILDER.demonstration_query(_screen(action=None)) is None


def test_translation_moves_pixels_labels_and_actions_together() -> None:
    pixels = np.full((400, 640, 3), 200, np.uint8)
    pixels[60:260, 100:350] = 246
    pixels[210:246, 227:342] = (10, 20, 30)
    for seed in range(20):
        moved, screen = shift_windows(pixels, _screen(), Random(seed))
        ok = next(element for element in screen.elements if element.name == "OK")
        assert (moved[ok.y : ok.y + ok.h, ok.x : ok.x + ok.w] == (10, 20, 30)).all()
        assert (moved == (10, 20, 30)).all(axis=-1).sum() == 36 * 115
        assert screen.action is not None
        assert screen.action.x is not None
        assert ok.x <= screen.action.x < ok.x + ok.w


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
    assert optimize_vision_for_cpu(other.model)
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
        for element in _list_dialog(x, y):
            pixels[element.y : element.y + element.h, element.x : element.x + element.w] = (
                255 if element.role == "dialog" else 120
            )
        name = f"{number:064d}"
        Image.fromarray(pixels).save(directory / f"{name}.png")
        record = {
            "task_id": TO_TRAIN_ON[number], "instruction": instruction, "step": 0,
            "resolution": [640, 400], "elements": [element.model_dump() for element in _list_dialog(x, y)],
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


def test_a_policy_with_a_head_says_names_and_its_head_is_asked_for_their_boxes() -> None:
    builder = QueryBuilder(POINTS, step_px=8, described=True)
    screen = _screen(previous_elements=_list_dialog())
    query = builder.demonstration_query(screen)
    assert query is not None
    assert query.answer == "Action: click(start_box='OK')"
    assert query.past_answers == ("Action: click(start_box='last row')",)
    answers = {found.answer for found in builder.unordered_queries(screen)}
    assert answers == {"Action: click(start_box='last row')", "Action: click(start_box='OK')"}
    asked = {question.instruction: question.box for question in builder.head_questions(screen)}
    assert asked["click last row"] == pytest.approx((110 * 0.4, 164 * 0.4, 330 * 0.4, 194 * 0.4))
    (target,) = find_targets(query.answer)
    assert target.instruction in asked, "what the policy says is what its head was taught"
    gone = _screen(previous=Action(ActionType.CLICK, x=240, y=0), previous_elements=_list_dialog(y=-180))
    assert builder.unordered_queries(gone)[0].past_answers == ("Action: click(start_box='OK')",), "half off the screen"
    waited = _screen(previous=Action(ActionType.WAIT), previous_elements=_list_dialog())
    assert builder.unordered_queries(waited)[0].past_answers == ("Action: wait()",)


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
        _screen(task_id=f"basics/{family}/{number:04d}", step=step, image=Path(f"{family}/{number}/{step}"))
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
    screens = [_screen(task_id=f"basics/press_nth/{number:04d}", step=step) for number in range(40) for step in (0, 1)]
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
