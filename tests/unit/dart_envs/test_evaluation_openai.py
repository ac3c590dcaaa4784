"""The policy behind an OpenAI-compatible endpoint, against a stand-in of one on this machine."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalHandler, LocalServer, serving
from PIL import Image
from typer.testing import CliRunner

from dart_envs.action_formats import FORMATS, make_format
from dart_envs.cli import evaluate
from dart_envs.cli.main import app
from dart_envs.evaluation import EvaluationEpisode, run_episodes
from dart_envs.evaluation.openai import Endpoint, format_policy, openai_policy, parse_answer
from dart_envs.farm import AsyncFarmClient
from dart_envs.observations.geometry import PointMap
from dart_envs.tasks import Task, parse_task
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType
from dart_server.wire import DesktopShape, ExecReply

SHAPE = DesktopShape(resolution=(640, 400))
TASK = {
    "id": "stand-in",
    "instruction": "Type hello.",
    "max_steps": 5,
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["typed"]},
        "expected": {"type": "rule", "rules": {"expected": "hello"}},
    },
}


class FakeEndpoint(LocalServer):
    """A stand-in for a model's endpoint: says what it was told to say, in order, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(FakeEndpointHandler)
        self.answers: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://{self.place}/v1"


class FakeEndpointHandler(LocalHandler):
    server: FakeEndpoint

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers.get("Authorization"))
        if self.refused():
            return
        content = self.server.answers.pop(0) if self.server.answers else "DONE"
        message = self.server.messages.pop(0) if self.server.messages else {"role": "assistant", "content": content}
        body = json.dumps({"choices": [{"message": message}]}).encode()
        self.answer(200 if self.path == "/v1/chat/completions" else 404, body)


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with serving(FakeEndpoint()) as server:
        yield server


def typed(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
    return ExecReply(returncode=0, stdout=desktop.state.typed, stderr="")


class NoWait:
    """A clock whose pauses are over at once."""

    def monotonic(self) -> float:
        return 0.0

    def time(self) -> float:
        return 0.0

    async def sleep(self, delay_s: float) -> None:
        pass


def task() -> Task:
    return parse_task(TASK, name="stand-in")


async def good_farm() -> None:
    """The command finds the farm good."""


async def play(endpoint: FakeEndpoint, action_space: str = "pyautogui", **how: Any) -> EvaluationEpisode:
    policy = openai_policy(Endpoint(endpoint.url, "stand-in", **how), action_space, clock=NoWait())
    farm = FakeFarm(programs={"typed": typed})
    episodes = run_episodes(farm, [task()], policy, desktops=1, shape=SHAPE, action_space=action_space)
    (episode,) = [episode async for episode in episodes]
    return episode


async def test_a_model_solves_a_task(endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    endpoint.answers = ["```python\npyautogui.write('hello')\n```", "DONE"]
    episode = await play(endpoint, api_key_env="MY_KEY")
    assert (episode.reward, episode.end, episode.steps) == (1.0, "done", 2)
    assert endpoint.keys == ["Bearer secret"] * 2
    system, user = endpoint.asked[0]["messages"]
    assert "Type hello." in system["content"]
    assert "640x400" in system["content"]
    picture = user["content"][1]["image_url"]["url"].removeprefix("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        assert image.size == (640, 400)


async def test_only_the_last_turns_are_sent_again(endpoint: FakeEndpoint) -> None:
    endpoint.answers = ["WAIT", "WAIT", "WAIT", "WAIT", "DONE"]
    await play(endpoint, history=2)
    assert [len(one["messages"]) for one in endpoint.asked] == [2, 4, 6, 6, 6]
    assert [one["role"] for one in endpoint.asked[-1]["messages"]] == ["system", "user", "assistant"] * 1 + [
        "user",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize(
    ("action_space", "answer"),
    [
        ("computer_13", 'I type it. {"action_type": "TYPING", "text": "hello"}'),
        ("uitars", "Thought: type\nAction: type(content='hello')"),
    ],
)
async def test_answers_in_other_spaces(endpoint: FakeEndpoint, action_space: str, answer: str) -> None:
    endpoint.answers = [answer, read_done(action_space)]
    assert (await play(endpoint, action_space)).reward == 1.0


async def play_in_format(endpoint: FakeEndpoint, name: str, **how: Any) -> EvaluationEpisode:
    policy = format_policy(Endpoint(endpoint.url, "stand-in", **how), make_format(name), clock=NoWait())
    episodes = run_episodes(FakeFarm(programs={"typed": typed}), [task()], policy, desktops=1, shape=SHAPE)
    (episode,) = [episode async for episode in episodes]
    return episode


@pytest.mark.parametrize("name", FORMATS)
async def test_a_model_is_asked_and_answers_in_its_own_format(endpoint: FakeEndpoint, name: str) -> None:
    action_format = make_format(name)
    picture_wh = action_format.picture.fit(SHAPE.resolution)
    points = PointMap(picture_wh, SHAPE.resolution, action_format.coordinates)
    endpoint.answers = [
        action_format.format([Action(ActionType.TYPE, text="hello")], points),
        action_format.format([Action(ActionType.DONE)], points),
    ]
    episode = await play_in_format(endpoint, name, history=4)
    assert (episode.reward, episode.end, episode.steps, episode.rejected_actions) == (1.0, "done", 2, 0)
    sizes = []
    for message in endpoint.asked[1]["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image_url":
                picture = part["image_url"]["url"].removeprefix("data:image/png;base64,")
                with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
                    sizes.append(image.size)
    assert sizes == [picture_wh] * 2
    assert "Type hello." in json.dumps(endpoint.asked[0]["messages"])


async def test_only_as_many_pictures_are_sent_as_history_says(endpoint: FakeEndpoint) -> None:
    endpoint.answers = ["Action: wait()"] * 4 + ["Action: finished()"]
    for history, pictures in ((2, [1, 2, 3, 3, 3]), (0, [1, 1, 1, 1, 1])):
        endpoint.answers = ["Action: wait()"] * 4 + ["Action: finished()"]
        endpoint.asked.clear()
        await play_in_format(endpoint, "uitars-1.5", history=history)
        assert [json.dumps(one["messages"]).count('image_url": {') for one in endpoint.asked] == pictures
        assert json.dumps(endpoint.asked[-1]["messages"]).count("Action: wait()") == 4


async def test_answers_that_are_no_action_are_refused_and_asked_again(endpoint: FakeEndpoint) -> None:
    endpoint.answers = ["hello", "Action: type(content='hello')", "Action: finished()"]
    episode = await play_in_format(endpoint, "dart-gui", history=4)
    assert (episode.reward, episode.steps, episode.rejected_actions) == (1.0, 2, 1)
    endpoint.answers = ["hello"] * 3
    episode = await play_in_format(endpoint, "dart-gui", history=4)
    assert (episode.reward, episode.end) == (0.0, "rejected_actions")
    assert episode.cause is not None
    assert "no_action: There is no 'Action:'" in episode.cause


async def test_calls_that_the_endpoint_has_parsed_are_read(endpoint: FakeEndpoint) -> None:
    for arguments in ('{"action": "type", "text": "hello"}', '{"action": "terminate", "status": "success"}'):
        call = {"id": "1", "type": "function", "function": {"name": "computer_use", "arguments": arguments}}
        endpoint.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    assert (await play_in_format(endpoint, "qwen3-vl", history=4)).reward == 1.0


def test_a_format_goes_with_no_other_prompt(endpoint: FakeEndpoint) -> None:
    with pytest.raises(ValueError, match="has its own prompt"):
        format_policy(Endpoint(endpoint.url, "stand-in", prompt="Go"), make_format("qwen3-vl"))


def read_done(action_space: str) -> str:
    return '{"action_type": "DONE"}' if action_space == "computer_13" else "Action: finished()"


async def test_an_endpoint_that_is_busy_is_asked_again(endpoint: FakeEndpoint) -> None:
    endpoint.statuses, endpoint.answers = [503, 429], ["pyautogui.write('hello')", "DONE"]
    assert (await play(endpoint)).reward == 1.0


@pytest.mark.parametrize("statuses", [[401], [503] * 4])
async def test_an_endpoint_that_does_not_answer_is_no_verdict(endpoint: FakeEndpoint, statuses: list[int]) -> None:
    endpoint.statuses = list(statuses)
    episode = await play(endpoint)
    assert (episode.reward, episode.end) == (None, "endpoint_error")
    assert endpoint.url in str(episode.cause)
    assert len(endpoint.asked) == len(statuses)


async def test_a_text_that_is_no_action_is_the_models_own_failure(endpoint: FakeEndpoint) -> None:
    endpoint.answers = ["I would rather not."] * 3
    episode = await play(endpoint)
    assert (episode.reward, episode.end, episode.rejected_actions) == (0.0, "rejected_actions", 3)


def test_text_around_json_is_taken_off() -> None:
    assert parse_answer("so: {} done", "computer_13") == {}
    assert parse_answer("WAIT", "computer_13") == "WAIT"


def test_one_command_runs_several_step_budgets(
    endpoint: FakeEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = FakeFarm(programs={"typed": typed})

    async def connect() -> Any:
        return Open(farm)

    monkeypatch.setattr(AsyncFarmClient, "connect", connect)
    monkeypatch.setattr(evaluate, "check_farm", good_farm)
    file = tmp_path / "task.json"
    file.write_text(json.dumps(TASK))
    endpoint.answers = ["pyautogui.write('hel')", "pyautogui.write('hel')", "pyautogui.write('lo')", "DONE"]
    out = tmp_path / "out"
    command = [
        "eval",
        str(file),
        "--policy",
        "openai",
        "--base-url",
        endpoint.url,
        "--model",
        "stand-in",
        "--out",
        str(out),
    ]
    command += ["--action-space", "pyautogui", "--max-steps", "1,3", "--resolution", "640x400"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    solved = {budget: json.loads((out / f"steps-{budget}" / "report.json").read_text()) for budget in (1, 3)}
    assert {budget: one["rows"][-1]["solved"] for budget, one in solved.items()} == {1: 0, 3: 1}
    assert solved[3]["max_steps"] == 3
    asked = len(endpoint.asked)
    again = CliRunner().invoke(app, command)
    assert (again.exit_code, again.output.count("1 of them done already")) == (0, 2)
    assert len(endpoint.asked) == asked


def test_the_command_asks_in_a_format_by_name(
    endpoint: FakeEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = FakeFarm(programs={"typed": typed})

    async def connect() -> Any:
        return Open(farm)

    monkeypatch.setattr(AsyncFarmClient, "connect", connect)
    monkeypatch.setattr(evaluate, "check_farm", good_farm)
    file, out = tmp_path / "task.json", tmp_path / "out"
    file.write_text(json.dumps(TASK))
    command = ["eval", str(file), "--out", str(out), "--resolution", "640x400"]
    asked = [*command, "--policy", "openai", "--base-url", endpoint.url, "--model", "stand-in"]
    for wrong, sentence in (
        ([*asked, "--format", "qwen4"], "there is no action format 'qwen4'; there are uitars-1.5"),
        ([*command, "--policy", "noop", "--format", "qwen3-vl"], "--format is for the policy openai"),
    ):
        result = CliRunner().invoke(app, wrong)
        assert result.exit_code == 2
        assert sentence in " ".join(result.output.split())
    endpoint.answers = ["Action: type(content='hello')", "Action: finished(content='')"]
    result = CliRunner().invoke(app, [*asked, "--format", "dart-gui", "--save-trajectories"])
    assert result.exit_code == 0, result.output
    assert json.loads((out / "report.json").read_text())["rows"][-1]["solved"] == 1
    settings = json.loads((out / "settings.json").read_text())
    assert (settings["format"], settings["history"]) == ("dart-gui", 4)
    (steps,) = out.rglob("traj.jsonl")
    first = json.loads(steps.read_text().splitlines()[0])
    assert first["response"] == "Action: type(content='hello')"
    assert first["action"] == {"type": "type", "text": "hello"}


class Open:
    """A fake farm as a connection that is opened and closed."""

    def __init__(self, farm: FakeFarm) -> None:
        self.farm = farm

    async def __aenter__(self) -> FakeFarm:
        return self.farm

    async def __aexit__(self, *_exc: object) -> None:
        pass


async def test_the_system_prompt_and_the_sampling_are_the_users_choice(endpoint: FakeEndpoint) -> None:
    prompt = "You see {width}x{height}. Do: {instruction} Write: {actions}"
    await play(endpoint, prompt=prompt, temperature=0.7, max_tokens=9)
    body = endpoint.asked[-1]
    assert (body["temperature"], body["max_tokens"]) == (0.7, 9)
    assert body["messages"][0]["content"].startswith("You see 640x400. Do: ")
    assert "pyautogui" in body["messages"][0]["content"]
