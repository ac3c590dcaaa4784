"""RL code that we did not write, unchanged, on live desktops for 200 steps: Stable-Baselines3's PPO, and a loop in CleanRL's manner.
What such code may ask for beside rewards: verdicts at any step, marks and tables of what can be clicked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from served_farm import served_farm

from dart_envs.envs.vector import DartVectorEnv

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(900)]
DESKTOPS, STEPS = 2, 200
PICTURE = {"screenshot_wh": (80, 50), "instruction": False}
OPTIONS: dict[str, Any] = {
    "task": "basics/press_nth",
    "max_steps": 10,
    "resolution": (640, 400),
    "settle": {"quiet_ms": 30, "cap_ms": 500},
    "action_space": "discrete-grid",
    "observation": PICTURE,
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("farm"), max_desktops=DESKTOPS + 1) as url:
        yield url


@pytest.mark.slow
def test_ppo_of_stable_baselines(url: str) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3", reason="needs the extra rl")
    from dart_envs.envs.sb3 import StableBaselinesVecEnv

    envs = StableBaselinesVecEnv(DartVectorEnv(DESKTOPS, farm=url, autoreset_mode="SAME_STEP", **OPTIONS))
    try:
        model = stable_baselines3.PPO("CnnPolicy", envs, n_steps=50, batch_size=50, n_epochs=1, seed=1, device="cpu")
        before = [value.detach().clone() for value in model.policy.parameters()]
        model.learn(STEPS)
        assert model.num_timesteps >= STEPS
        assert any(bool((old != new).any()) for old, new in zip(before, model.policy.parameters(), strict=True))
    finally:
        envs.close()


@pytest.mark.slow
def test_a_loop_in_cleanrls_manner(url: str) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    envs = gym.make_vec("DartOSWorld-v0", num_envs=DESKTOPS, farm=url, **OPTIONS)
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    height, width, channels = envs.single_observation_space["screenshot"].shape
    agent = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(height * width * channels, int(envs.single_action_space.n))
    )
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    before = [value.detach().clone() for value in agent.parameters()]
    ended, step = 0, 0
    try:
        next_obs, _ = envs.reset(seed=1)
        log_probs, rewards = [], []
        while step < STEPS:
            logits = agent(torch.as_tensor(next_obs["screenshot"], dtype=torch.float32) / 255)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            next_obs, reward, terminations, truncations, infos = envs.step(action.numpy())
            log_probs.append(policy.log_prob(action))
            rewards.append(torch.as_tensor(reward))
            step += DESKTOPS
            ended += int(np.sum(terminations | truncations))
            if "episode" in infos and "r" in infos["episode"]:
                assert float(np.max(infos["episode"]["l"])) >= 1
            if len(rewards) == 25:
                loss = -(torch.stack(log_probs) * (torch.stack(rewards) - 0.1)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log_probs, rewards = [], []
    finally:
        envs.close()
    assert ended >= STEPS // 10 // DESKTOPS
    assert any(bool((old != new).any()) for old, new in zip(before, agent.parameters(), strict=True))


def test_a_verdict_at_any_step_leaves_the_episode_alone(url: str) -> None:
    with gym.make("DartOSWorld-v0", task="basics/press_nth/0000", farm=url, resolution=(640, 400), max_steps=9) as env:
        plain: Any = env.unwrapped
        env.reset(seed=1)
        assert plain.evaluate().reward == 0.0
        action = plain.oracle()[0]
        _, reward, terminated, *_ = env.step(action)
        assert (reward, terminated) == (0.0, False)
        assert plain.evaluate().reward == 1.0
        _, reward, terminated, *_ = env.step({"type": "done"})
        assert (reward, terminated) == (1.0, True)


def test_a_vector_sees_what_can_be_clicked_and_is_judged_at_any_step(url: str) -> None:
    envs = DartVectorEnv(
        DESKTOPS,
        task="basics/press_nth/0000",
        farm=url,
        max_steps=9,
        resolution=(640, 400),
        action_space="normalized",
        observation=("screenshot", "a11y_table", "marks"),
    )
    try:
        observations, _ = envs.reset(seed=1)
        assert observations["instruction"] == ("Press the first button.",) * DESKTOPS
        rows = [line.split("\t") for line in observations["marks"][0].splitlines()]
        assert rows[0] == ["mark", "role", "name", "text", "x", "y", "w", "h"]
        buttons = [row for row in rows if row[1] == "push button"]
        assert all("\t".join(row[1:]) in observations["a11y"][0] for row in buttons)
        held = np.full((DESKTOPS, *envs.single_action_space.shape), -1.0)  # type: ignore[misc]
        held[:, 5:7] = 0.0
        for desktop in range(DESKTOPS):
            x, y, width, height = map(int, buttons[desktop][4:8])
            held[desktop, :3] = 2 * (x + width / 2) / 639 - 1, 2 * (y + height / 2) / 399 - 1, 1.0
        envs.step(held)
        assert envs.evaluate()[0].tolist() == [0.0] * DESKTOPS, "the button is still held down"
        held[:, 2] = -1.0
        envs.step(held)
        rewards, infos = envs.evaluate()
        assert rewards.tolist() == [1.0] + [0.0] * (DESKTOPS - 1), infos
        held[:, -1] = 1.0
        _, rewards, terminated, _, infos = envs.step(held)
        assert rewards.tolist() == [1.0] + [0.0] * (DESKTOPS - 1)
        assert terminated.all(), infos
    finally:
        envs.close()
