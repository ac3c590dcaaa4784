"""The vector env: batches, autoreset, isolation of failures, first come first served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from toy_task import ToyTask

from dart_envs.envs.slot import batch_infos
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.errors import ActionError, FarmError
from dart_envs.testing.fake_desktop import FakeDesktop, fake_reply
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType, Frame
from dart_server.wire import ExecReply, FaultOwner, InputEvent, SettleSpec

SMALL = (80, 64)
N = 3
TYPE = Action(ActionType.TYPE, text="hello")
CLICK = Action(ActionType.CLICK, x=1, y=1)
DONE = Action(ActionType.DONE)


@pytest.fixture
def envs(farm: FakeFarm) -> Iterator[DartVectorEnv]:
    envs = DartVectorEnv(N, ToyTask(), resolution=SMALL, farm=farm, render_mode="rgb_array")
    yield envs
    envs.close()


def test_make_vec_gives_it_and_leases_nothing_yet(farm: FakeFarm) -> None:
    made = gym.make_vec("DartOSWorld-v0", num_envs=N, task=ToyTask(), resolution=SMALL, farm=farm)
    with closing(made) as envs:
        assert isinstance(envs.unwrapped, DartVectorEnv)
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert farm.leases == []
        observations, infos = envs.reset(seed=1)
        assert observations in envs.observation_space
        assert observations["screenshot"].shape == (N, 64, 80, 3)
        assert observations["instruction"] == ("Type hello.",) * N
        assert list(infos["seed"]) == [1, 2, 3]
        for _ in range(6):
            observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
            assert observations in envs.observation_space
            assert rewards.dtype == np.float64
            assert terminated.dtype == truncated.dtype == np.bool_
    assert len(farm.leases) == N
    assert all(lease.released for lease in farm.leases)


def test_next_step_autoreset_ignores_the_action_and_starts_anew(envs: DartVectorEnv) -> None:
    envs.reset()
    envs.step([TYPE, CLICK, CLICK])
    _, rewards, terminated, truncated, infos = envs.step([DONE, CLICK, DONE])
    assert rewards.tolist() == [1.0, 0.0, 0.0]
    assert terminated.tolist() == [True, False, True]
    assert not truncated.any()
    assert infos["_end"].tolist() == [True, False, True]
    assert infos["episode_number"].tolist() == [1, 1, 1]
    _, rewards, terminated, _, infos = envs.step([DONE, CLICK, DONE])
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert not terminated.any()
    assert infos["episode_number"].tolist() == [2, 1, 2]


@pytest.mark.parametrize("owner", [FaultOwner.HOST, FaultOwner.POLICY])
def test_one_dead_desktop_ends_its_own_episode_only(envs: DartVectorEnv, farm: FakeFarm, owner: FaultOwner) -> None:
    envs.reset()
    envs.step([CLICK] * N)
    victim = farm.leases[1]
    victim.kill(owner, "x")
    index = next(i for i, slot in enumerate(envs._sub_envs) if slot._core.lease is victim)
    _, _, terminated, truncated, infos = envs.step([CLICK] * N)
    ended = truncated if owner is FaultOwner.HOST else terminated
    assert ended.tolist() == [i == index for i in range(N)]
    assert infos["end"][index] == ("farm_fault" if owner is FaultOwner.HOST else "broke_desktop")
    _, _, terminated, truncated, _ = envs.step([CLICK] * N)
    assert not (terminated | truncated).any()
    assert len(farm.leases) == N + 1


def test_a_reset_that_fails_is_tried_again_by_the_next_step(envs: DartVectorEnv, farm: FakeFarm) -> None:
    for _ in range(N - 1):
        farm.fail_next_lease(FarmError("full", code="no_capacity"))
    _, infos = envs.reset()
    assert sum(infos["_cause"]) == N - 1
    _, _, _, truncated, infos = envs.step([CLICK] * N)
    assert not truncated.any()
    assert "cause" not in infos
    for _ in range(N):
        farm.fail_next_lease(FarmError("full", code="no_capacity"))
    for lease in farm.leases:
        lease.expire()
    with pytest.raises(FarmError, match="full"):
        envs.reset()


def test_a_bad_batch_is_refused_whole(envs: DartVectorEnv, farm: FakeFarm) -> None:
    with pytest.raises(ResetNeeded):
        envs.step([CLICK] * N)
    envs.reset()
    calls = [len(lease.calls) for lease in farm.leases]
    with pytest.raises(ActionError, match="between 0 and 79"):
        envs.step([CLICK, CLICK, Action(ActionType.CLICK, x=80, y=0)])
    with pytest.raises(ActionError, match="3 actions are needed"):
        envs.step([CLICK])
    with pytest.raises(ActionError, match="3 entries in type"):
        envs.step({"type": np.array([1, 2])})
    assert [len(lease.calls) for lease in farm.leases] == calls


def test_the_order_of_calls_is_checked(envs: DartVectorEnv) -> None:
    envs.reset()
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    envs.step_async([CLICK] * N)
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async([CLICK] * N)
    with pytest.raises(AlreadyPendingCallError):
        envs.send([CLICK], [0])
    envs.step_wait()
    with pytest.raises(NoAsyncCallError):
        envs.recv()


class _Gate:
    """Holds back the steps of one lease until it is opened."""

    def __init__(self, envs: DartVectorEnv, index: int) -> None:
        lease = envs._sub_envs[index]._core.lease
        assert lease is not None
        self._loop = envs._loop
        self._event = asyncio.Event()
        inner = lease.step

        async def held(events: list[InputEvent], settle: SettleSpec | None = None, **options: Any) -> Frame:
            await self._event.wait()
            return await inner(events, settle, **options)

        lease.step = held  # type: ignore[method-assign]

    def open(self) -> None:
        async def release() -> None:
            self._event.set()

        self._loop.run(release())


def test_a_time_out_loses_nothing_and_never_shows_old_results(envs: DartVectorEnv) -> None:
    envs.reset()
    gate = _Gate(envs, 1)
    envs.step_async([TYPE] * N)
    with pytest.raises(TimeoutError):
        envs.step_wait(timeout=0.02)
    assert envs.busy == (0, 1, 2)
    gate.open()
    observations, *_, infos = envs.step_wait()
    assert infos["steps"].tolist() == [1, 1, 1]
    assert (observations["screenshot"][0] == observations["screenshot"][1]).all()
    *_, infos = envs.step([CLICK] * N)
    assert infos["steps"].tolist() == [2, 2, 2]


def test_recv_answers_with_the_first_that_are_ready(envs: DartVectorEnv) -> None:
    envs.reset()
    gate = _Gate(envs, 0)
    envs.send([CLICK] * N, [0, 1, 2])
    observations, _, _, _, infos, ids = envs.recv(min_envs=2)
    assert ids.tolist() == [1, 2]
    assert observations["screenshot"].shape == (2, 64, 80, 3)
    assert [info["steps"] for info in infos] == [1, 1]
    with pytest.raises(AlreadyPendingCallError, match=r"\[0\]"):
        envs.send([CLICK], [0])
    envs.send([CLICK, DONE], [2, 1])
    *_, ids = envs.recv(min_envs=2)
    assert ids.tolist() == [1, 2]
    with pytest.raises(TimeoutError):
        envs.recv(timeout=0.01)
    with pytest.raises(AlreadyPendingCallError):
        envs.step([CLICK] * N)
    gate.open()
    *_, ids = envs.recv()
    assert ids.tolist() == [0]
    envs.step([CLICK] * N)


def test_a_reset_cancels_what_is_in_flight(envs: DartVectorEnv, farm: FakeFarm) -> None:
    envs.reset()
    _Gate(envs, 0)
    envs.step_async([CLICK] * N)
    observations, infos = envs.reset()
    assert observations in envs.observation_space
    assert infos["episode_number"].tolist() == [2, 2, 2]
    assert farm.leases[0].released or farm.leases[1].released or farm.leases[2].released


def test_a_masked_reset_leaves_the_others_alone(envs: DartVectorEnv) -> None:
    envs.reset()
    before, *_ = envs.step([TYPE] * N)
    options = {"reset_mask": np.array([True, False, False])}
    observations, infos = envs.reset(options=options)
    assert "reset_mask" in options
    assert (observations["screenshot"][1] == before["screenshot"][1]).all()
    assert not (observations["screenshot"][0] == before["screenshot"][0]).all()
    assert infos["episode_number"].tolist() == [2, 1, 1]
    with pytest.raises(ValueError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.array([True])})
    with pytest.raises(ValueError, match="2 seeds"):
        envs.reset(seed=[1, 2])


@pytest.mark.parametrize("call", ["send", "step_async"])
def test_a_masked_reset_leaves_steps_of_others_in_flight(farm: FakeFarm, call: str) -> None:
    envs = DartVectorEnv(2, ToyTask(), resolution=SMALL, farm=farm, autoreset_mode="DISABLED")
    with closing(envs):
        envs.reset()
        gate = _Gate(envs, 0)
        if call == "send":
            envs.send([TYPE, DONE], [0, 1])
            _, _, terminated, _, _, ids = envs.recv()
            assert (ids.tolist(), terminated.tolist()) == ([1], [True])
        else:
            envs.step_async([TYPE, DONE])
        _, infos = envs.reset(options={"reset_mask": np.array([False, True])})
        assert infos["episode_number"].tolist() == [1, 2]
        assert envs.busy == (0,)
        gate.open()
        *_, infos, ids = envs.recv()
        assert (ids.tolist(), infos[0]["steps"], infos[0]["tag"]) == ([0], 1, 0)
        *_, infos = envs.step([CLICK, CLICK])
        assert infos["steps"].tolist() == [2, 1]


def test_a_masked_reset_cancels_the_steps_of_its_own_desktops(envs: DartVectorEnv) -> None:
    envs.reset()
    _Gate(envs, 0)
    gate = _Gate(envs, 1)
    envs.send([TYPE, TYPE], [0, 1])
    _, infos = envs.reset(options={"reset_mask": np.array([True, False, False])})
    assert infos["episode_number"].tolist() == [2, 1, 1]
    assert envs.busy == (1,)
    gate.open()
    *_, infos, ids = envs.recv()
    assert (ids.tolist(), infos[0]["steps"]) == ([1], 1)


def test_an_error_of_one_step_takes_away_no_other_result(envs: DartVectorEnv) -> None:
    envs.reset()
    core = envs._sub_envs[1]._core
    envs._loop.run(core.release_lease())
    _, _, _, truncated, infos = envs.step([CLICK] * N)
    assert truncated.tolist() == [False, True, False]
    assert (infos["end"][1], infos["masked"][1]) == ("farm_fault", True)
    assert infos["cause"][1].startswith("step: No episode is running")
    *_, truncated, infos = envs.step([CLICK] * N)
    assert not truncated.any()
    assert infos["episode_number"].tolist() == [1, 2, 1]


def test_some_desktops_can_be_seeded_and_others_not(envs: DartVectorEnv) -> None:
    _, infos = envs.reset(seed=[1, None, 2**70])
    assert list(infos["seed"]) == [1, None, 2**70]


def test_code_that_ends_and_code_that_does_not_are_told_together(farm: FakeFarm) -> None:
    def python(_desktop: FakeDesktop, args: list[str], _stdin: str) -> ExecReply:
        endless = args[-1].endswith("while True: pass")
        return fake_reply(returncode=None if endless else 0, timed_out=endless)

    farm.programs["python"] = python
    envs = DartVectorEnv(2, ToyTask(), resolution=SMALL, farm=farm, action_space="pyautogui-exec")
    with closing(envs):
        envs.reset()
        *_, infos = envs.step(["x = 1", "while True: pass"])
        assert list(infos["code"]["returncode"]) == [0, None]
        assert infos["code"]["timed_out"].tolist() == [False, True]
        assert infos["code"]["_returncode"].tolist() == [True, True]
        *_, infos = envs.step(["x = 1", Action(ActionType.WAIT)])
        assert infos["code"]["returncode"].dtype == np.int64
        assert infos["_code"].tolist() == infos["code"]["_returncode"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("values", "batched", "dtype"),
    [
        ((1, 2), [0, 1, 2], np.int64),
        ((1, 0.5), [0, 1.0, 0.5], np.float64),
        ((True, False), [False, True, False], np.bool_),
        ((True, 2), [None, True, 2], object),
        ((1, "x"), [None, 1, "x"], object),
        ((None, 1), [None, None, 1], object),
        (([1], 1), [None, [1], 1], object),
        (({"a": 1}, 1), [None, {"a": 1}, 1], object),
        ((np.uint64(2**63), -1), [None, 2**63, -1], object),
        ((np.array([1, 2]), np.array([3, 4])), [[0, 0], [1, 2], [3, 4]], np.int64),
    ],
)
def test_infos_of_one_key_may_have_any_types(values: tuple[Any, Any], batched: list[Any], dtype: type) -> None:
    batch = batch_infos({1: {"x": values[0]}, 2: {"x": values[1]}}, 3)
    assert (batch["x"].tolist(), batch["x"].dtype) == (batched, dtype)
    assert batch["_x"].tolist() == [False, True, True]


def test_render_gives_one_frame_per_desktop(envs: DartVectorEnv) -> None:
    observations, _ = envs.reset()
    frames = envs.render()
    assert frames is not None
    assert all((frames[i] == observations["screenshot"][i]).all() for i in range(N))


def test_verdicts_can_be_asked_for_at_any_step(envs: DartVectorEnv, farm: FakeFarm) -> None:
    with pytest.raises(ResetNeeded):
        envs.evaluate()
    envs.reset()
    assert envs.evaluate()[0].tolist() == [0.0] * N
    envs.step([TYPE, CLICK, TYPE])
    rewards, infos = envs.evaluate()
    assert rewards.tolist() == [1.0, 0.0, 1.0]
    assert infos[0] == {"outcome": {"typed": "hello"}}
    rewards, infos = envs.evaluate([2, 1])
    assert rewards.tolist() == [1.0, 0.0]
    assert sum(not lease.released for lease in farm.leases) == N, "a copy was kept"
    *_, infos = envs.step([CLICK] * N)
    assert infos["steps"].tolist() == [2] * N, "a verdict is no step"


def test_a_verdict_that_cannot_be_had_is_told_and_no_zero(envs: DartVectorEnv, farm: FakeFarm) -> None:
    envs.reset()
    envs.step([TYPE, DONE, TYPE])
    envs._sub_envs[2]._core.lease.fail_next("fork", FarmError("full", code="no_capacity"))  # type: ignore[union-attr]
    rewards, infos = envs.evaluate()
    assert rewards[:2].tolist() == [1.0, 0.0]
    assert np.isnan(rewards[2])
    assert [info.get("cause") for info in infos] == [None, None, "full"]
    gate = _Gate(envs, 0)
    envs.send([CLICK], [0])
    with pytest.raises(AlreadyPendingCallError, match=r"\[0\]"):
        envs.evaluate()
    assert envs.evaluate([1])[0].shape == (1,)
    gate.open()
    envs.recv()


def test_close_gives_everything_back_also_with_steps_in_flight(envs: DartVectorEnv, farm: FakeFarm) -> None:
    envs.reset()
    _Gate(envs, 2)
    envs.step_async([CLICK] * N)
    envs.close()
    assert all(lease.released for lease in farm.leases)
