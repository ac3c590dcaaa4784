"""GRPO on live desktops in one plain file: what `dart-train run` does, without processes, queues, vLLM and curation.

    python dart_train/recipes/tiny_loop.py runs/demo/warm --updates 20

Role: to be read, and changed to try an idea before building it in. Rule: one desktop, one thread of control, Gymnasium's own interface; the
policy samples, the evaluator scores, the mean over the group's steps is the baseline, one gradient step follows. Because the step follows
at once, the sampling policy is the trained one: no importance weights, no clipping. Non-goals: speed (`dart-train run` overlaps sampling
and training on four desktops), resuming, evaluation.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

import dart_envs.tasks
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_envs.action_formats import ParsedAnswer
from dart_envs.action_formats.uitars import parse
from dart_envs.types import Action, ActionType, Observation, RgbImage
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs, token_logprobs
from dart_train.objectives.advantages import group_advantages
from dart_train.types import TokenBatch

FAMILIES = ("press_nth", "press_two", "choose_nth", "tick_nth")
MAX_TOKENS = 20
NOTHING = Action(ActionType.WAIT, duration_s=0.0)


@dataclass(frozen=True)
class Sample:
    """One response of the policy.

    Attributes:
        image: What the policy saw, uint8 [H, W, 3].
        prompt_ids: Token ids of the prompt.
        answer_ids: Token ids of the response.
    """

    image: RgbImage
    prompt_ids: list[int]
    answer_ids: list[int]


def main() -> None:
    """Train a model directory and write the result beside it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a warm-started policy, e.g. runs/demo/warm")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--groups", type=int, default=2, help="tasks per update")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts per task")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/tiny_loop"))
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    draw = random.Random(args.seed)
    policy = load_model(args.model)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=args.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    task_ids = dart_envs.tasks.load_suite("basics").tasks("train", FAMILIES)
    env = gym.make("DartOSWorld-v0", resolution=(640, 400), font_size=16).unwrapped
    try:
        for update in range(1, args.updates + 1):
            samples: list[Sample] = []
            advantages: list[float] = []
            rewards: list[float] = []
            for task_id in draw.sample(task_ids, args.groups):
                group = [rollout(env, policy, task_id, args.temperature) for _ in range(args.group_size)]
                rewards += [reward for reward, _ in group]
                steps = [len(answers) for _, answers in group]
                by_member = group_advantages([reward for reward, _ in group], "grpo", steps)
                for advantage, (_, answers) in zip(by_member, group, strict=True):
                    samples += answers
                    advantages += [float(advantage)] * len(answers)
            loss = learn(policy, optimizer, samples, advantages, args.temperature)
            print(f"update {update}: reward {sum(rewards) / len(rewards):.2f}, loss {loss:+.4f}", flush=True)
    finally:
        env.close()
    policy.save(args.out)
    print(f"wrote {args.out}")


def rollout(env: Any, policy: LoadedModel, task_id: str, temperature: float) -> tuple[float, list[Sample]]:
    """Run one episode.

    Args:
        env: The environment.
        policy: The policy.
        task_id: The task.
        temperature: Sampling temperature.

    Returns:
        The reward, and every response of the episode.
    """
    builder = PromptBuilder(preset("tiny"))
    history = builder.new_history()
    seen, _ = env.reset(options={"task": task_id})
    samples: list[Sample] = []
    while True:
        prompt = builder.build(Observation(seen["screenshot"], seen["instruction"]), history)
        sample, text = answer(policy, prompt.messages, prompt.images[-1], temperature)
        samples.append(sample)
        history.add(sample.image, text)
        parsed = parse(text, prompt.points)
        seen, reward, terminated, truncated, _ = env.step(
            parsed.action if isinstance(parsed, ParsedAnswer) else NOTHING
        )
        if terminated or truncated:
            return reward, samples


@torch.no_grad()
def answer(policy: LoadedModel, messages: Any, image: RgbImage, temperature: float) -> tuple[Sample, str]:
    """Sample one response to a prompt with one image.

    Args:
        policy: The policy.
        messages: The prompt.
        image: Its image, uint8 [H, W, 3].
        temperature: Sampling temperature.

    Returns:
        The response as tokens and as text.
    """
    text = policy.processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    inputs = policy.processor(text=[text], images=[image], return_tensors="pt")
    policy.model.eval()
    written = policy.model.generate(
        **inputs,
        max_new_tokens=MAX_TOKENS,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        suppress_tokens=list(suppressed_token_ids(policy.model.config)),
    )[0]
    prompt_ids = inputs["input_ids"][0].tolist()
    answer_ids = written[len(prompt_ids) :].tolist()
    return Sample(image, prompt_ids, answer_ids), policy.tokenizer.decode(answer_ids, skip_special_tokens=True)


def learn(
    policy: LoadedModel,
    optimizer: torch.optim.Optimizer,
    samples: list[Sample],
    advantages: list[float],
    temperature: float,
) -> float:
    """Do one gradient step: the tokens of a response become more probable in proportion to the advantage of its episode.

    Args:
        policy: The policy.
        optimizer: Its optimiser.
        samples: Responses.
        advantages: Advantage of each response.
        temperature: Temperature at which they were sampled.

    Returns:
        The loss.
    """
    kept = [index for index, advantage in enumerate(advantages) if advantage != 0]
    if not kept:
        return 0.0
    policy.model.train()
    logprobs_BT, _ = token_logprobs(policy.model, batch_of(policy, [samples[index] for index in kept]), temperature)
    lengths_B = torch.tensor([len(samples[index].answer_ids) for index in kept])
    advantages_B = torch.tensor([advantages[index] for index in kept])
    loss = -(advantages_B * logprobs_BT.sum(-1) / lengths_B).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def batch_of(policy: LoadedModel, samples: list[Sample]) -> TokenBatch:
    """Pad prompts and responses to a batch with their images.

    Args:
        policy: The policy.
        samples: Responses.

    Returns:
        The tensors.
    """
    width = max(len(sample.prompt_ids) + len(sample.answer_ids) for sample in samples)
    ids_BT = torch.full((len(samples), width), policy.tokenizer.pad_token_id)
    attention_BT = torch.zeros_like(ids_BT)
    response_BT = torch.zeros_like(ids_BT)
    for row, sample in enumerate(samples):
        begin, end = len(sample.prompt_ids), len(sample.prompt_ids) + len(sample.answer_ids)
        ids_BT[row, :end] = torch.tensor(sample.prompt_ids + sample.answer_ids)
        attention_BT[row, :end] = 1
        response_BT[row, begin:end] = 1
    pixels, grid = pixel_inputs(policy.processor, [sample.image for sample in samples])
    return TokenBatch(ids_BT, attention_BT, response_BT, pixels, grid)


if __name__ == "__main__":
    main()
