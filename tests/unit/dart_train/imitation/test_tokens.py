"""Demonstrations in a policy's own words: the prompts of rollouts, answers that are read as the action, exact continuations."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from demonstrations import TRAIN_TASKS, write_demonstration
from pydantic import ValidationError
from trainer_harness import tiny_model

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.token_stream import continues
from dart_agent.prompts.builder import PromptBuilder, PromptSpec, preset
from dart_agent.prompts.chat_template import render_chat
from dart_agent.prompts.history import HistorySettings
from dart_envs.action_formats import ParsedAnswer
from dart_envs.types import Action, ActionType, Observation
from dart_train.imitation.demonstrations import (
    DemonstratedEpisode,
    DemonstratedTurn,
    DemonstrationsUnusableError,
    read_demonstrations,
)
from dart_train.imitation.settings import AnswerSettings
from dart_train.imitation.tokens import EpisodeTokenizer, tokenize_episodes
from dart_train.model.policy_model import LoadedModel
from dart_train.trainer.batches.imitated_rows import ImitatedRows
from dart_train.trainer.batches.segments import build_segments
from dart_train.trainer.batches.tensors import BatchMaker

SPECS = [
    preset("tiny"),
    replace(preset("uitars", history=HistorySettings(policy="full")), max_pixels=128 * 128),
    preset("qwen3-vl", max_pixels=128 * 128, min_pixels=1),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("imitation")


@pytest.fixture(scope="module")
def loaded(root: Path) -> LoadedModel:
    return tiny_model(root)[1]


@pytest.fixture(scope="module")
def episode(root: Path) -> DemonstratedEpisode:
    write_demonstration(root / "demos" / "one", clicks=2)
    return read_demonstrations([root / "demos"]).episodes[0]


def tokenizer_of(loaded: LoadedModel, root: Path, spec: PromptSpec) -> EpisodeTokenizer:
    return EpisodeTokenizer(
        loaded.processor, int(loaded.model.config.image_token_id), spec, ImageStore(root / "pictures")
    )


def answering(loaded: LoadedModel, root: Path, answers: AnswerSettings) -> EpisodeTokenizer:
    return EpisodeTokenizer(
        loaded.processor,
        int(loaded.model.config.image_token_id),
        preset("tiny"),
        ImageStore(root / "pictures"),
        answers,
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.preset)
def test_steps_are_those_that_a_rollout_would_store(
    root: Path, loaded: LoadedModel, episode: DemonstratedEpisode, spec: PromptSpec
) -> None:
    if spec.multiple == 28:  # UI-TARS' patches; the tiny model has others
        spec = replace(spec, multiple=32)
    steps = tokenizer_of(loaded, root, spec).steps(episode)
    rows = ImitatedRows(tokenize_episodes(tokenizer_of(loaded, root, spec), [episode], Counter()), seed=0).rows
    assert [row.step for row in rows] == list(steps)
    images = ImageStore(root / "pictures")
    batch = BatchMaker(loaded.model, loaded.processor, images).make(build_segments(rows))  # checks place holders
    assert int(batch.response_mask_BR.sum()) == sum(len(step.token_ids_T) for step in steps)
    builder, tokenizer = PromptBuilder(spec), loaded.processor.tokenizer
    for step, turn in zip(steps, episode.turns, strict=True):
        present = images.get(step.image_sha256[-1])
        screen = np.zeros((160, 256, 3), np.uint8)
        points = builder.points(screen, present)
        parsed = spec.parse(step.text, points, (0, 0))
        assert isinstance(parsed, ParsedAnswer), parsed
        said = parsed.actions[0]
        assert said.type is turn.action.type
        if turn.action.x is not None and turn.action.y is not None:
            assert said.x is not None
            assert said.y is not None
            assert abs(said.x - turn.action.x) <= 2
            assert abs(said.y - turn.action.y) <= 2
        assert tokenizer.decode(step.token_ids_T) == step.text + tokenizer.eos_token
    first = builder.build(Observation(np.zeros((160, 256, 3), np.uint8), episode.instruction), builder.new_history())
    rendered = tokenizer(render_chat(loaded.processor, first.messages), add_special_tokens=False).input_ids
    image_token = int(loaded.model.config.image_token_id)
    assert [token for token in steps[0].prompt_ids_P if token != image_token] == [
        token for token in rendered if token != image_token
    ]


def test_a_full_history_is_one_stream(root: Path, loaded: LoadedModel, episode: DemonstratedEpisode) -> None:
    spec = replace(SPECS[1], multiple=32)
    steps = tokenizer_of(loaded, root, spec).steps(episode)
    assert all(continues(later, earlier) for earlier, later in itertools.pairwise(steps))
    assert [len(step.image_sha256) for step in steps] == [1, 2, 3]
    rows = ImitatedRows(tokenize_episodes(tokenizer_of(loaded, root, spec), [episode], Counter()), seed=0).rows
    assert len(build_segments(rows)) == 1, "one forward pass for the whole episode"


def test_thoughts_are_the_words_of_the_instruction_the_name_or_nothing(
    root: Path, loaded: LoadedModel, episode: DemonstratedEpisode
) -> None:
    assert (episode.turns[0].called, episode.turns[0].target) == ("first button", "Button 0")

    def first(answers: AnswerSettings, action: Action | None = None) -> str:
        turns = episode.turns if action is None else (replace(episode.turns[0], action=action), *episode.turns[1:])
        return answering(loaded, root, answers).steps(replace(episode, turns=turns))[0].text

    assert first(AnswerSettings()).startswith("Thought: first button\n")
    plain = replace(episode, turns=tuple(replace(turn, called="", suite_names=False) for turn in episode.turns))
    assert answering(loaded, root, AnswerSettings()).steps(plain)[0].text.startswith("Thought: Button 0\n")
    assert first(AnswerSettings(thoughts="target")).startswith("Thought: Button 0\n")
    assert first(AnswerSettings(thoughts="none")).startswith("Action: click(")
    drag = Action(ActionType.DRAG, x=40, y=60, x2=80, y2=60)
    assert first(AnswerSettings(coordinate_step_px=8), drag).startswith("Action: drag("), "a warm start has none"


@pytest.mark.parametrize(
    ("step_px", "expected"),
    [
        (1, (40, 60)),
        (8, (44, 60)),
        (32, (48, 48)),  # the button's last pixels: 20 to 60 and 50 to 70
    ],
)
def test_clicks_are_written_on_the_grid_of_the_warm_start(
    root: Path, loaded: LoadedModel, episode: DemonstratedEpisode, step_px: int, expected: tuple[int, int]
) -> None:
    tokenizer = answering(loaded, root, AnswerSettings(coordinate_step_px=step_px))
    unknown = replace(episode, turns=tuple(replace(turn, element=None) for turn in episode.turns))
    step = tokenizer.steps(unknown)[0]
    assert step.text.endswith(f"start_box='({expected[0]},{expected[1]})')")
    assert step.action == {"type": "click", "x": expected[0], "y": expected[1]}
    known = tokenizer.steps(episode)[0]
    inside = 20 <= expected[0] < 60 and 50 <= expected[1] < 70
    x, y = expected if inside else (40, 60)
    assert known.action == {"type": "click", "x": x, "y": y}, "a cell whose middle is beside the element is not taken"


def test_a_click_at_an_edge_goes_to_the_cell_of_the_elements_middle(
    root: Path, loaded: LoadedModel, episode: DemonstratedEpisode
) -> None:
    edge = replace(episode.turns[0], action=Action(ActionType.DOUBLE_CLICK, x=21, y=69))
    at_edge = replace(episode, turns=(edge, *episode.turns[1:]))
    step = answering(loaded, root, AnswerSettings(coordinate_step_px=8)).steps(at_edge)[0]
    assert step.action == {"type": "double_click", "x": 44, "y": 60}


def test_a_policy_with_an_action_head_describes_what_it_clicks(
    root: Path, loaded: LoadedModel, episode: DemonstratedEpisode
) -> None:
    tokenizer = answering(loaded, root, AnswerSettings(described=True, coordinate_step_px=8))
    assert [step.text for step in tokenizer.steps(episode)] == [
        "Action: click(start_box='first button')",
        "Action: click(start_box='first button')",
        "Action: finished(content='')",
    ]
    drag = replace(episode.turns[0], action=Action(ActionType.DRAG, x=40, y=60, x2=80, y2=60))
    dragged = tokenizer.steps(replace(episode, turns=(drag, *episode.turns[1:])))
    assert dragged[0].text == "Action: drag(start_box='(40,60)', end_box='(80,60)')", "as the warm start writes it"
    with pytest.raises(ValidationError, match="leaves no words to describe targets with"):
        AnswerSettings(described=True, thoughts="none")


@pytest.mark.parametrize("suite_names", [True, False])
@pytest.mark.parametrize("name", ["", "7", "Don't save"])
def test_what_no_words_describe_is_left_out_with_an_action_head(
    root: Path, loaded: LoadedModel, episode: DemonstratedEpisode, name: str, suite_names: bool
) -> None:
    """The name of the window around it would send the click elsewhere."""
    first = episode.turns[0]
    assert first.element is not None
    inner = replace(
        first,
        called="",
        suite_names=suite_names,
        target=name or "Question",
        element=first.element.model_copy(update={"name": name}),
    )
    tokenizer, left_out = answering(loaded, root, AnswerSettings(described=True)), Counter[str]()
    odd = replace(episode, name="odd", turns=(inner, *episode.turns[1:]))
    assert [found.name for found in tokenize_episodes(tokenizer, [odd, episode], left_out)] == [episode.name]
    ((reason, count),) = left_out.items()
    assert "no words for an action head describe what click points at" in reason
    assert count == 1


def test_what_the_prompt_has_no_words_for_is_left_out(
    root: Path, loaded: LoadedModel, episode: DemonstratedEpisode
) -> None:
    middle = DemonstratedTurn(episode.turns[0].screen, Action(ActionType.MIDDLE_CLICK, x=1, y=1))
    odd, left_out = replace(episode, name="odd", turns=(middle, *episode.turns)), Counter[str]()
    tokenizer = tokenizer_of(loaded, root, replace(preset("uitars-1.5", min_pixels=1), max_pixels=16384, multiple=32))
    assert [found.name for found in tokenize_episodes(tokenizer, [odd, episode], left_out)] == [episode.name]
    ((reason, count),) = left_out.items()
    assert reason.startswith("the prompt has no words for it")
    assert count == 1
    with pytest.raises(DemonstrationsUnusableError, match="no demonstration can be imitated"):
        tokenize_episodes(tokenizer, [odd], Counter())


def test_rows_are_drawn_by_seed_and_number_once_per_epoch(root: Path, loaded: LoadedModel) -> None:
    for number, task_id in enumerate(TRAIN_TASKS):
        write_demonstration(root / "four" / str(number), task_id, seed=number, clicks=1)
    episodes = tokenize_episodes(
        tokenizer_of(loaded, root, preset("tiny")), read_demonstrations([root / "four"]).episodes, Counter()
    )
    rows = ImitatedRows(episodes, seed=3)
    assert len(rows.rows) == 8
    keys = [[row.key for row in rows.draw(number, 3)] for number in range(4)]
    assert len({*keys[0], *keys[1]}) == 6, "two draws of three in an epoch of eight"
    assert keys != [[row.key for row in ImitatedRows(episodes, seed=4).draw(number, 3)] for number in range(4)]
    assert keys == [[row.key for row in ImitatedRows(episodes, seed=3).draw(number, 3)] for number in range(4)]
    assert sorted(keys[0] + keys[1]) != sorted(keys[2] + keys[3]), "another epoch leaves out other rows"
    assert len(rows.draw(5, 100)) == 8
