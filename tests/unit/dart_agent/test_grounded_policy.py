"""Actions that describe their targets: the language, the points with their log-probs, and what an episode stores of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dart_agent.data_client.payloads import StepPayload, StreamStepPayload  # noqa: E402
from dart_agent.data_client.token_stream import StreamReader  # noqa: E402
from dart_agent.errors import ContextExceededError  # noqa: E402
from dart_agent.grounding.acting.planner import TransformersPlanner, draw_token  # noqa: E402
from dart_agent.grounding.acting.pointer import Pointer  # noqa: E402
from dart_agent.grounding.acting.policy import GroundedPolicy  # noqa: E402
from dart_agent.grounding.acting.settings import PointerSettings, check_pointer, tell_of_targets  # noqa: E402
from dart_agent.grounding.acting.targets import fill_targets, find_targets  # noqa: E402
from dart_agent.prompts.builder import PromptBuilder, preset  # noqa: E402
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids  # noqa: E402
from dart_agent.rollouts.episode_loop import run_episode  # noqa: E402
from dart_agent.types import Completion, FinishReason, PolicyRequest, SamplingParams, VersionSpan  # noqa: E402
from dart_envs.action_formats.uitars import parse  # noqa: E402
from dart_envs.observations.geometry import PointMap  # noqa: E402
from dart_envs.types import ActionType  # noqa: E402
from tests.unit.dart_agent.fakes import ScriptedEnv, item, task  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402

CLICK = "Thought: save it\nAction: click(start_box='the button that saves')"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (CLICK, ["the button that saves"]),
        ("Action: drag(start_box='the first row', end_box=\"the bin\")", ["the first row", "the bin"]),
        ("Action: drag(start_box='(3,4)', end_box='the bin')", ["the bin"]),
        ("Action: click(start_box='<|box_start|>(3,4)<|box_end|>')", []),
        ("Thought: start_box='the button'\nAction: type(content='start box')", []),
        ("click(start_box='the button')", []),
        ("Action: type(content='<a start_box=\"the button\">')", []),
        ("Action: type(content='it's point=\"the first row\"\\n')", []),
        ("action : click(start_box='the button')", ["the button"]),
        ("Action: type(content='a')\n\nclick(start_box='the button')", ["the button"]),
        (f"Action: drag(start_box='{'very ' * 100}long', end_box='the bin')", ["the bin"]),
    ],
)
def test_descriptions_are_found_where_boxes_hold_words(answer: str, wanted: list[str]) -> None:
    assert [target.text for target in find_targets(answer)] == wanted


@pytest.mark.parametrize(
    "value",
    ["<|box_start|>the save button<|box_end|>", "<point>the save button</point>", "<bbox> the save button </bbox>"],
)
def test_descriptions_in_the_marks_of_a_box_are_asked_without_them(value: str) -> None:
    answer = f"Action: click(start_box='{value}')"
    (target,) = find_targets(answer)
    assert target.text == "the save button"
    assert target.instruction == "click the save button"
    assert answer[target.start : target.end] == value
    filled = fill_targets(answer, [target], [(10.9, 20.2)], (96, 64))
    assert filled == "Action: click(start_box='(10,20)')"


def test_filled_answers_are_read_as_points() -> None:
    answer = "Action: drag(start_box='the first row', end_box='the bin')"
    for coordinates, wanted in (("pixels", ((10, 20), (95, 63))), ("thousandths", ((10, 20), (96, 64)))):
        text = fill_targets(answer, find_targets(answer), [(10.9, 20.2), (96.0, 64.0)], (96, 64), coordinates)
        parsed = parse(text, PointMap((96, 64), (96, 64), coordinates))
        (action,) = parsed.actions
        assert action.type is ActionType.DRAG
        assert abs((action.x or 0) - wanted[0][0]) <= 1
        assert abs((action.x2 or 0) - min(wanted[1][0], 95)) <= 1


class FixedPlanner:
    """A fake planner that says one sentence after the other."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def complete(self, request: PolicyRequest) -> Completion:
        return Completion(self.answers.pop(0), (1,), (2,), (-0.5,), (VersionSpan(4, 0, 1),), FinishReason.STOP)


def request(seed: int | None = 0, temperature: float = 1.0, **changes: Any) -> PolicyRequest:
    messages = ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Save"}]},)
    sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=changes.pop("max_tokens", 4))
    return PolicyRequest(messages, (screen(),), sampling, "roll.0", **changes)


async def test_points_are_drawn_with_their_log_probs(tmp_path: Path) -> None:
    pointer = Pointer(small_model("qwen3_vl", tmp_path, offset_parts=2), version=5)
    found = [await GroundedPolicy(FixedPlanner(CLICK), pointer).complete(request(seed)) for seed in (1, 1, 2)]
    assert found[0] == found[1]
    assert (
        found[0].pointers[0].cell != found[2].pointers[0].cell or found[0].pointers[0].part != found[2].pointers[0].part
    )
    (target,) = found[0].pointers
    assert target.instruction == "click the button that saves"
    assert found[0].version_spans == (VersionSpan(4, 0, 1), VersionSpan(5, 1, 2))
    assert target.logprob == pytest.approx(-3.18, abs=1.0)  # 6 cells of 4 parts, nearly uniform before training
    assert found[0].text == CLICK
    x, y = target.point
    assert found[0].action_text == CLICK.replace("the button that saves", f"({int(x)},{int(y)})")
    greedy = [await GroundedPolicy(FixedPlanner(CLICK), pointer).complete(request(seed, 0.0)) for seed in (1, 2)]
    assert greedy[0].pointers == greedy[1].pointers


async def test_coordinates_and_other_actions_stay_the_planners(tmp_path: Path) -> None:
    pointer = Pointer(small_model("qwen3_vl", tmp_path))
    for text in ("Action: click(start_box='(3,4)')", "Action: finished(content='')", "nonsense"):
        completion = await GroundedPolicy(FixedPlanner(text), pointer).complete(request())
        assert (completion.action_text, completion.pointers) == (None, ())
        assert completion.version_spans == (VersionSpan(4, 0, 1),)


async def test_an_episode_clicks_where_the_head_points_and_stores_it(tmp_path: Path) -> None:
    pointer = Pointer(small_model("qwen3_vl", tmp_path))
    env = ScriptedEnv()
    policy = GroundedPolicy(FixedPlanner(CLICK, "Action: finished(content='')"), pointer)
    episode = await run_episode(env, policy, task(), item(seed=3), PromptBuilder(tell_of_targets(preset("tiny"))))
    first, last = episode.trajectory.steps_S
    assert first.text == CLICK
    assert first.parse_error is None
    assert first.action is not None
    assert len(first.pointers) == 1
    assert last.pointers == ()
    assert StepPayload.from_value(first).to_value() == first
    streamed = StreamStepPayload.from_value(first, None, 0)
    assert streamed.to_value(StreamReader()).pointers == first.pointers


async def test_the_backbone_plans_with_the_log_probs_of_its_distribution(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    planner = TransformersPlanner(model)
    first = await planner.complete(request(5))
    assert await planner.complete(request(5)) == first
    assert len(first.token_ids_T) == len(first.logprobs_T) <= 4
    features = model.processor.image_processor(images=[screen()], return_tensors="pt")
    ids = torch.tensor([[*first.prompt_ids_P, *first.token_ids_T]])
    with torch.no_grad():
        image = ids == model.backbone.config.image_token_id
        logits = model.backbone(input_ids=ids, mm_token_type_ids=image.int(), **features).logits[0].float()
    suppressed = suppressed_token_ids(model.backbone.config)
    logits[:, list(suppressed)] = -torch.inf  # the trainer gives them no probability either
    assert not set(suppressed) & set(first.token_ids_T)
    begin = len(first.prompt_ids_P)
    for at, (token, logprob) in enumerate(zip(first.token_ids_T, first.logprobs_T, strict=True)):
        whole = torch.log_softmax(logits[begin + at - 1], dim=-1)
        assert float(whole[token]) == pytest.approx(logprob, abs=1e-3)
    # The next turn continues the ids that were sampled.
    messages = (
        *request().messages,
        {"role": "assistant", "content": [{"type": "text", "text": first.text}]},
        {"role": "user", "content": [{"type": "text", "text": "Save"}]},
    )
    held = first.prompt_ids_P + first.token_ids_T
    following = PolicyRequest(
        messages, (screen(),), SamplingParams(max_tokens=2), "roll.1", prefix_ids_P=held, prefix_messages=2
    )
    assert (await planner.complete(following)).prompt_ids_P[: len(held)] == held


async def test_the_context_of_the_backbone_is_that_of_its_config(tmp_path: Path) -> None:
    model = small_model("qwen2_5_vl", tmp_path)
    prompt = len((await TransformersPlanner(model).complete(request())).prompt_ids_P)
    longest = prompt + request().sampling.max_tokens
    model.backbone.config.text_config.max_position_embeddings = longest
    await TransformersPlanner(model).complete(request())
    model.backbone.config.text_config.max_position_embeddings = longest - 1
    with pytest.raises(ContextExceededError, match=f"the context is {longest - 1} tokens"):
        await TransformersPlanner(model).complete(request())
    await TransformersPlanner(model, max_context=longest).complete(request())
    with pytest.raises(ContextExceededError, match="the context is 64 tokens"):
        await TransformersPlanner(model, max_context=64).complete(
            dataclasses.replace(request(), sampling=SamplingParams(max_tokens=64))
        )


def test_top_p_leaves_out_the_rest_and_renormalises() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    generator = torch.Generator().manual_seed(0)
    drawn = {draw_token(logits, SamplingParams(top_p=0.6), generator) for _ in range(40)}
    assert {token for token, _ in drawn} == {0, 1}
    assert {round(logprob, 3) for _, logprob in drawn} == {-0.470, -0.981}
    allowed = {draw_token(logits, SamplingParams(), generator, (0,)) for _ in range(40)}
    assert {(token, round(logprob, 3)) for token, logprob in allowed} == {(1, -0.511), (2, -0.916)}


def test_policies_and_heads_that_do_not_go_together_are_refused() -> None:
    settings = PointerSettings(model="x")
    with pytest.raises(ValueError, match="needs a pointer"):
        check_pointer("transformers", None, preset("tiny"))
    with pytest.raises(ValueError, match="policy random describes no targets"):
        check_pointer("random", settings, preset("tiny"))
    with pytest.raises(ValueError, match="choose tiny, qwen2, uitars, qwen"):
        check_pointer("vllm", settings, preset("qwen3-vl"))
    prompt = PromptBuilder(tell_of_targets(preset("qwen"))).messages(
        "Save", PromptBuilder(preset("qwen")).new_history(), (64, 64)
    )
    assert "may describe one element" in prompt[0]["content"][0]["text"]
