"""A PPO loop in one file, in CleanRL's manner: plain Gymnasium vector environment, plain PyTorch."""

import sys

import gymnasium as gym
import torch
from torch import nn
from torch.distributions import Categorical

import dart_envs  # noqa: F401 - registers DartOSWorld-v0

TOTAL_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
NUM_ENVS, NUM_STEPS, EPOCHS, GAMMA, LAMBDA, CLIP = 2, 16, 2, 0.99, 0.95, 0.2

envs = gym.make_vec(
    "DartOSWorld-v0",
    num_envs=NUM_ENVS,
    task="basics/press_nth",
    resolution=(640, 400),
    max_episode_steps=10,
    action_space="discrete-grid",
    observation={"pixels": True, "screenshot_wh": (84, 84), "color_mode": "gray", "frames": 4, "layout": "CHW"},
)
envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
body = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4),
    nn.ReLU(),
    nn.Conv2d(32, 64, 4, 2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 81, 256),
    nn.ReLU(),
)
actor, critic = nn.Linear(256, int(envs.single_action_space.n)), nn.Linear(256, 1)
optimizer = torch.optim.Adam([*body.parameters(), *actor.parameters(), *critic.parameters()], lr=2.5e-4, eps=1e-5)

observation, _ = envs.reset(seed=1)
observation = torch.as_tensor(observation)
steps, episodes = 0, 0
while steps < TOTAL_STEPS:
    seen, actions, log_probs, values, rewards, ends = [], [], [], [], [], []
    weights, starts = torch.ones(NUM_STEPS, NUM_ENVS), [0] * NUM_ENVS
    for now in range(NUM_STEPS):
        with torch.no_grad():
            hidden = body(observation / 255.0)
            policy = Categorical(logits=actor(hidden))
            action = policy.sample()
        new, reward, terminated, truncated, info = envs.step(action.numpy())
        seen.append(observation), actions.append(action), log_probs.append(policy.log_prob(action))
        values.append(critic(hidden).detach()[:, 0]), rewards.append(torch.as_tensor(reward, dtype=torch.float32))
        ends.append(torch.as_tensor(terminated | truncated, dtype=torch.float32))
        observation, steps = torch.as_tensor(new), steps + NUM_ENVS
        episodes += int((terminated | truncated).sum())
        for index in (terminated | truncated).nonzero()[0]:
            if info["masked"][index]:  # the farm failed: there is no verdict to learn from
                weights[starts[index] : now + 1, index] = 0.0
            starts[index] = now + 1
    with torch.no_grad():
        following = critic(body(observation / 255.0))[:, 0]
    advantages, last = [], torch.zeros(NUM_ENVS)
    for t in reversed(range(NUM_STEPS)):
        going = 1.0 - ends[t]
        last = rewards[t] + GAMMA * following * going - values[t] + GAMMA * LAMBDA * going * last
        following = values[t]
        advantages.insert(0, last)
    batch = [torch.cat(part) for part in (seen, actions, log_probs, values, advantages)]
    returns, weight = batch[3] + batch[4], weights.flatten() / weights.sum().clamp(min=1.0)
    for _ in range(EPOCHS):
        hidden = body(batch[0] / 255.0)
        policy = Categorical(logits=actor(hidden))
        ratio = (policy.log_prob(batch[1]) - batch[2]).exp()
        clipped = torch.min(ratio * batch[4], ratio.clamp(1 - CLIP, 1 + CLIP) * batch[4])
        value_loss = (critic(hidden)[:, 0] - returns).pow(2)
        loss = (weight * (-clipped + 0.5 * value_loss - 0.01 * policy.entropy())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"steps {steps}, episodes {episodes}, loss {loss.item():.4f}")
envs.close()
