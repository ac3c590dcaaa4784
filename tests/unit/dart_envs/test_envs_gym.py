"""`DartOSWorld-v0`: Gymnasium's contract, lazy leases, clean ends."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from toy_task import ToyTask

import dart_envs
from dart_envs.envs.env import DartOSWorldEnv
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.errors import ActionError, DartEnvError, EvaluatorError, FarmError, TaskError
from dart_envs.farm import live
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType
from dart_server.wire import FaultOwner

SMALL = (80, 64)
DONE = Action(ActionType.DONE)


@pytest.fixture
def env(farm: FakeFarm) -> Iterator[DartOSWorldEnv]:
    env = DartOSWorldEnv(ToyTask(), resolution=SMALL, farm=farm, render_mode="rgb_array")
    yield env
    env.close()


def _make(farm: FakeFarm, **options: Any) -> gym.Env[Any, Any]:
    return gym.make("DartOSWorld-v0", task=ToyTask(max_steps=3), resolution=SMALL, farm=farm, **options)


def test_check_env_passes(farm: FakeFarm) -> None:
    made = _make(farm, render_mode="rgb_array")
    check_env(made.unwrapped)
    made.close()
    assert all(lease.released for lease in farm.leases)


@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes.*")
def test_check_env_passes_as_a_deterministic_environment(farm: FakeFarm) -> None:
    check_env(DartOSWorldEnv(ToyTask(max_steps=3), resolution=SMALL, farm=farm))


def test_human_rendering_tells_the_address_once_per_desktop_and_opens_it_where_it_can(
    farm: FakeFarm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _make(farm, render_mode="human") as env:
        env.reset()
        assert env.render() is None
        env.reset()
        (line,) = capsys.readouterr().out.splitlines()
        assert line.endswith(f"http://scripted.invalid/dashboard/#/leases/{farm.leases[0].lease_id}?ticket=scripted")
        farm.leases[0].kill(FaultOwner.HOST, "chaos")
        env.step(DONE)
        env.reset()
        assert farm.leases[1].lease_id in capsys.readouterr().out
    opened: list[str] = []
    monkeypatch.setattr(live, "has_browser", lambda: True)
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    with _make(farm, render_mode="human") as env:
        env.reset()
    assert opened[0].endswith("?ticket=scripted")
    assert "ticket" not in capsys.readouterr().out, "what opens by itself leaves no log-in on the terminal"


def test_an_episode_through_gym_make(farm: FakeFarm) -> None:
    with _make(farm) as env:
        observation, info = env.reset(seed=3)
        assert observation["screenshot"].shape == (64, 80, 3)
        assert observation["instruction"] == "Type hello."
        assert info["seed"] == 3
        for action in env.unwrapped.oracle():  # type: ignore[attr-defined]
            _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert info["end"] == "done"
        assert json.loads(json.dumps(info)) == info
    assert farm.leases[0].released


def test_the_package_prefix_imports(farm: FakeFarm) -> None:
    with gym.make("dart_envs:DartOSWorld-v0", task=ToyTask(), resolution=SMALL, farm=farm) as env:
        assert isinstance(env.unwrapped, DartOSWorldEnv)


def test_the_spec_is_honest() -> None:
    spec = gym.spec("DartOSWorld-v0")
    assert spec.nondeterministic
    assert spec.max_episode_steps is None
    assert spec.kwargs == {}
    dart_envs.register_envs()
    spec.to_json()


def test_bad_arguments_are_refused_before_anything_is_leased(farm: FakeFarm) -> None:
    with pytest.raises(ValueError, match="rgb_array or human"):
        DartOSWorldEnv(ToyTask(), farm=farm, render_mode="ansi")
    with pytest.raises(ValueError, match="64×64"):
        DartOSWorldEnv(ToyTask(), farm=farm, resolution=(10, 10))
    with pytest.raises(TaskError, match="empty"):
        DartOSWorldEnv([], farm=farm)
    with pytest.raises(TaskError, match="no-such-suite"):
        DartOSWorldEnv("no-such-suite", farm=farm)
    with pytest.raises(TaskError, match="suite/family/variation"):
        DartOSWorldEnv("a/b/c/d", farm=farm)
    with pytest.raises(TaskError, match=r"Did you mean press_button\?"):
        DartOSWorldEnv("press_buton", farm=farm)
    assert farm.leases == []


@pytest.mark.parametrize("make", [DartOSWorldEnv, DartVectorEnv])
@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("task", 3, "^3 is no task: it has no id"),
        ("task", [ToyTask(), 3], "^3 is no task: it has no id"),
        (
            "task",
            {"id": "mine", "instruction": "Do."},
            "^task mine: it has no evaluator, .*: add the field `evaluator`",
        ),
        ("max_steps", 0, "^max_steps is a whole number from 1 on"),
        ("max_steps", "3", "^max_steps is a whole number from 1 on"),
        ("resolution", 1920, "^resolution is .width, height. in pixels, .* not 1920.$"),
        ("resolution", (640, 400, 3), "^resolution is .width, height. in pixels"),
        ("image", "../x", "^image: string should match pattern .* not '../x'.$"),
        ("font_size", 1000, "^font_size: input should be less than or equal to 48, not 1000.$"),
        ("settle", {"quiet": 3}, "^settle.quiet: extra inputs are not permitted, not 3.$"),
        ("evaluate_on", "fork", "^evaluate_on is desktop or copy, not 'fork'.$"),
        ("scorer", "mine", "auto, builtin or osworld, not 'mine'"),
        ("farm", 3, "^farm is the URL of a farm, .* not 3.$"),
        ("farm", "htp://x", "'htp://x' is not the address of a farm"),
    ],
)
def test_a_wrong_argument_is_one_sentence_that_names_it(
    farm: FakeFarm, make: type[Any], argument: str, value: Any, sentence: str
) -> None:
    with pytest.raises((ValueError, DartEnvError), match=sentence) as raised:
        make(**{"task": ToyTask(), "resolution": SMALL, "farm": farm, argument: value})
    assert "\n" not in str(raised.value)
    assert farm.leases == []


@pytest.mark.parametrize("make", [DartOSWorldEnv, DartVectorEnv])
def test_an_option_of_reset_is_not_passed_over(farm: FakeFarm, make: type[Any]) -> None:
    with closing(make(task=ToyTask(), resolution=SMALL, farm=farm)) as env:
        with pytest.raises(ValueError, match=r"^reset has no option taks; its options are task"):
            env.reset(options={"taks": ToyTask()})
        assert farm.leases == []
        env.reset(options={})


def test_a_sampler_picks_the_tasks_and_the_seed_its_picks(farm: FakeFarm) -> None:
    class Curriculum:
        image = "desktop"

        def __init__(self) -> None:
            self.level = 0

        def __call__(self, rng: np.random.Generator) -> ToyTask:
            return ToyTask(id=f"toy/{self.level}/{rng.integers(1000):04d}")

    sampler = Curriculum()
    env = DartOSWorldEnv(sampler, resolution=SMALL, farm=farm)
    assert env.shape.image == "desktop"
    drawn = [env.reset(seed=5)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(3)]
    assert drawn == [env.reset(seed=5)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(3)]
    assert len(set(drawn)) > 2
    sampler.level = 1
    assert env.reset()[1]["task_id"].startswith("toy/1/")
    env.close()


def test_what_a_sampler_gets_wrong_is_an_error_about_tasks(farm: FakeFarm) -> None:
    def fails(_rng: np.random.Generator) -> ToyTask:
        raise IndexError("no level 7")

    for sampler, sentence in ((fails, "IndexError: no level 7"), (lambda _rng: 3, "3 is no task")):
        with pytest.raises(TaskError, match=sentence):
            DartOSWorldEnv(sampler, resolution=SMALL, farm=farm).reset()  # type: ignore[arg-type]
    assert farm.leases == []


def test_tasks_of_different_images_need_one_that_is_named(farm: FakeFarm) -> None:
    mixed = ["basics/press_nth/0000", "basics/press_nth/0001", "office/calc_enter/0001"]
    with pytest.raises(TaskError, match=r"different images \(basic, desktop\)"):
        DartOSWorldEnv(mixed, farm=farm)
    assert DartOSWorldEnv(mixed, farm=farm, image="desktop").shape.image == "desktop"
    assert DartOSWorldEnv(mixed[:2], farm=farm).shape.image == "basic"


def test_a_task_may_be_the_content_of_its_file_or_a_folder_of_files(tmp_path: Path, farm: FakeFarm) -> None:
    content = {"id": "mine", "instruction": "Do it.", "evaluator": {"func": "infeasible"}}
    env = DartOSWorldEnv(content, resolution=(640, 400), farm=farm)
    assert env.shape.image == "desktop", "OSWorld's task files are for it"
    assert env.reset()[1]["task_id"] == "mine"
    assert env.step(Action(ActionType.FAIL))[1] == 1.0
    env.close()
    (tmp_path / "os").mkdir()
    for name in ("a", "b"):
        (tmp_path / "os" / f"{name}.json").write_text(json.dumps(content | {"id": name}))
    env = DartOSWorldEnv(str(tmp_path), resolution=(640, 400), farm=farm)
    assert {env.reset(seed=seed)[1]["task_id"] for seed in range(8)} == {"a", "b"}
    env.close()
    (tmp_path / "os" / "c.json").write_text("{}")
    with pytest.raises(TaskError, match=r"c\.json: field 'id'"):
        DartOSWorldEnv(str(tmp_path), farm=farm)


def test_an_invalid_action_raises_and_the_episode_goes_on(env: DartOSWorldEnv) -> None:
    with pytest.raises(DartEnvError, match="reset"):
        env.step(DONE)
    env.reset()
    with pytest.raises(ActionError, match="between 0 and 79"):
        env.step({"type": "click", "x": 80, "y": 0})
    assert env.step(DONE)[2]


def test_tasks_are_drawn_by_the_seed_or_by_name(farm: FakeFarm) -> None:
    tasks = [ToyTask(word=word, id=f"toy/{word}/0000") for word in ("a", "b", "c", "d", "e")]
    env = DartOSWorldEnv(tasks, resolution=SMALL, farm=farm)
    drawn = [env.reset(seed=5)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(8)]
    again = [env.reset(seed=5)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(8)]
    assert drawn == again
    assert len(set(drawn)) > 2
    options = {"task": tasks[3]}
    assert env.reset(options=options)[1]["task_id"] == "toy/d/0000"
    assert options == {"task": tasks[3]}
    env.close()


def test_render_repeats_the_last_frame_and_takes_no_other(env: DartOSWorldEnv, farm: FakeFarm) -> None:
    blank = env.render()
    assert blank is not None
    assert blank.shape == (64, 80, 3)
    observation, _ = env.reset()
    calls = len(farm.leases[0].calls)
    first, second = env.render(), env.render()
    assert first is not None
    assert second is not None
    assert np.array_equal(first, observation["screenshot"])
    assert not np.shares_memory(first, second)
    assert len(farm.leases[0].calls) == calls


def test_a_farm_fault_truncates_and_the_env_goes_on(env: DartOSWorldEnv, farm: FakeFarm) -> None:
    env.reset()
    farm.leases[0].kill(FaultOwner.HOST, "killed_from_outside")
    _, reward, terminated, truncated, info = env.step({"type": "click", "x": 1, "y": 1})
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["end"] == "farm_fault"
    assert info["masked"]
    env.reset()
    assert env.step(DONE)[2]


def test_close_is_idempotent_and_reset_leases_again(env: DartOSWorldEnv, farm: FakeFarm) -> None:
    env.reset()
    env.close()
    env.close()
    assert farm.leases[0].released
    env.reset()
    assert len(farm.leases) == 2


def test_a_forgotten_env_gives_its_desktop_back(farm: FakeFarm) -> None:
    env = DartOSWorldEnv(ToyTask(), resolution=SMALL, farm=farm)
    env.reset()
    del env
    gc.collect()
    assert farm.leases[0].released


def test_envs_share_one_loop_thread(farm: FakeFarm) -> None:
    envs = [DartOSWorldEnv(ToyTask(), resolution=SMALL, farm=farm) for _ in range(3)]
    for env in envs:
        env.reset()
    assert sum(thread.name == "dart-loop" for thread in threading.enumerate()) == 1
    for env in envs:
        env.close()


def test_timings_are_beside_info(env: DartOSWorldEnv) -> None:
    assert env.timings_s == {}
    _, info = env.reset()
    assert set(env.timings_s) == {"lease", "prepare", "act"}
    assert not any("time" in name or name.endswith("_s") for name in info)


def test_importing_is_light() -> None:
    heavy = ["torch", "vllm", "fastapi", "sqlalchemy", "transformers", "uvicorn"]
    light = "dart_envs, dart_envs.envs.env, dart_envs.testing.fake_farm, dart_envs.testing.conformance"
    code = f"import {light}, sys; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_verdict_can_be_asked_for_at_any_step(env: DartOSWorldEnv, farm: FakeFarm) -> None:
    with pytest.raises(DartEnvError, match="reset"):
        env.evaluate()
    env.reset()
    assert env.evaluate().reward == 0.0
    env.step(Action(ActionType.TYPE, text="hello"))
    before = copy.deepcopy(farm.leases[0].state)
    assert env.evaluate().reward == 1.0
    assert farm.leases[0].state == before
    assert [lease.released for lease in farm.leases] == [False, True, True]
    assert env.step(DONE)[1:3] == (1.0, True)


def test_an_evaluator_that_raises_is_told_and_the_episode_goes_on(farm: FakeFarm) -> None:
    class Raises(ToyTask):
        async def evaluate(self, desktop: Any, *, end: Any = None) -> Any:
            raise IndexError("nothing there")

    env = DartOSWorldEnv(Raises(), resolution=SMALL, farm=farm)
    env.reset()
    with pytest.raises(EvaluatorError, match="IndexError: nothing there"):
        env.evaluate()
    assert farm.leases[1].released
    assert not env.step({"type": "click", "x": 1, "y": 1})[2]
    farm.max_desktops = 1
    with pytest.raises(FarmError, match="All desktops"):
        env.evaluate()
    env.close()
