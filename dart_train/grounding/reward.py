"""Reinforcement learning of pointing: the reward is 1 where a sampled point is right.

Role: `train_by_reward(config)` samples a group of points per question, judges them, and follows the gradient of their log-probs. Rule: the
points are sampled from, and their log-probs are taken under, one forward pass, so that the ratio of old and new policy is 1 and the loss
is -mean(A log p), GRPO's first step; an answer with several targets is right when every point is. The samples of an update are a function
of seed and update. Non-goals: rollouts on desktops; refusals, which are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dart_agent.grounding.scoring import is_hit
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock
from dart_train.grounding.batches import Batch, BatchRow, SampleSet
from dart_train.grounding.config import PointRewardConfig
from dart_train.grounding.fit import HeadTrainer, load_start_model
from dart_train.grounding.supervised import Progress, run_training
from dart_train.objectives.advantages import group_advantages
from dart_train.trainer.ranks import Ranks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dart_agent.grounding.forward import ForwardOutput


SeededRow = tuple[int, BatchRow]
"""The seed of the points that are sampled on an image, and the image with its samples."""


def train_by_reward(
    config: PointRewardConfig,
    on_progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
    ranks: Ranks | None = None,
) -> None:
    """Train a model and write it to `config.out_dir`.

    Args:
        config: The configuration.
        on_progress: Called with every metric line; `reward` is the mean over sampled points.
        clock: Measures the duration.
        ranks: The processes that train together; None: this one alone.

    Raises:
        ConfigError: The samples cannot be used.
        ModelNotFoundError: The start model cannot be loaded.
        FileExistsError: `out_dir` exists already.
    """

    def trainer_of(samples: SampleSet, ranks: Ranks) -> PointRewardTrainer:
        return PointRewardTrainer(config, samples, load_start_model(config), ranks)

    run_training(trainer_of, config, "grounding_reward", on_progress, clock, ranks)


class PointRewardTrainer(HeadTrainer[SeededRow, PointRewardConfig]):
    """A model with its optimiser, trained by reward.

    Args:
        config: The configuration.
        samples: What is asked.
        model: The model; it is set up for training in place.
        ranks: The processes that train together.
    """

    def rows(self, number: int) -> list[SeededRow]:
        """The images of an update, each with the seed of the points that are sampled on it, whichever process samples them."""
        seed = self.config.seed * 1_000_003 + number
        return [(seed + image * 1_000_000_007, row) for image, row in enumerate(self.batch(number))]

    def losses(self, rows: list[SeededRow], batch: list[SeededRow]) -> dict[str, Tensor]:
        """The policy's loss, the entropy and the mean reward; see `SupervisedTrainer.losses`."""
        import torch

        from dart_train.grounding.losses import mean_loss, share

        targets_Q = [len(sample.targets) for _, (_, asked) in batch for sample in asked if not sample.is_refusal]
        seeds, images = [seed for seed, _ in rows], [row for _, row in rows]
        with self.precision():
            _, output = self.forward(images)
        # The head has the precision of its weights, as where it points.
        losses, entropies, rewards = self._play(images, output, torch.Generator(self.model.device), seeds)
        part = share(len(losses), len(targets_Q))
        return {
            "policy_loss": mean_loss(losses, output.hidden_BTD) * part,
            "entropy": mean_loss(entropies, output.hidden_BTD) * share(len(entropies), sum(targets_Q)),
            "reward": mean_loss(rewards, output.hidden_BTD) * part,
        }

    def _play(
        self, rows: Batch, output: ForwardOutput, generator: torch.Generator, seeds: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Sample a group for each question with a target: its loss and mean reward, and the entropy of each target."""
        import torch

        from dart_agent.grounding.pointing import PointDistribution

        config = self.config
        losses, entropies, rewards = [], [], []
        for row, (_, samples), seed in zip(output.questions, rows, seeds, strict=True):
            generator.manual_seed(seed)
            for found, sample in zip(row, samples, strict=True):
                if sample.is_refusal:
                    continue
                targets = [
                    PointDistribution.of_head(self.model.head, found, index, config.temperature)
                    for index in range(len(sample.targets))
                ]
                group = [[target.sample(generator) for target in targets] for _ in range(config.group)]
                hits = [
                    float(
                        is_hit(sample, [target.point(choice) for target, choice in zip(targets, choices, strict=True)])
                    )
                    for choices in group
                ]
                logprobs = [
                    torch.stack([target.logprob(choice) for target, choice in zip(targets, choices, strict=True)]).sum()
                    for choices in group
                ]
                advantages = torch.from_numpy(group_advantages(hits, config.advantage)).to(found.logits_KM)
                losses.append(-(advantages * torch.stack(logprobs)).mean())
                entropies += [target.entropy() for target in targets]
                rewards.append(torch.tensor(hits, device=found.logits_KM.device).mean())
        return losses, entropies, rewards

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The policy's loss with the entropy bonus."""
        return losses["policy_loss"] - self.config.entropy_weight * losses["entropy"]
