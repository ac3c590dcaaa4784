"""Episodes: policies, resuming, faults and verdicts kept apart, the report."""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from dart_envs.cli import evaluate
from dart_envs.cli.evaluate import check_settings, evaluation_shape, spread, tasks_from_arguments
from dart_envs.cli.main import app
from dart_envs.errors import FarmError, NoCapacityError, QuotaExceededError, SetupError, TaskError
from dart_envs.evaluation import (
    EvaluationEpisode,
    PolicyInput,
    make_policy,
    read_episodes,
    run_episodes,
)
from dart_envs.evaluation.run import append_episode
from dart_envs.farm import AsyncFarmClient
from dart_envs.tasks import load_suite
from dart_envs.tasks.model import Task, parse_task
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType, EndReason, Outcome
from dart_server.wire import DesktopShape, FaultOwner
from dart_server.wire.connection import KEY_NEEDED
from tests.support.local_server import LocalHandler, LocalServer, serving

SHAPE = DesktopShape(resolution=(640, 400))


class Typed(Task):
    """Solved by typing hello; judged by the scripted desktop's own program."""

    async def prepare(self, desktop: Any) -> None:
        await desktop.write_file("/tmp/note", b"x")

    async def evaluate(self, desktop: Any, *, end: EndReason | None = None) -> Outcome:
        if "infeasible" in self.evaluator.functions:
            return Outcome(float(end is EndReason.FAIL))
        reply = await desktop.exec(["typed"])
        return Outcome(float(reply.stdout == "hello"))

    async def oracle(self, desktop: Any, *, step: int = 0) -> list[Action]:
        return [Action(ActionType.TYPE, text="hello"), Action(ActionType.DONE)][step:]


def task(name: str, func: str = "exact_match") -> Typed:
    data: dict[str, Any] = {
        "id": f"toy/{name}/0000",
        "instruction": "Type hello.",
        "suite": "toy",
        "evaluator": {"func": func},
    }
    plain = parse_task(data, name=name)
    return Typed.model_validate(plain.model_dump(by_alias=True))


TASKS = [task("a"), task("b"), task("c", "infeasible")]


async def play(farm: FakeFarm, policy: str, **options: Any) -> dict[str, EvaluationEpisode]:
    given = {"desktops": 2, "shape": SHAPE, **options}
    return {one.task_id: one async for one in run_episodes(farm, TASKS, make_policy(policy), **given)}


async def test_built_in_policies(farm: FakeFarm) -> None:
    solved = {
        name: [episode.reward for _, episode in sorted((await play(farm, name)).items())]
        for name in ("oracle", "noop", "fail")
    }
    assert solved == {"oracle": [1.0, 1.0, 1.0], "noop": [0.0, 0.0, 0.0], "fail": [0.0, 0.0, 1.0]}
    drawn = await play(farm, "random", max_steps=4, seed=3, action_space="discrete-grid")
    assert all(episode.steps <= 4 and episode.reward == 0.0 for episode in drawn.values())
    assert {k: v.steps for k, v in drawn.items()} == {
        k: v.steps for k, v in (await play(farm, "random", max_steps=4, seed=3, action_space="discrete-grid")).items()
    }


def types_hello(seen: PolicyInput) -> Any:
    """A user's policy, in pyautogui text."""
    return "pyautogui.write('hello')" if seen.steps == 0 else "DONE"


class Counts:
    """A user's policy with a memory of its own for each episode; awaited."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, seen: PolicyInput) -> Action:
        self.calls += 1
        assert self.calls == seen.steps + 1
        return Action(ActionType.TYPE, text="hello") if self.calls == 1 else Action(ActionType.DONE)


def raises(seen: PolicyInput) -> Action:
    raise KeyError("no idea")


class CannotBeMade:
    def __init__(self) -> None:
        raise OSError("no weights")


def babbles(seen: PolicyInput) -> str:
    return "import os"


async def test_policies_of_users(farm: FakeFarm) -> None:
    assert (await play(farm, "test_evaluation:types_hello", action_space="pyautogui"))["toy/a/0000"].reward == 1.0
    assert (await play(farm, "test_evaluation:Counts"))["toy/a/0000"].reward == 1.0
    failing = (await play(farm, "test_evaluation:raises"))["toy/a/0000"]
    assert (failing.reward, failing.end) == (None, "policy_error")
    assert "no idea" in (failing.cause or "")
    unmade = (await play(farm, "test_evaluation:CannotBeMade"))["toy/a/0000"]
    assert (unmade.reward, unmade.end, unmade.cause) == (None, "policy_error", "OSError: no weights")
    babble = (await play(farm, "test_evaluation:babbles", action_space="pyautogui"))["toy/a/0000"]
    assert (babble.reward, babble.end, babble.rejected_actions, babble.steps) == (0.0, "rejected_actions", 3, 0)
    for wrong in ("nobody", "no_such_module:x", "test_evaluation:nothing", "test_evaluation:TASKS"):
        with pytest.raises(ValueError, match=r"policy|imported|callable"):
            make_policy(wrong)


async def test_a_fault_of_the_farm_is_tried_again_and_never_a_zero(farm: FakeFarm) -> None:
    killed: list[str] = []

    def kill(seen: PolicyInput) -> Any:
        living = [lease for lease in farm.leases if not lease.lost]
        if len(killed) < 2:
            killed.append(living[-1].lease_id)
            living[-1].kill(FaultOwner.HOST, "chaos")
        return types_hello(seen)

    import test_evaluation

    test_evaluation.kill = kill  # type: ignore[attr-defined]
    episodes = await play(farm, "test_evaluation:kill", action_space="pyautogui", desktops=1)
    assert episodes["toy/a/0000"].reward == 1.0


def test_episodes_are_kept_and_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    assert read_episodes(path) == {}
    good = EvaluationEpisode("t/a/0", "t", False, 1.0, "done", 2, 0, 0.5)
    append_episode(path, good)
    append_episode(path, EvaluationEpisode("t/b/0", "t", False, None, "farm_fault", 0, 0, 0.5, "x"))
    assert read_episodes(path) == {"t/a/0": good}
    odd = EvaluationEpisode("t/c/0", "t", False, 0.0, "done", 2, 0, 0.5, "half \ud83d, and a line\u2028of its own")
    append_episode(path, odd)
    with path.open("a") as file:
        file.write('{"task_id": "t/d/0", "doma')  # the disk was full
    assert read_episodes(path) == {"t/a/0": good, "t/c/0": odd}
    append_episode(path, replace(good, task_id="t/e/0"))
    assert list(read_episodes(path)) == ["t/a/0", "t/c/0", "t/e/0"]
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1 is not an episode"):
        read_episodes(path)


def test_a_folder_of_other_settings_is_not_mixed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    check_settings(out / "settings.json", {"policy": "noop"})
    (out / "settings.json").write_text('{"policy": "oracle", "seed": 0}')
    check_settings(out / "settings.json", {"policy": "oracle", "seed": 0})
    with pytest.raises(ValueError, match=r"policy oracle \(now noop\); choose another --out"):
        check_settings(out / "settings.json", {"policy": "noop", "seed": 0})
    (out / "settings.json").write_text("[")
    with pytest.raises(ValueError, match="choose another --out"):
        check_settings(out / "settings.json", {})
    (out / "settings.json").write_text('{"policy": "oracle"}')
    refused = CliRunner().invoke(app, ["eval", "basics", "--policy", "noop", "--out", str(out)])
    assert refused.exit_code == 2
    assert "choose another --out" in refused.output


def _farm_of(farm: FakeFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's tasks and farm are this test's."""

    class Connected:
        async def __aenter__(self) -> FakeFarm:
            return farm

        async def __aexit__(self, *_exc: object) -> None:
            return

    async def connect() -> Connected:
        return Connected()

    async def good() -> None:
        return

    monkeypatch.setattr(AsyncFarmClient, "connect", connect)
    monkeypatch.setattr(evaluate, "check_farm", good)
    monkeypatch.setattr(evaluate, "tasks_from_arguments", lambda *_targets: TASKS)
    monkeypatch.setattr(evaluate, "evaluation_shape", lambda task, image, resolution: SHAPE)


async def stops_once(seen: PolicyInput) -> Action:
    """A policy that takes its time, under which Ctrl-C is pressed in the third episode, once."""
    stops.append(seen.steps)
    await asyncio.sleep(0.02)
    if len(stops) == 3:
        signal.raise_signal(signal.SIGINT)
    return Action(ActionType.DONE)


stops: list[int] = []


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Ctrl-C is heard, which shells turn off for what they start in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_what_ctrl_c_stopped_goes_on_and_all_step_budgets_are_one_report(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _farm_of(farm, monkeypatch)
    out = tmp_path / "out"
    command = [
        "eval",
        "toy",
        "--policy",
        "test_evaluation:stops_once",
        "-p",
        "1",
        "--max-steps",
        "2,4",
        "--out",
        str(out),
    ]
    stops.clear()
    stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 130, stopped.output
    assert "the same command goes on from there" in stopped.output
    done = len((out / "steps-2" / "episodes.jsonl").read_text().splitlines())
    assert done < len(TASKS)
    assert "tasks not run yet" in (out / "report.html").read_text()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert f"{len(TASKS)} tasks, {done} of them done already" in again.output
    report = json.loads((out / "report.json").read_text())
    assert [(one["max_steps"], one["rows"][-1]["episodes"]) for one in report["budgets"]] == [(2, 3), (4, 3)]
    assert (out / "steps-4" / "report.html").exists()
    assert all(lease.released for lease in farm.leases)


def test_each_task_is_played_on_the_desktop_that_it_is_for(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _farm_of(farm, monkeypatch)
    office = DesktopShape(image="desktop", resolution=(1280, 800))
    shapes = {TASKS[0].id: SHAPE, TASKS[1].id: office, TASKS[2].id: SHAPE}
    monkeypatch.setattr(evaluate, "evaluation_shape", lambda task, image, resolution: shapes[task.id])
    done = CliRunner().invoke(app, ["eval", "toy", "-p", "1", "--policy", "noop", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert [lease.shape for lease in farm.leases] == [SHAPE, office]


def test_a_command_whose_episodes_all_came_to_nothing_fails(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _farm_of(farm, monkeypatch)

    async def lacks(self: Typed, desktop: Any) -> None:
        raise SetupError("no editor here")

    monkeypatch.setattr(Typed, "prepare", lacks)
    result = CliRunner().invoke(app, ["eval", "toy", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "SetupError: no editor here" in result.output
    assert "no episode came to a verdict" in result.output
    assert (tmp_path / "report.html").exists()


def test_a_policy_in_the_current_folder_is_found_and_its_exceptions_are_errors(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _farm_of(farm, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    policy = tmp_path / "my_agent_of_this_test.py"
    policy.write_text("def act(seen):\n    raise KeyError('no idea')\n")
    command = ["eval", "toy", "--out", "out", "--policy", "my_agent_of_this_test:act"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    assert "policy errors" in result.output
    assert f"the policy raised in {len(TASKS)} episodes (KeyError: 'no idea')" in result.output
    assert "ended by an exception of the policy" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rows"][-1]["errors"] == len(TASKS)
    monkeypatch.delitem(sys.modules, "my_agent_of_this_test")
    policy.write_text(
        "from dart_envs.types import Action, ActionType\ndef act(seen):\n    return Action(ActionType.DONE)\n"
    )
    importlib.invalidate_caches()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert "0 of them done already" in again.output


def test_the_choice_of_tasks() -> None:
    chosen = spread(tasks_from_arguments(["basics/press_nth", "basics/press_nth/0000"], "validation"), 5)
    assert len({one.id for one in chosen}) == 5
    assert tasks_from_arguments(["basics/press_nth/0000"], "test")[0].id == "basics/press_nth/0000"


def test_a_task_file_that_is_named_twice_is_played_once_and_an_id_belongs_to_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps({"id": "one", "instruction": "Do it.", "evaluator": {"func": "infeasible"}})
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "one.json").write_text(text)
    assert len(tasks_from_arguments(["a", "./a/one.json", str(tmp_path / "a")], None)) == 1
    with pytest.raises(TaskError, match="2 of the task files have the id one"):
        tasks_from_arguments(["a", "b"], None)


def test_osworlds_tasks_are_tried_on_osworlds_screen(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"id": "one", "instruction": "Do it.", "evaluator": {"func": "infeasible"}}))
    (theirs,) = tasks_from_arguments([str(path)], None)
    (ours,) = tasks_from_arguments(["basics/press_nth/0000"], None)
    assert evaluation_shape(theirs, None, None) == DesktopShape(image="desktop", resolution=(1920, 1080))
    assert evaluation_shape(ours, None, None) == load_suite("basics").shape
    assert evaluation_shape(theirs, "mine", "640x400") == DesktopShape(image="mine", resolution=(640, 400))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing-there"], "no suite"),
        (["basics", "--policy", "nobody"], "no policy 'nobody'"),
        (["basics", "--action-space", "mouse"], "no action space"),
        (["basics", "--resolution", "big"], "1280x800"),
        (["basics", "--split", "dev"], "no split"),
        (["basics", "--max-steps", "15,many"], "number from 1 to 500"),
        (["basics", "--policy", "openai"], "--base-url and --model"),
        (["basics", "--policy", "openai", "--base-url", "http://x/v1", "--model", "m"], "answers in text"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["eval", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert sentence in result.output
    assert not (tmp_path / "out").exists()


def _eval_at(url: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setenv("DART_FARM_URL", url)
    return CliRunner().invoke(
        app, ["eval", "basics/press_nth", "--policy", "noop", "-n", "1", "--out", str(out / "out")]
    )


@pytest.mark.parametrize("url", ["farm.example:8700", "http://127.0.0.1:many", "unix://farm.sock"])
def test_what_is_no_address_of_a_farm_is_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    result = _eval_at(url, tmp_path, monkeypatch)
    assert result.exit_code == 2, result.output
    assert f"dart-envs: {url!r} is not the address of a farm. Use http://HOST:PORT" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_certificate_file_that_is_not_there_is_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/farm.pem")
    result = _eval_at("https://127.0.0.1:9", tmp_path, monkeypatch)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("dart-envs: SSL_CERT_FILE=/nowhere/farm.pem does not exist. ")


class FakeFarmHandler(LocalHandler):
    """As a farm under TLS answers plain HTTP, or one that does not know the key; by the first part of the path."""

    refusals: ClassVar[dict[str, tuple[int, dict[str, str]]]] = {
        "plain": (400, {"error": "invalid", "detail": "this port speaks TLS", "hint": "Use https://."}),
        "keys": (401, {"error": "unauthenticated", "detail": KEY_NEEDED}),
    }

    def do_GET(self) -> None:
        kind, _, route = self.path.removeprefix("/").partition("/")
        if kind == "keys" and route == "healthz":
            self.answer(200, b"{}")
        else:
            status, body = self.refusals[kind]
            self.answer(status, json.dumps(body | {"request_id": "r"}).encode())


@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [("plain", 2, "this port speaks TLS. Use https://."), ("keys", 1, "DART_API_KEY is not valid at http://")],
)
def test_the_farm_is_asked_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int, sentence: str
) -> None:
    monkeypatch.setenv("DART_API_KEY", "dart_wrong")
    with serving(LocalServer(FakeFarmHandler)) as server:
        result = _eval_at(f"http://{server.place}/{kind}", tmp_path, monkeypatch)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith(f"dart-envs: {sentence}")
    assert (result.stdout, (tmp_path / "out").exists()) == ("", False)


def test_a_policys_module_that_raises_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raises_at_import.py").write_text("1 / 0\n")
    (tmp_path / "is_no_python.py").write_text("def (\n")
    for module, words in (("raises_at_import", "ZeroDivisionError: division by zero"), ("is_no_python", "SyntaxError")):
        with pytest.raises(ValueError, match=f"{module}:act cannot be imported: {words}"):
            make_policy(f"{module}:act")


def _osworld_file(folder: Path, domain: str, task_id: str, **fields: Any) -> None:
    content = {"id": task_id, "instruction": "Do it.", "evaluator": {"func": "infeasible"}, **fields}
    (folder / domain).mkdir(parents=True, exist_ok=True)
    (folder / domain / f"{task_id}.json").write_text(json.dumps(content))


def test_a_folder_of_osworlds_tasks_starts_and_says_what_cannot_run(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = evaluate.tasks_from_arguments
    _farm_of(farm, monkeypatch)
    monkeypatch.setattr(evaluate, "tasks_from_arguments", choose)
    monkeypatch.setenv("DART_FARM_URL", "http://127.0.0.1:9")
    examples, out = tmp_path / "examples", tmp_path / "out"
    _osworld_file(examples, "os", "28cc3b7e-run")
    _osworld_file(examples, "os", "5ea617a3-other")
    drive = {"type": "googledrive", "parameters": {"settings_file": "x", "operations": [], "args": []}}
    _osworld_file(examples, "chrome", "drive", config=[drive])
    tabs = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://www.drugs.com/"]}}
    _osworld_file(examples, "chrome", "web", config=[tabs])
    local = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["file:///home/user/a.html"]}}
    _osworld_file(examples, "chrome", "local", config=[local])
    judged = {"func": "exact_match", "result": {"type": "vm_command_line", "command": ["x"]}}
    judged["expected"] = {"type": "rule", "rules": {"expected": "x"}}
    _osworld_file(examples, "os", "unsolved", evaluator=judged)
    file = {"url": "http://127.0.0.1:9/a.png", "path": "a.png"}
    _osworld_file(examples, "chrome", "files", config=[{"type": "download", "parameters": {"files": [file]}}])
    result = CliRunner().invoke(
        app, ["eval", str(examples), "--out", str(out), "--only", "os/28cc", "--only", "chrome"]
    )
    assert "3 of 5 tasks cannot run here" in result.output
    refused = json.loads((out / "refused.json").read_text())
    assert "http://127.0.0.1:9 cannot be reached" in refused.pop("files")
    page = (out / "report.html").read_text()
    assert "3 tasks cannot run here" in page
    assert "needs the live web (https://www.drugs.com/)" in page
    assert refused == {
        "drive": "cannot run: no setup step 'googledrive'",
        "web": "needs the live web (https://www.drugs.com/)",
    }
    assert "28cc3b7e-run" in (out / "episodes.jsonl").read_text()
    none = CliRunner().invoke(app, ["eval", str(examples), "--out", str(tmp_path / "none"), "--only", "unsolved"])
    assert none.exit_code == 2
    assert "None of the 1 tasks can run here: has no oracle" in none.stderr
    unknown = CliRunner().invoke(app, ["eval", str(examples), "--out", str(tmp_path / "x"), "--only", "os/ffff"])
    assert unknown.exit_code == 2
    assert "--only os/ffff: none of the 7 tasks" in unknown.stderr


def test_a_file_of_a_folder_that_is_no_task_is_left_out(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = evaluate.tasks_from_arguments
    _farm_of(farm, monkeypatch)
    monkeypatch.setattr(evaluate, "tasks_from_arguments", choose)
    _osworld_file(tmp_path / "tasks", "os", "28cc3b7e")
    (tmp_path / "tasks" / "notes.json").write_text("[]")
    command = ["eval", str(tmp_path / "tasks"), "--out", str(tmp_path / "out"), "--policy", "fail", "--image", "basic"]
    done = CliRunner().invoke(app, command)
    assert "1 of 2 tasks cannot run here" in done.output
    assert "is no task" in done.output
    assert "1 tasks, 0 of them done already" in done.output
    alone = CliRunner().invoke(app, ["eval", str(tmp_path / "tasks" / "notes.json"), "--out", str(tmp_path / "other")])
    assert alone.exit_code == 2


@pytest.mark.parametrize(
    "refusal",
    [
        NoCapacityError("The claim was not granted in time.", code="no_capacity"),
        QuotaExceededError("This key still holds 1 of the 1 desktops that it may.", code="quota_exceeded"),
    ],
)
async def test_a_farm_with_fewer_desktops_is_enough(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch, refusal: FarmError
) -> None:
    lease, given = farm.lease, 0
    all_claimed = asyncio.Event()

    async def one_desktop(*args: Any, **options: Any) -> Any:
        nonlocal given
        given += 1
        refused = given in (2, 3)
        if given == 3:
            all_claimed.set()
        await all_claimed.wait()  # every worker claims before the first one plays
        if refused:
            raise refusal
        return await lease(*args, **options)

    monkeypatch.setattr(farm, "lease", one_desktop)
    episodes = run_episodes(farm, list(TASKS), make_policy("noop"), desktops=3, shape=SHAPE)
    assert len([one async for one in episodes]) == len(TASKS)
    assert given in (3, 4), "a claim that waited in vain is not made again by the same reset"


async def test_a_farm_without_any_desktop_is_an_error(farm: FakeFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*args: Any, **options: Any) -> Any:
        raise NoCapacityError("The claim was not granted in time.", code="no_capacity")

    monkeypatch.setattr(farm, "lease", full)
    episodes = run_episodes(farm, list(TASKS), make_policy("noop"), desktops=3, shape=SHAPE)
    with pytest.raises(NoCapacityError):
        _ = [one async for one in episodes]
