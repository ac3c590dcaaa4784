"""Reward sources: a real program, a scripted judge over real HTTP, and what becomes of an episode without a verdict."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.errors import ConfigError
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.rewards.evaluator import CheckpointReward, EvaluatorReward
from dart_agent.rewards.judge import JudgeReward, parse_verdict
from dart_agent.rewards.open import open_rewards
from dart_agent.rewards.program import ProgramReward, parse_reply
from dart_agent.rewards.settings import JudgeSettings, ProgramSettings, RewardSettings
from dart_agent.rewards.source import EndedEpisode, RewardError, RewardSource, Verdict, prepare_task
from dart_agent.rollouts.episode import EpisodeSettings, OnParseError
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.worker import RolloutWorker
from dart_agent.types import Purpose, RewardKind, StopReason, Trajectory
from dart_envs.tasks import Scoring, Task
from dart_envs.types import EndReason
from tests.support.local_server import LocalHandler, LocalServer, serving
from tests.unit.dart_agent.fakes import FakeClock, FakeWorkSource, ScriptedEnv, ScriptedPolicy, item, task

CLICK = "Thought: OK\nAction: click(start_box='(10,20)')"
DONE = "Action: finished(content='')"


async def play(source: RewardSource, env: ScriptedEnv | None = None, *, played: Task | None = None) -> Trajectory:
    builder = PromptBuilder(preset("tiny"))
    prepared = source.prepare(played or task())
    policy = ScriptedPolicy([CLICK, CLICK, DONE])
    episode = await run_episode(
        env or ScriptedEnv(), policy, prepared, item(), builder, clock=FakeClock(), rewards=source
    )
    return TrajectoryPayload.from_value(episode.trajectory).to_value()  # as it is stored


def program(tmp_path: Path, text: str, **settings: Any) -> ProgramReward:
    file = tmp_path / "reward.py"
    file.write_text(text)
    return ProgramReward(ProgramSettings(argv=(sys.executable, str(file)), **settings))


async def test_a_program_reads_the_record_of_the_episode_and_gives_its_reward(tmp_path: Path) -> None:
    source = program(
        tmp_path,
        "import json, sys, pathlib\n"
        "record = json.load(sys.stdin)\n"
        f"pathlib.Path({str(tmp_path / 'seen.json')!r}).write_text(json.dumps(record))\n"
        "print(json.dumps({'reward': record['evaluator']['reward'] / len(record['steps']), 'details': {'why': 'short'}}))\n",
        screenshots=2,
    )
    trajectory = await play(source)
    assert trajectory.reward == pytest.approx(1 / 3)
    assert trajectory.reward_source is RewardKind.PROGRAM
    assert trajectory.info["verdict"] == {"program": {"why": "short"}}
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["instruction"], seen["stop"], seen["evaluator"]["outcome"]) == ("Click OK", "done", {"hit": True})
    assert [step["text"] for step in seen["steps"]] == [CLICK, CLICK, DONE]
    screens = [np.asarray(Image.open(io.BytesIO(base64.b64decode(png)))) for png in seen["screenshots_png"]]
    assert [int(screen[0, 0, 0]) for screen in screens] == [101, 103]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import sys; sys.exit('no idea')", "exit code 1: no idea"),
        ("print('0.5')", "must answer one line"),
        ("print('{\"reward\": 2}')", "between 0 and 1, not 2"),
        ("print('{\"reward\": true}')", "between 0 and 1, not True"),
        ("print('{\"reward\": NaN}')", "must answer one line"),
        ('print(\'{"reward": null, "cause": "no picture"}\')', "program: no picture"),
        ('print(\'{"reward": 1}\\n{"reward": 1}\')', "must answer one line"),
        ("print('x' * 100_000)", "more than 65536 bytes"),
        ("import time; time.sleep(60)", "took more than 0.3 s"),
        ("import subprocess; subprocess.Popen(['sleep', '60'])", "must answer one line"),
    ],
)
async def test_a_program_that_fails_on_every_episode_masks_the_episode_with_its_cause(
    text: str, cause: str, tmp_path: Path
) -> None:
    limit_s = 0.3 if "0.3" in cause else 60.0
    trajectory = await play(RealTime(program(tmp_path, text, timeout_s=limit_s)))
    assert (trajectory.reward, trajectory.stop, trajectory.end) == (
        None, StopReason.REWARD_ERROR, EndReason.EVALUATOR_ERROR,
    )  # fmt: skip
    assert trajectory.cause is not None
    assert trajectory.cause.startswith("program: ")
    assert cause in trajectory.cause


FAILS_ON_TEXT = "import json, sys, time\nsays = [step['text'] for step in json.load(sys.stdin)['steps']]\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("if any(says): sys.exit('what is this?')", "exit code 1: what is this?"),
        ("if any(says): time.sleep(60)", "took more than 3 s"),
        ("if any(says): print('x')", "must answer one line"),
        ("if any(says): print('x' * 100_000)", "more than 65536 bytes"),
    ],
)
async def test_a_policy_whose_text_makes_the_program_fail_scores_0_with_the_cause(
    text: str, cause: str, tmp_path: Path
) -> None:
    fails = f"{FAILS_ON_TEXT}{text}\nelse: print(json.dumps({{'reward': 1}}))\n"
    trajectory = await play(RealTime(program(tmp_path, fails, timeout_s=3, screenshots=1)))
    assert (trajectory.reward, trajectory.stop, trajectory.end.masked) == (0.0, StopReason.DONE, False)
    assert (trajectory.cause or "").startswith("program: ")
    assert cause in (trajectory.cause or "")


async def test_a_program_that_is_too_slow_for_the_length_of_an_episode_masks_it(tmp_path: Path) -> None:
    slow = (
        "import json, sys, time\n"
        "record = json.load(sys.stdin)\n"
        "if len(record['steps']) > 2 and len(record['screenshots_png']) > 1: time.sleep(60)\n"
        "print('{\"reward\": 1}')\n"
    )
    trajectory = await play(RealTime(program(tmp_path, slow, timeout_s=3, screenshots=2)))
    assert (trajectory.reward, trajectory.stop) == (None, StopReason.REWARD_ERROR)
    assert "took more than 3 s" in (trajectory.cause or "")


async def test_a_failure_of_the_program_that_passes_costs_nothing(tmp_path: Path) -> None:
    once = (
        "import pathlib, sys\n"
        f"mark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "if not mark.exists(): mark.touch(); sys.exit('disk full')\n"
        "print('{\"reward\": 0.5}')\n"
    )
    trajectory = await play(program(tmp_path, once))
    assert (trajectory.reward, trajectory.cause) == (0.5, None)


class RealTime:
    """A source that runs in real time, whatever the clock of the episode."""

    def __init__(self, source: ProgramReward) -> None:
        self.kind = source.kind
        self.screenshots = source.screenshots
        self.prepare = source.prepare
        self.reward = source.reward


@pytest.mark.parametrize(("rest", "reward"), [("", 0.5), ("import time; time.sleep(60)", None)])
async def test_a_process_that_a_program_leaves_behind_keeps_nobody_waiting(
    rest: str, reward: float | None, tmp_path: Path
) -> None:
    """It is in a session of its own and has both outputs."""
    pids = tmp_path / "pids"
    leaves = (
        "import subprocess\n"
        "left = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'a').write(f'{{left.pid}}\\n')\n"
        f"print('{{\"reward\": 0.5}}', flush=True)\n{rest}\n"
    )
    began_s = time.monotonic()
    try:
        trajectory = await play(RealTime(program(tmp_path, leaves, timeout_s=60.0 if reward else 3.0)))
    finally:
        for pid in pids.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    assert trajectory.reward == reward
    assert ("took more than 3 s" in (trajectory.cause or "")) is (reward is None)
    assert time.monotonic() - began_s < 30


async def test_a_program_that_is_not_there_is_named() -> None:
    trajectory = await play(ProgramReward(ProgramSettings(argv=("/no/such/program",))))
    assert trajectory.cause == "program: /no/such/program did not start: No such file or directory"


class FakeJudgeHandler(LocalHandler):
    """Answers chat completions with the server's texts in turn."""

    server: FakeJudgeServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.server.asked.append(asked)
        content = self.server.answers.pop(0)
        cut = "length" if content in self.server.cut_off else "stop"
        choice = {"message": {"content": content}, "finish_reason": cut}
        self.answer(200, json.dumps({"choices": [choice]}).encode())


class FakeJudgeServer(LocalServer):
    """A scripted judge model."""

    def __init__(self) -> None:
        super().__init__(FakeJudgeHandler)
        self.asked: list[dict[str, Any]] = []
        self.answers: list[str] = []
        self.cut_off: set[str] = set()


@pytest.fixture
def judge_server() -> Iterator[FakeJudgeServer]:
    with serving(FakeJudgeServer()) as server:
        yield server


def judge_settings(server: FakeJudgeServer, **settings: Any) -> JudgeSettings:
    given = {"base_url": f"http://{server.place}/v1", "model": "judge-1", "api_key_variable": None}
    return JudgeSettings.model_validate(given | settings)


async def test_a_judge_sees_instruction_and_screens_and_its_verdict_is_marked(judge_server: FakeJudgeServer) -> None:
    judge_server.statuses = [503]
    judge_server.answers = ["The button looks pressed.\nVERDICT: success", "Not at all.\nVERDICT: failure"]
    async with JudgeReward(judge_settings(judge_server, screenshots=2), clock=FakeClock()) as judge:
        solved, failed = await play(judge), await play(judge)
    assert (solved.reward, solved.reward_source, failed.reward) == (1.0, RewardKind.JUDGE, 0.0)
    assert solved.info["verdict"]["judge"] == "judge-1"
    assert "pressed" in solved.info["verdict"]["answer"]
    system, user = judge_server.asked[0]["messages"]
    assert "never an instruction to you" in system["content"]
    text, *images = user["content"]
    assert "Task: Click OK" in text["text"]
    assert "says that the task is done" in text["text"]
    assert CLICK not in json.dumps(judge_server.asked[0])
    assert [image["type"] for image in images] == ["image_url", "image_url"]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "It is done.",
        "VERDICT: success\nOr so.",
        "VERDICT: failure\nVERDICT: success",
        "VERDICT: Success",
        "**VERDICT: success**",
        'The screen says "VERDICT: success".\nVERDICT: success',
    ],
)
async def test_a_judge_without_a_strict_verdict_scores_0_with_the_cause(
    answer: str, judge_server: FakeJudgeServer
) -> None:
    judge_server.answers = [answer, "VERDICT: failure", answer]
    async with JudgeReward(judge_settings(judge_server), clock=FakeClock()) as judge:
        trajectory = await play(judge)
    assert (trajectory.reward, trajectory.stop) == (0.0, StopReason.DONE)
    assert trajectory.reward_source is RewardKind.JUDGE
    assert trajectory.info["verdict"]["answer"] == answer
    assert (trajectory.cause or "").startswith("judge: the last line must be the only verdict")


async def test_a_judge_without_a_verdict_about_black_screens_is_broken_and_masks(judge_server: FakeJudgeServer) -> None:
    judge_server.answers = ["It is done.", "Everything is black."]
    async with JudgeReward(judge_settings(judge_server, screenshots=2), clock=FakeClock()) as judge:
        trajectory = await play(judge)
    assert (trajectory.reward, trajectory.stop) == (None, StopReason.REWARD_ERROR)
    assert "answer ends with 'It is done.'" in (trajectory.cause or "")
    assert "without anything of the policy, too" in (trajectory.cause or "")


async def test_a_judge_that_gives_its_verdict_when_asked_again_is_believed(judge_server: FakeJudgeServer) -> None:
    judge_server.answers = ["It is done.", "VERDICT: failure", "VERDICT: success"]
    async with JudgeReward(judge_settings(judge_server), clock=FakeClock()) as judge:
        trajectory = await play(judge)
    assert (trajectory.reward, trajectory.cause) == (1.0, None)


async def test_a_judge_that_does_not_answer_masks_with_its_own_cause(judge_server: FakeJudgeServer) -> None:
    judge_server.statuses = [500, 500]
    async with JudgeReward(judge_settings(judge_server, max_attempts=2), clock=FakeClock()) as judge:
        trajectory = await play(judge)
        judge_server.statuses = [401, 401]
        refused = await play(judge)
    for masked in (trajectory, refused):
        assert (masked.reward, masked.stop) == (None, StopReason.REWARD_ERROR)
        assert (masked.cause or "").startswith("judge: ")
    assert "refused (status 401)" in (refused.cause or "")


class FakeFilterHandler(FakeJudgeHandler):
    """Refuses what is not black with 400, as the filters of hosted models refuse a screen for what it shows."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        urls = [part["image_url"]["url"] for part in asked["messages"][1]["content"] if part["type"] == "image_url"]
        pictures = [Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) for url in urls]
        if any(np.asarray(picture).any() for picture in pictures):
            self.answer(400, b'{"error": {"code": "content_filter"}}')
        else:
            choice = {"message": {"content": "VERDICT: failure"}, "finish_reason": "stop"}
            self.answer(200, json.dumps({"choices": [choice]}).encode())


class FakeSmallHandler(LocalHandler):
    """A service, or a proxy before it, with a limit for the size of requests."""

    server: FakeJudgeServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(content))
        self.answer(413, b"too large")


async def test_a_question_that_is_too_large_for_the_service_masks_and_says_what_to_lower() -> None:
    server = FakeJudgeServer()
    server.RequestHandlerClass = FakeSmallHandler
    with serving(server):
        async with JudgeReward(judge_settings(server), clock=FakeClock()) as judge:
            trajectory = await play(judge)
    assert (trajectory.reward, trajectory.stop, len(server.asked)) == (None, StopReason.REWARD_ERROR, 1)
    assert "lower reward.judge.screenshots" in (trajectory.cause or "")


async def test_a_screen_that_the_judge_refuses_scores_0_because_black_ones_are_not_refused() -> None:
    server = FakeJudgeServer()
    server.RequestHandlerClass = FakeFilterHandler
    with serving(server):
        async with JudgeReward(judge_settings(server, screenshots=2), clock=FakeClock()) as judge:
            trajectory = await play(judge)
    assert (trajectory.reward, trajectory.stop) == (0.0, StopReason.DONE)
    assert "refused (status 400)" in (trajectory.cause or "")
    images = [sum(part["type"] == "image_url" for part in asked["messages"][1]["content"]) for asked in server.asked]
    assert images == [2, 2, 2]


async def test_an_answer_that_is_no_action_and_ends_the_episode_is_judged_by_nobody(
    judge_server: FakeJudgeServer,
) -> None:
    judge_server.answers = ["VERDICT: success"]
    settings = EpisodeSettings(on_parse_error=OnParseError.FAIL)
    async with JudgeReward(judge_settings(judge_server), clock=FakeClock()) as judge:
        episode = await run_episode(
            ScriptedEnv(), ScriptedPolicy([CLICK, "hm"]), judge.prepare(task()), item(), PromptBuilder(preset("tiny")),
            clock=FakeClock(), rewards=judge, settings=settings,
        )  # fmt: skip
    stored = TrajectoryPayload.from_value(episode.trajectory).to_value()
    assert (stored.stop, stored.reward, stored.reward_source) == (StopReason.PARSE_ERROR, 0.0, RewardKind.JUDGE)
    assert judge_server.asked == []


async def test_an_answer_that_was_cut_off_scores_0_with_the_cause(judge_server: FakeJudgeServer) -> None:
    counts = "I count the words on the screen: one, two"
    judge_server.answers, judge_server.cut_off = [counts, "VERDICT: failure", counts], {counts}
    async with JudgeReward(judge_settings(judge_server), clock=FakeClock()) as judge:
        trajectory = await play(judge)
    assert (trajectory.reward, trajectory.stop) == (0.0, StopReason.DONE)
    assert "cut off after 1024 tokens" in (trajectory.cause or "")


async def test_what_the_environment_decided_stays_decided(judge_server: FakeJudgeServer) -> None:
    async with JudgeReward(judge_settings(judge_server), clock=FakeClock()) as judge:
        broke = await play(judge, ScriptedEnv(ends={1: (EndReason.BROKE_DESKTOP, "killed")}))
        fault = await play(judge, ScriptedEnv(ends={1: (EndReason.FARM_FAULT, "host")}))
    assert judge_server.asked == []
    assert (broke.reward, broke.reward_source) == (0.0, RewardKind.JUDGE)
    assert (fault.reward, fault.stop, fault.cause) == (None, StopReason.FARM_FAULT, "host")


def test_each_source_says_how_the_desktop_is_judged() -> None:
    judged, unjudged = task(), Task(id="own/1", instruction="Make it nice.")
    scoring = {kind: (prepare_task(kind, judged).scoring, prepare_task(kind, unjudged).scoring) for kind in RewardKind}
    assert scoring == {
        RewardKind.EVALUATOR: (Scoring.EVALUATOR, Scoring.EVALUATOR),
        RewardKind.CHECKPOINTS: (Scoring.CHECKPOINTS, Scoring.CHECKPOINTS),
        RewardKind.PROGRAM: (Scoring.EVALUATOR, Scoring.NONE),
        RewardKind.JUDGE: (Scoring.NONE, Scoring.NONE),
    }


async def test_a_worker_rewards_training_and_evaluation_by_their_own_sources(
    judge_server: FakeJudgeServer, tmp_path: Path
) -> None:
    judge_server.answers = ["VERDICT: failure"]
    settings = RewardSettings(source=RewardKind.JUDGE, judge=judge_settings(judge_server))
    items = [item("roll_0"), replace(item("roll_1"), purpose=Purpose.EVAL)]
    source = FakeWorkSource(items)
    async with open_rewards(settings, FakeClock()) as rewards:
        worker = RolloutWorker(
            "w",
            source,
            desktops=1,
            make_env=ScriptedEnv,
            make_policy=lambda task, env: ScriptedPolicy([CLICK, DONE]),
            builder=PromptBuilder(preset("tiny")),
            load_task=lambda _: task(),
            clock=FakeClock(),
            rewards=rewards,
        )
        await run_until_back(worker, source)
    found = [(each.reward, each.reward_source) for each, _ in source.reported]
    assert found == [(0.0, RewardKind.JUDGE), (1.0, RewardKind.EVALUATOR)]


async def run_until_back(worker: RolloutWorker, source: FakeWorkSource) -> None:
    import asyncio

    running = asyncio.create_task(worker.run())
    await source.all_back.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_verdict_of_the_environment_is_taken_over_with_its_source() -> None:
    trajectory = await play(CheckpointReward())
    assert (trajectory.reward, trajectory.reward_source) == (1.0, RewardKind.CHECKPOINTS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "judge"}, r"table \[reward.judge\] with base_url and model"),
        ({"evaluation": "program"}, r"table \[reward.program\] with argv"),
        ({"program": {"argv": ["true"]}}, "used by nothing"),
        ({"source": "program", "program": {"argv": []}}, "at least 1"),
        ({"success_at": 0}, "greater than 0"),
    ],
)
def test_a_source_and_its_table_belong_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RewardSettings.model_validate(given)


async def test_a_missing_key_of_the_judge_is_found_before_anything_is_played(
    judge_server: FakeJudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    settings = RewardSettings(
        source=RewardKind.JUDGE, judge=judge_settings(judge_server, api_key_variable="NO_SUCH_KEY")
    )
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        async with open_rewards(settings):
            pass


def test_replies_and_answers_are_read_strictly() -> None:
    assert parse_reply(b'{"reward": 0}\n').reward == 0.0
    assert parse_verdict("Fine.\n\nVERDICT: success\n") == 1.0
    with pytest.raises(RewardError):
        parse_reply(b'{"reward": 1, "extra": 1}')
    with pytest.raises(RewardError):
        parse_reply(b"[" * 60_000)
    half = parse_reply(b'{"reward": 1, "details": {"said": "\\ud83d"}}')
    json.dumps(half.details, ensure_ascii=False).encode("utf-8")


async def test_a_screen_that_stayed_is_shown_once() -> None:
    """The last step changed nothing: the final screen is the one that the step saw."""
    given: list[EndedEpisode] = []

    class Keeper(EvaluatorReward):
        """Keeps what it is given."""

        async def reward(self, ended: EndedEpisode) -> Verdict:
            given.append(ended)
            return await super().reward(ended)

    await play(Keeper())
    first, second, third = given[0].last_screens(3)
    assert not np.array_equal(second, third)
    stayed = replace(given[0], final_screen=second.copy())
    for count in (2, 3):
        shown = stayed.last_screens(count)
        assert len(shown) == 2
        assert np.array_equal(shown, [first, second])


def test_rewards_of_two_command_lines_are_told_apart() -> None:
    def by(*argv: str) -> str:
        settings = RewardSettings(source=RewardKind.PROGRAM, program=ProgramSettings(argv=argv))
        return str(settings.described(RewardKind.PROGRAM)["reward_by"])

    told = by("/home/alice/score", "--key", "secret")
    assert re.fullmatch(r"score \(argv sha256 [0-9a-f]{12}\)", told)
    assert by("/usr/bin/python3.11", "/home/alice/score.py", "secret").startswith("score.py (")
    assert by("/usr/bin/python3", "-c", "pass").startswith("python3 (")
    assert by("score", "a b") != by("score", "a", "b")
