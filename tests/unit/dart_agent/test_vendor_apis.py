"""The computer tools of OpenAI and Anthropic over their own APIs: episodes against fakes that take documented requests only."""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx
import pytest
from fake_model_apis import FakeApi, computer_call, message, output_message, reasoning, response, tool_use
from pydantic import ValidationError

from dart_agent.chat_api.policy_endpoint import PolicyEndpointSettings, declare_tool, open_endpoint
from dart_agent.errors import ConfigError, PolicyUnavailableError, RequestRejected
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.history import HistorySettings
from dart_agent.rollouts.episode import Episode, EpisodeSettings, OnParseError
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.local import RolloutPlan
from dart_agent.rollouts.worker_config import WorkerConfig
from dart_agent.types import Completion, FinishReason, PolicyRequest, Purpose, SamplingParams, StopReason, WorkItem
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, Observation
from tests.unit.dart_agent.fakes import FakeClock, ScriptedEnv, request, task

SECRET = "sk-very-secret"
FORMATS = {"responses": "openai-computer", "messages": "anthropic-computer"}
CLICK = {"type": "click", "button": "left", "x": 10, "y": 20}
TYPE = {"type": "type", "text": "hello"}
CHECK = {"id": "sc_1", "code": "malicious_instructions", "message": "The screen gives instructions."}
SAMPLING = SamplingParams(temperature=1.0, max_tokens=1024)
Api = Literal["responses", "messages"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ENDPOINT_KEY", SECRET)


def settings(api: str, **given: Any) -> PolicyEndpointSettings:
    return PolicyEndpointSettings(
        base_url="https://models.example/v1", model="m", api_key_variable="TEST_ENDPOINT_KEY", api=api, **given
    )


async def play(
    api: Api, replies: list[Any], *, keep: int = 5, steps: int = 8, retries: int = 0, **given: Any
) -> tuple[FakeApi, ScriptedEnv, Episode]:
    """One episode over the API, with the vendor's own format."""
    fake, env, asked = FakeApi(api, replies), ScriptedEnv(), settings(api, **given)
    spec = declare_tool(preset(FORMATS[api], history=HistorySettings(policy="screens", keep=keep)), asked)
    item = WorkItem("roll_0", "grp_0", "toy/click/0000", Purpose.EVAL, SAMPLING, steps, "eval")
    playing = EpisodeSettings(
        on_parse_error=OnParseError.RETRY if retries else OnParseError.FAIL, parse_retries=max(1, retries)
    )
    async with open_endpoint(asked, clock=FakeClock(), transport=fake.transport) as policy:
        episode = await run_episode(env, policy, task(steps), item, PromptBuilder(spec), settings=playing)
    assert not fake.replies, "a reply was not asked for"
    return fake, env, episode


async def ask(api: Api, *replies: Any, asked: PolicyRequest | None = None, **given: Any) -> tuple[FakeApi, Completion]:
    fake = FakeApi(api, replies)
    async with open_endpoint(settings(api, **given), clock=FakeClock(), transport=fake.transport) as policy:
        return fake, await policy.complete(asked or tool_request(api))


def tool_request(api: Api, **given: Any) -> PolicyRequest:
    spec = declare_tool(preset(FORMATS[api]), settings(api, **given))
    builder = PromptBuilder(spec)
    prompt = builder.build(Observation(request().images[0], "Click OK"), builder.new_history())
    return PolicyRequest(prompt.messages, prompt.images, SAMPLING, "r0", tools=prompt.tools)


async def test_an_openai_episode_sends_items_screenshots_and_reasoning_back() -> None:
    fake, env, episode = await play(
        "responses",
        [
            response(reasoning(1), computer_call(1, {"type": "screenshot"})),
            response(reasoning(2), output_message("I type."), computer_call(2, TYPE, {"type": "wait"})),
            response(reasoning(3), computer_call(3, {**CLICK, "x": 3, "y": 4})),
            response(output_message("It is done.")),
        ],
    )
    assert episode.trajectory.stop is StopReason.DONE
    assert [step.parse_error for step in episode.trajectory.steps_S] == [None] * 4
    first, *_, last = fake.bodies
    assert first["tools"] == [{"type": "computer"}]
    assert "keypress" not in first["instructions"]
    assert [part["type"] for part in first["input"][0]["content"]] == ["input_text", "input_image"]
    assert "temperature" not in first, "models that reason take none"
    assert [item["type"] for item in last["input"]] == [
        "message",
        "reasoning", "computer_call", "computer_call_output",
        "reasoning", "message", "computer_call", "computer_call_output",
        "reasoning", "computer_call", "computer_call_output",
    ]  # fmt: skip
    assert last["input"][6]["actions"] == [TYPE, {"type": "wait"}]
    pictures = [item["output"]["image_url"] for item in last["input"] if item["type"] == "computer_call_output"]
    assert len(set(pictures)) == 3
    assert len(env.actions) == 4
    sent = fake.seen[0]
    assert (str(sent.url), sent.headers["authorization"]) == ("https://models.example/v1/responses", f"Bearer {SECRET}")


async def test_an_anthropic_episode_sends_blocks_and_results_back() -> None:
    fake, env, episode = await play(
        "messages",
        [
            message({"type": "thinking", "thinking": "So.", "signature": "c2ln"}, tool_use(1, "screenshot")),
            message(
                {"type": "text", "text": "I type."},
                tool_use(2, "left_click", coordinate=[3, 4]),
                tool_use(3, "type", text="hello"),
            ),
            message({"type": "text", "text": "It is done."}, stop_reason="end_turn"),
        ],
    )
    assert episode.trajectory.stop is StopReason.DONE
    assert len(env.actions) == 3
    first, _, last = fake.bodies
    assert first["tools"][0]["type"] == "computer_toolset_20260801"
    assert first["max_tokens"] == 1024
    assert "[INFEASIBLE]" in first["system"]
    roles = [(turn["role"], [block["type"] for block in turn["content"]]) for turn in last["messages"]]
    assert roles == [
        ("user", ["text", "image"]),
        ("assistant", ["thinking", "tool_use"]),
        ("user", ["tool_result"]),
        ("assistant", ["text", "tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result"]),
    ]
    kinds = [result["content"][0]["type"] for result in last["messages"][-1]["content"]]
    assert kinds == ["text", "image"], "the screen is shown once, after the batch"
    sent = fake.seen[0]
    assert (str(sent.url), sent.headers["x-api-key"]) == ("https://models.example/v1/messages", SECRET)
    assert "anthropic-beta" not in sent.headers


@pytest.mark.parametrize(
    ("tool", "beta"),
    [("computer_20251124", "computer-use-2025-11-24"), ("computer_20250124", "computer-use-2025-01-24")],
)
async def test_anthropics_older_tools_name_the_display_and_their_beta(tool: str, beta: str) -> None:
    call = {
        "type": "tool_use",
        "id": "toolu_01",
        "name": "computer",
        "input": {"action": "left_click", "coordinate": [10, 20]},
    }
    fake, _, episode = await play("messages", [message(call)], steps=1, computer_tool=tool)
    assert episode.trajectory.reward == 1.0
    (declared,) = fake.bodies[0]["tools"]
    width, height = declared["display_width_px"], declared["display_height_px"]
    assert declared == {"type": tool, "name": "computer", "display_width_px": width, "display_height_px": height}
    assert episode.trajectory.steps_S[0].image_hw[-1] == (height, width)
    assert fake.seen[0].headers["anthropic-beta"] == beta


async def test_betas_and_the_version_are_settings() -> None:
    fake, _ = await ask("messages", message(), betas=["one", "two"])
    assert fake.seen[0].headers["anthropic-beta"] == "one,two"
    with pytest.raises(RequestRejected, match="anthropic-version"):
        await ask("messages", message(), api_version="2099-01-01")


async def test_openais_preview_names_the_display_and_answers_with_one_action() -> None:
    call = {name: value for name, value in computer_call(1).items() if name != "actions"} | {"action": CLICK}
    fake, _, episode = await play(
        "responses", [response(call)], steps=1, computer_tool="computer_use_preview", environment="ubuntu"
    )
    assert episode.trajectory.reward == 1.0
    (declared,) = fake.bodies[0]["tools"]
    assert declared["environment"] == "ubuntu"
    height, width = episode.trajectory.steps_S[0].image_hw[-1]
    assert (declared["display_width"], declared["display_height"]) == (width, height)
    assert fake.bodies[0]["truncation"] == "auto", "the preview takes nothing else"


async def test_screenshots_that_are_not_shown_any_more_leave_documented_requests() -> None:
    moves = [computer_call(number, {"type": "move", "x": number, "y": 1}) for number in range(1, 5)]
    fake, _, _ = await play(
        "responses", [*(response(reasoning(9), move) for move in moves), response(output_message("Done."))], keep=2
    )
    items = fake.bodies[-1]["input"]
    assert [item["type"] for item in items].count("computer_call_output") == 2
    told = [item["content"] for item in items if item.get("role") == "assistant"]
    assert len(told) == 2
    assert all("not shown any more" in text and '"move"' in text for text in told)
    uses = [message(tool_use(number, "mouse_move", coordinate=[number, 1])) for number in range(1, 5)]
    fake, _, _ = await play("messages", [*uses, message({"type": "text", "text": "Done."})], keep=2)
    results = [
        block for turn in fake.bodies[-1]["messages"] for block in turn["content"] if block["type"] == "tool_result"
    ]
    assert [result["content"][0]["type"] for result in results] == ["text", "text", "image", "image"]


async def test_pending_safety_checks_are_acknowledged_where_the_settings_say_so() -> None:
    replies = [response(computer_call(1, TYPE, checks=[CHECK])), response(output_message("Done."))]
    fake, env, episode = await play("responses", replies, safety_checks="acknowledge")
    assert fake.bodies[1]["input"][-1]["acknowledged_safety_checks"] == [CHECK]
    assert episode.trajectory.steps_S[0].parse_error is None
    assert len(env.actions) == 2


async def test_a_call_with_pending_safety_checks_is_not_performed_otherwise() -> None:
    replies = [response(reasoning(1), computer_call(1, TYPE, checks=[CHECK])), response(computer_call(2, CLICK))]
    fake, _, episode = await play("responses", replies, steps=1, retries=1)
    refused, performed = episode.trajectory.steps_S
    assert refused.action is None
    assert "malicious_instructions: The screen gives instructions." in str(refused.parse_error)
    assert json.loads(refused.text)[1]["pending_safety_checks"] == [CHECK], "what came is stored"
    assert performed.action is not None
    assert episode.trajectory.reward == 1.0
    assert [item["type"] for item in fake.bodies[1]["input"]] == ["message", "message", "message"]
    assert fake.bodies[1]["input"][1]["content"].startswith("Not performed: ")


@pytest.mark.parametrize(
    ("api", "reply", "cause"),
    [
        ("responses", response(output_message("", type="refusal", refusal="I will not.")), "The model refused: I will not."),
        ("responses", response(status="incomplete", incomplete_details={"reason": "content_filter"}), "content filter"),
        ("responses", response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}), "raise max_tokens"),
        ("responses", response(computer_call(1, {"type": "fly"})), "There is no action 'fly'"),
        ("responses", response(computer_call(1, {**CLICK, "x": 99999})), "outside the"),
        ("messages", message(stop_reason="refusal"), "The model refused."),
        (
            "messages",
            message(stop_reason="refusal", stop_details={"type": "refusal", "explanation": "Not this."}),
            "The model refused: Not this.",
        ),
        ("messages", message(tool_use(1, "type", text="he"), stop_reason="max_tokens"), "raise max_tokens"),
        ("messages", message(tool_use(1, "fly")), "There is no action 'fly'"),
    ],
)  # fmt: skip
async def test_what_performs_nothing_is_recorded_with_its_cause(api: Api, reply: Any, cause: str) -> None:
    _, _, episode = await play(api, [reply])
    (step,) = episode.trajectory.steps_S
    assert cause in str(step.parse_error)
    assert step.action is None
    assert episode.trajectory.stop is StopReason.PARSE_ERROR


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_an_answer_that_performs_nothing_can_be_asked_for_again(api: Api) -> None:
    """Also after a refusal without content, which no API takes back."""
    first: Any = (
        response(output_message("", type="refusal", refusal="No."))
        if api == "responses"
        else message(stop_reason="refusal")
    )
    if api == "responses":
        first["output"] = []
    second = (
        response(computer_call(1, CLICK))
        if api == "responses"
        else message(tool_use(1, "left_click", coordinate=[10, 20]))
    )
    _, _, episode = await play(api, [first, second], steps=1, retries=1)
    assert episode.trajectory.reward == 1.0


@pytest.mark.parametrize(
    ("api", "usage"), [("responses", response(output_message("Done."))), ("messages", message({"type": "text", "text": "Done."}))]
)  # fmt: skip
async def test_the_tokens_that_the_api_counts_are_kept(api: Api, usage: dict[str, Any]) -> None:
    _, done = await ask(api, usage)
    assert (done.counted_tokens, done.sampled_tokens, done.cached_prompt_tokens) == (31, 31, 1024)
    assert (done.token_ids_T, done.logprobs_T, done.finish_reason) == ((), (), FinishReason.STOP)
    _, silent = await ask(api, {**usage, "usage": None})
    assert (silent.counted_tokens, silent.cached_prompt_tokens) == (None, 0)


BUSY = {
    "responses": [httpx.Response(429, json={"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}})],
    "messages": [httpx.Response(status, json={"type": "error", "error": {"type": "x", "message": "y"}}) for status in (429, 529)],
}  # fmt: skip
FAILED = response(status="failed", error={"code": "server_error", "message": "Oops."})


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_busy_and_failing_endpoints_are_asked_again(api: Api) -> None:
    good = response(output_message("Done.")) if api == "responses" else message({"type": "text", "text": "Done."})
    malformed = [httpx.Response(500), httpx.Response(200, text="<html>"), {"hello": 1}]
    failed = [FAILED] if api == "responses" else []
    fake, done = await ask(api, *BUSY[api], *malformed, *failed, good)
    assert json.loads(done.text)[0]["type"] in ("message", "text")
    assert len({request.headers["idempotency-key"] for request in fake.seen}) == 1
    with pytest.raises(
        PolicyUnavailableError, match="5 attempts failed; the last failure: its answer is none of its API"
    ):
        await ask(api, *({"hello": 1} for _ in range(5)))


@pytest.mark.parametrize(
    ("api", "nonsense"),
    [
        ("responses", "[" * 100_000),
        ("messages", "[" * 100_000),
        ("responses", '{"output": [{"type": "message", "content": ' + "[" * 3000 + "]" * 3000 + "}]}"),
        ("messages", '{"type": "message", "content": [{"x": ' + "[" * 3000 + "]" * 3000 + "}]}"),
        ("messages", '{"type": "message"}'),
        ("responses", '{"status": "incomplete", "incomplete_details": [1], "output": 5}'),
    ],
)
async def test_nonsense_is_one_failed_attempt(api: Api, nonsense: str) -> None:
    good = response(output_message("Done.")) if api == "responses" else message({"type": "text", "text": "Done."})
    fake, done = await ask(api, httpx.Response(200, text=nonsense), good)
    assert json.loads(done.text)[0]["type"] in ("message", "text")
    assert len(fake.seen) == 2


async def test_fields_of_other_types_than_the_apis_are_not_looked_into() -> None:
    _, done = await ask("messages", message({"type": "text", "text": "Done."}) | {"stop_reason": ["max_tokens"]})
    assert done.finish_reason is FinishReason.STOP
    reply = response(output_message("Done."), status="incomplete", incomplete_details=["max_output_tokens"])
    _, done = await ask("responses", reply)
    assert done.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("api", "error"),
    [
        (
            "responses",
            {"error": {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}},
        ),
        (
            "messages",
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
            },
        ),
    ],
)  # fmt: skip
async def test_a_prompt_that_is_too_long_is_a_refusal_and_not_tried_again(api: Api, error: dict[str, Any]) -> None:
    fake = FakeApi(api, [httpx.Response(400, json=error)])
    async with open_endpoint(settings(api), clock=FakeClock(), transport=fake.transport) as policy:
        with pytest.raises(RequestRejected, match=r"context window|too long"):
            await policy.complete(tool_request(api))
    assert len(fake.seen) == 1


async def test_a_response_that_failed_for_good_is_not_tried_again() -> None:
    with pytest.raises(RequestRejected, match=r"invalid_prompt.*Not this"):
        await ask("responses", response(status="failed", error={"code": "invalid_prompt", "message": "Not this."}))


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_other_prompts_are_asked_in_their_own_words(api: Api) -> None:
    good = (
        response(output_message("Action: wait()"))
        if api == "responses"
        else message({"type": "text", "text": "Action: wait()"})
    )
    plain = PolicyRequest(
        (
            {"role": "system", "content": "Be brief."},
            *request().messages,
            {"role": "assistant", "content": [{"type": "text", "text": "[]"}]},
            {"role": "user", "content": [{"type": "image"}]},
        ),
        (*request().images, *request().images),
        SamplingParams(temperature=0.0, top_p=0.5, max_tokens=64),
        "r0",
    )
    fake, done = await ask(api, good, asked=plain)
    (body,) = fake.bodies
    assert done.text == "Action: wait()"
    assert "tools" not in body
    assert (body["temperature"], body["top_p"]) == (0.0, 0.5)
    assert declare_tool(preset("qwen"), settings(api)) == preset("qwen")


async def test_stop_texts_are_sent_or_refused_and_never_left_out() -> None:
    stopped = PolicyRequest(request().messages, request().images, SamplingParams(stop=("END",)), "r0")
    fake, _ = await ask("messages", message({"type": "text", "text": "Done."}), asked=stopped)
    assert fake.bodies[0]["stop_sequences"] == ["END"]
    with pytest.raises(RequestRejected, match="has no stop texts"):
        await ask("responses", asked=stopped)


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_turns_that_another_policy_wrote_become_calls_with_ids(api: Api) -> None:
    spec = declare_tool(preset(FORMATS[api]), settings(api))
    builder = PromptBuilder(spec)
    history = builder.new_history()
    screen = request().images[0]
    assert spec.format is not None
    points = PointMap((64, 64), (64, 64))
    history.add(screen, spec.format.format([Action(ActionType.CLICK, x=1, y=2)], points, thought="Click it."))
    history.add(screen, "no JSON at all")
    prompt = builder.build(Observation(screen, "Click OK"), history)
    asked = PolicyRequest(prompt.messages, prompt.images, SAMPLING, "r0", tools=prompt.tools)
    good = (
        response(computer_call(1, CLICK))
        if api == "responses"
        else message(tool_use(1, "left_click", coordinate=[1, 2]))
    )
    fake, _ = await ask(api, good, asked=asked)
    assert '"click"' in fake.seen[0].content.decode() or '"left_click"' in fake.seen[0].content.decode()
    assert "no JSON at all" in fake.seen[0].content.decode()


@pytest.mark.parametrize(
    ("api", "answers", "line"),
    [
        ("responses", [[reasoning(1), computer_call(1, CLICK)], [reasoning(2), output_message("Stuck.")]], CLICK),
        (
            "messages",
            [
                [{"type": "thinking", "thinking": "gAAAA", "signature": "gAAAA"}, tool_use(1, "type", text="hello")],
                [{"type": "text", "text": "Stuck."}],
            ],
            {"type": {"text": "hello"}},
        ),
    ],
)
def test_a_summary_tells_the_actions_and_not_the_reasoning(api: Api, answers: list[Any], line: dict[str, Any]) -> None:
    spec = declare_tool(preset(FORMATS[api], history=HistorySettings(policy="summary", keep=1)), settings(api))
    history = PromptBuilder(spec).new_history()
    for answer in [*answers, answers[0]]:
        history.add(request().images[0], json.dumps(answer))
    assert history.summary == (json.dumps(line), "Stuck.")


def test_settings_that_disagree_are_refused_with_the_fix() -> None:
    for given, said in (
        ({"api": "chat", "computer_tool": "computer"}, "set api to responses or messages"),
        ({"api": "responses", "computer_tool": "computer_20251124"}, "there are computer, computer_use_preview"),
        ({"api": "responses", "betas": ["x"]}, "betas are for the api messages"),
        ({"api": "messages", "safety_checks": "acknowledge"}, "safety_checks are for the api responses"),
        ({"api": "soap"}, "chat"),
    ):
        with pytest.raises(ValidationError, match=said):
            settings(**given)


def test_a_tool_without_its_prompt_is_refused_before_anything_starts(tmp_path: Any) -> None:
    asked = settings("responses", computer_tool="computer")
    with pytest.raises(ConfigError, match="choose the prompt openai-computer"):
        RolloutPlan(tasks=(), policy="endpoint", prompt="tiny", endpoint=asked).check()
    places = {"socket": tmp_path / "s", "images": tmp_path / "i"}
    with pytest.raises(ValidationError, match="choose the prompt openai-computer"):
        WorkerConfig(policy="endpoint", endpoint=asked, **places)
    config = WorkerConfig(policy="endpoint", endpoint=asked, prompt="openai-computer", **places)
    assert config.prompt_spec.format is not None
    assert config.prompt_spec.format.tools((1, 1)) == ({"type": "computer"},)
    assert WorkerConfig.model_validate_json(config.model_dump_json()) == config
