"""The vector env's three autoreset modes, deadlines and tags, and one test for each fault known of Gymnasium's AsyncVectorEnv."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from toy_task import ToyTask

from dart_envs.action_spaces.normalized import SIZE
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.errors import DartEnvError, DesktopFailedError, FarmUnreachableError
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_envs.types import Action, ActionType, Desktop, Frame, Outcome
from dart_server.wire import A11yElement, ButtonEvent, FaultOwner, InputEvent, SettleSpec

SMALL = (80, 64)
CLICK = Action(ActionType.CLICK, x=1, y=1)
DONE = Action(ActionType.DONE)


@contextmanager
def vector_env(farm: FakeFarm, num_envs: int = 3, **options: Any) -> Iterator[DartVectorEnv]:
    task = options.pop("task", ToyTask())
    envs = DartVectorEnv(num_envs, task, resolution=SMALL, farm=farm, **options)
    try:
        yield envs
    finally:
        envs.close()


def slow(lease: FakeLease, wait: Callable[[], Any]) -> None:
    """Make every step of a lease wait before it answers."""
    inner = lease.step

    async def held(events: list[InputEvent], settle: SettleSpec | None = None, **options: Any) -> Frame:
        await wait()
        return await inner(events, settle, **options)

    lease.step = held  # type: ignore[method-assign]


def hang(lease: FakeLease) -> None:
    slow(lease, asyncio.Event().wait)


def index_of(envs: DartVectorEnv, lease: FakeLease) -> int:
    """Which desktop of a vector has this lease."""
    return next(index for index, slot in enumerate(envs._sub_envs) if slot._core.lease is lease)


def await_reset_ahead(envs: DartVectorEnv, index: int) -> None:
    """Wait until the reset that began at the end of an episode has ended."""
    ahead = envs._sub_envs[index]._pending_reset
    assert ahead is not None

    async def ended() -> None:
        await asyncio.wait([ahead])

    envs._loop.run(ended())


class SlowlyJudged(ToyTask):
    """A task whose evaluator takes longer than a step may."""

    async def evaluate(self, desktop: Desktop, **options: Any) -> Outcome:
        await asyncio.sleep(0.4)
        return await super().evaluate(desktop, **options)


class TestModes:
    @pytest.mark.parametrize("given", [AutoresetMode.SAME_STEP, "SAME_STEP", AutoresetMode.SAME_STEP.value])
    def test_same_step_hands_out_the_next_episode_with_the_last_end(self, farm: FakeFarm, given: Any) -> None:
        with vector_env(farm, autoreset_mode=given) as envs:
            assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
            first, _ = envs.reset()
            typed, *_ = envs.step([Action(ActionType.TYPE, text="hello"), CLICK, CLICK])
            observations, rewards, terminated, _, infos = envs.step([DONE, CLICK, DONE])
            assert rewards.tolist() == [1.0, 0.0, 0.0]
            assert terminated.tolist() == [True, False, True]
            assert infos["_final_obs"].tolist() == [True, False, True]
            assert (infos["final_obs"][0]["screenshot"] == typed["screenshot"][0]).all()
            assert (observations["screenshot"][0] == first["screenshot"][0]).all()
            assert infos["final_info"]["end"][0] == "done"
            assert infos["episode_number"].tolist() == [2, 1, 2]
            assert observations in envs.observation_space

    def test_disabled_waits_for_a_masked_reset(self, farm: FakeFarm) -> None:
        with vector_env(farm, autoreset_mode="DISABLED") as envs:
            envs.reset()
            _, _, terminated, *_ = envs.step([DONE, CLICK, CLICK])
            with pytest.raises(ResetNeeded, match=r"\[0\]"):
                envs.step([CLICK] * 3)
            _, infos = envs.reset(options={"reset_mask": terminated})
            assert infos["episode_number"].tolist() == [2, 1, 1]
            assert not envs.step([CLICK] * 3)[2].any()

    def test_next_step_begins_the_reset_at_the_end(self, farm: FakeFarm) -> None:
        with vector_env(farm, 1) as envs:
            envs.reset(seed=3)
            envs.step([DONE])
            await_reset_ahead(envs, 0)
            *_, terminated, _, infos = envs.step([DONE])
            assert (terminated.tolist(), infos["episode_number"].tolist()) == ([False], [2])
            *_, infos = envs.step([CLICK])
            assert (infos["episode_number"].tolist(), infos["steps"].tolist()) == ([2], [1])

    def test_an_ignored_action_holds_nothing(self, farm: FakeFarm) -> None:
        press, done = np.zeros((2, SIZE))
        press[2], done[-1] = 1.0, 1.0
        with vector_env(farm, 1, action_space="normalized") as envs:
            envs.reset()
            envs.step([done])
            await_reset_ahead(envs, 0)
            envs.step([press])
            assert envs.step([press])[4]["steps"].tolist() == [1]
            assert farm.leases[0].state.events[-1] == ButtonEvent(type="down", button=1)

    def test_an_ignored_action_is_not_checked(self, farm: FakeFarm) -> None:
        with vector_env(farm, 2) as envs:
            envs.reset()
            envs.step([DONE, CLICK])
            *_, infos = envs.step([Action(ActionType.CLICK, x=SMALL[0], y=0), CLICK])
            assert infos["episode_number"].tolist() == [2, 1]

    @pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
    def test_the_same_seed_gives_the_same_tasks(self, farm: FakeFarm, mode: str) -> None:
        tasks = [ToyTask(word=word, id=f"toy/{word}/0000") for word in "abcdefgh"]

        def drawn() -> list[str]:
            with vector_env(farm, 1, task=tasks, autoreset_mode=mode) as envs:
                names = [envs.reset(seed=11)[1]["task_id"][0]]
                for _ in range(12):
                    names.append(envs.step([DONE])[4]["task_id"][0])
                return names

        farm.max_desktops = 100
        assert drawn() == drawn()

    def test_an_unknown_mode_is_refused(self, farm: FakeFarm) -> None:
        with pytest.raises(ValueError, match=r"NEXT_STEP.*SAME_STEP.*DISABLED"):
            DartVectorEnv(1, ToyTask(), resolution=SMALL, farm=farm, autoreset_mode="often")
        with pytest.raises(ValueError, match="above 0"):
            DartVectorEnv(1, ToyTask(), resolution=SMALL, farm=farm, step_deadline_s=0)


class TestDeadlines:
    def test_a_step_too_late_on_a_living_desktop_is_the_policys(self, farm: FakeFarm) -> None:
        with vector_env(farm, step_deadline_s=0.2) as envs:
            envs.reset()
            victim, index = farm.leases[1], index_of(envs, farm.leases[1])
            hang(victim)
            _, rewards, terminated, _, infos = envs.step([CLICK] * 3)
            assert terminated.tolist() == [i == index for i in range(3)]
            assert (infos["end"][index], infos["masked"][index], rewards[index]) == ("broke_desktop", False, 0.0)
            assert infos["cause"][index] == "deadline: the step took more than 0.2 s"
            assert not envs.step([CLICK] * 3)[2].any()
            assert victim.released

    @pytest.mark.parametrize(
        ("told", "end"),
        [
            (DesktopFailedError("died", fault_owner=FaultOwner.HOST, cause="host_oom"), "farm_fault"),
            (DesktopFailedError("died", fault_owner=FaultOwner.POLICY, cause="guest_exited"), "broke_desktop"),
            (FarmUnreachableError("gone", code="unreachable"), "farm_fault"),
        ],
    )
    def test_the_farms_evidence_owns_a_step_that_is_too_late(
        self, farm: FakeFarm, told: DartEnvError, end: str
    ) -> None:
        with vector_env(farm, 1, step_deadline_s=0.2) as envs:
            envs.reset()
            envs.step([CLICK])
            hang(farm.leases[0])
            farm.leases[0].fail_next("health", told)
            *_, infos = envs.step([CLICK])
            assert (infos["end"][0], infos["masked"][0]) == (end, end == "farm_fault")

    def test_a_farm_that_does_not_say_whether_a_desktop_lives_owns_the_late_step(self, farm: FakeFarm) -> None:
        with vector_env(farm, 1, step_deadline_s=0.2) as envs:
            envs.reset()
            envs.step([CLICK])
            hang(farm.leases[0])
            farm.leases[0].health = asyncio.Event().wait  # type: ignore[method-assign,assignment]
            *_, infos = envs.step([CLICK])
            assert (infos["end"][0], infos["masked"][0]) == ("farm_fault", True)
            assert not envs.step([CLICK])[3].any()

    def test_a_judgement_has_a_limit_of_its_own(self, farm: FakeFarm) -> None:
        with vector_env(farm, 1, task=SlowlyJudged(), step_deadline_s=0.2) as envs:
            envs.reset()
            *_, infos = envs.step([DONE])
            assert (infos["end"][0], infos["masked"][0]) == ("done", False)

    def test_a_reset_that_hangs_is_given_up_and_tried_again(self, farm: FakeFarm) -> None:
        farm.on_lease = lambda lease: hang(lease) if len(farm.leases) == 2 else None
        with vector_env(farm, 2, reset_deadline_s=1.0) as envs:
            _, infos = envs.reset()
            assert infos["_cause"].sum() == 1
            assert not envs.step([CLICK] * 2)[3].any()


def test_tags_tell_which_action_an_answer_is_of(farm: FakeFarm) -> None:
    with vector_env(farm) as envs:
        envs.reset()
        tags = dict(zip([2, 0, 1], envs.send([CLICK] * 3, [2, 0, 1]).tolist(), strict=True))
        while tags:
            *_, infos, ids = envs.recv()
            for info, index in zip(infos, ids, strict=True):
                assert info["tag"] == tags.pop(int(index))
        *_, infos = envs.step([CLICK] * 3)
        assert infos["tag"].tolist() == [3, 4, 5]


def test_no_answer_is_ever_another_steps(farm: FakeFarm) -> None:
    """Delays, deaths and time-outs in any order: each answer carries the tag of the action that was sent, and counts its own steps."""
    rng = random.Random(7)
    farm.max_desktops = 10_000

    async def dawdle() -> None:
        await asyncio.sleep(rng.random() * 0.002)

    farm.on_lease = lambda lease: slow(lease, dawdle)
    wrong = answers = 0
    with vector_env(farm, 4, task=ToyTask(max_steps=1000), step_deadline_s=5.0) as envs:
        envs.reset(seed=1)
        sent: dict[int, int] = {}
        steps: dict[int, int] = dict.fromkeys(range(4), 0)
        while answers < 1_500:
            idle = [index for index in range(4) if index not in sent]
            if idle:
                tags = envs.send([CLICK] * len(idle), idle).tolist()
                sent |= dict(zip(idle, tags, strict=True))
            if rng.random() < 0.01:
                living = [lease for lease in farm.leases if not lease.lost]
                rng.choice(living).kill(FaultOwner.HOST, "chaos")
            try:
                _, _, terminated, truncated, infos, ids = envs.recv(timeout=rng.choice([0.0005, None]))
            except TimeoutError:
                continue
            for row, index in enumerate(ids.tolist()):
                answers += 1
                wrong += infos[row]["tag"] != sent.pop(index)
                if terminated[row] or truncated[row]:
                    steps[index] = 0
                elif "steps" in infos[row]:
                    steps[index] += 1
                    wrong += infos[row]["steps"] != steps[index]
                else:
                    steps[index] = 0
    assert wrong == 0


class TestFaultsOfAsyncVectorEnv:
    """Each of the seven was reproduced with Gymnasium 1.4.0's AsyncVectorEnv."""

    def test_1_after_a_time_out_no_result_is_stale(self, farm: FakeFarm) -> None:
        with vector_env(farm, 1, task=ToyTask(max_steps=50)) as envs:
            envs.reset()
            gate = asyncio.Event()
            slow(farm.leases[0], gate.wait)
            envs.step_async([CLICK])
            with pytest.raises(TimeoutError):
                envs.step_wait(timeout=0.02)

            async def release() -> None:
                gate.set()

            envs._loop.run(release())
            counted = [int(envs.step_wait()[4]["steps"][0])]
            counted += [int(envs.step([CLICK])[4]["steps"][0]) for _ in range(3)]
            assert counted == [1, 2, 3, 4]

    def test_2_one_envs_exception_leaves_the_vector_usable(self, farm: FakeFarm) -> None:
        with vector_env(farm) as envs:
            envs.reset()
            farm.leases[0].kill(FaultOwner.HOST, "x")
            assert envs.step([CLICK] * 3)[3].sum() == 1
            assert not envs.step([CLICK] * 3)[3].any()

    def test_3_close_does_not_hang_after_a_death(self, farm: FakeFarm) -> None:
        with vector_env(farm) as envs:
            envs.reset()
            for lease in farm.leases:
                lease.kill(FaultOwner.HOST, "x")
            envs.step_async([CLICK] * 3)
            envs.close()
        assert all(lease.released for lease in farm.leases)

    def test_4_close_gives_back_what_is_held_also_amid_steps(self, farm: FakeFarm) -> None:
        with vector_env(farm) as envs:
            envs.reset()
            hang(farm.leases[0])
            envs.step_async([CLICK] * 3)
            envs.close()
        assert all(lease.released for lease in farm.leases)

    def test_5_the_cause_of_a_failing_start_reaches_the_caller(self, farm: FakeFarm) -> None:
        from dart_envs.errors import FarmError

        for _ in range(3):
            farm.fail_next_lease(FarmError("no image called basic", code="image_missing"))
        with vector_env(farm) as envs, pytest.raises(FarmError, match="no image called basic"):
            envs.reset()

    def test_6_texts_come_back_as_they_are(self, farm: FakeFarm) -> None:
        tree = [A11yElement(role="entry", name="žluťoučký 🐎", x=1, y=2, w=3, h=4)]
        farm.on_lease = lambda lease: setattr(lease.state, "elements", tree)
        with vector_env(farm, 2, observation=("screenshot", "a11y")) as envs:
            observations, _ = envs.reset()
            assert observations["instruction"] == ("Type hello.",) * 2
            assert all("žluťoučký 🐎" in text for text in observations["a11y"])

    def test_7_a_manual_reset_after_an_end_swallows_no_action(self, farm: FakeFarm) -> None:
        with vector_env(farm, 1) as envs:
            envs.reset()
            envs.step([DONE])
            envs.reset()
            *_, infos = envs.step([CLICK])
            assert infos["steps"].tolist() == [1]
            assert envs.step([DONE])[2].tolist() == [True]

    def test_and_no_constructor_takes_a_desktop(self, farm: FakeFarm) -> None:
        with vector_env(farm, 5):
            assert farm.leases == []

    def test_gymnasiums_own_async_mode_works(self) -> None:
        envs = gym.make_vec(
            "DartOSWorld-v0",
            num_envs=2,
            vectorization_mode="async",
            vector_kwargs={"shared_memory": False},
            task=ToyTask(),
            resolution=SMALL,
            farm=FakeFarm(),
        )
        observations, _ = envs.reset(seed=np.array([1, 2]).tolist())
        assert observations["screenshot"].shape == (2, 64, 80, 3)
        envs.step(envs.action_space.sample())
        envs.close()
