"""Rows of what is imitated, and which of them an optimiser step gets.

Role: `ImitatedRows` holds steps without log-probs, of demonstrations or stored successes, and draws from them. Rule: what a step of the
optimiser gets depends on the seed and on its number alone, so that a resumed training goes on with the same rows; no row is drawn
twice in an epoch, whose last rows, fewer than a draw, are left out. Non-goals: making the steps (`dart_train.imitation`), the loss
(`dart_train.objectives.imitation`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random

from dart_agent.data_client.image_store import BlobStorage, ImageReader, ImageStore
from dart_agent.errors import ConfigError
from dart_train.imitation.demonstrations import DemonstrationsUnusableError
from dart_train.imitation.images import ImagesInOrder
from dart_train.imitation.settings import ImitationSettings
from dart_train.imitation.tokens import ImitatedEpisode, write_demonstrations
from dart_train.model.policy_model import LoadedModel
from dart_train.trainer.batches.rows import StepKey, TrainRow

GROUP = "imitated"
log = logging.getLogger(__name__)


class ImitatedRows:
    """All rows that may be imitated.

    Args:
        episodes: What may be imitated.
        seed: Decides the order.
    """

    def __init__(self, episodes: Sequence[ImitatedEpisode], seed: int) -> None:
        self.rows = [
            TrainRow(
                rollout_id=episode.name,
                group_id=GROUP,
                step=step,
                trainable=(),
                advantage=0.0,
                trajectory_share=0.0,
                imitated=True,
            )
            for episode in episodes
            for step in episode.steps
        ]
        self._seed = seed
        self._left_out: set[StepKey] = set()

    def leave_out(self, rows: Sequence[TrainRow], cause: str) -> None:
        """Draw some rows no more. What is drawn beside them stays the same, so that a resumed training finds the same culprits.

        Args:
            rows: The rows.
            cause: Why, for the log.
        """
        for row in rows:
            log.warning("%s is imitated no more: %s", row.name, cause)
            self._left_out.add(row.key)

    def draw(self, number: int, count: int) -> list[TrainRow]:
        """Draw the rows of an optimiser step.

        Args:
            number: Number of the optimiser step, from 0.
            count: Rows to draw; all of them where there are fewer.

        Returns:
            Different rows; fewer where some are left out.
        """
        count = min(count, len(self.rows))
        epoch, turn = divmod(number, len(self.rows) // count)
        order = list(self.rows)
        Random(f"{self._seed}/imitated/{epoch}").shuffle(order)
        return [row for row in order[turn * count : (turn + 1) * count] if row.key not in self._left_out]


def load_imitated_rows(
    settings: ImitationSettings, loaded: LoadedModel, seed: int, images: BlobStorage
) -> tuple[ImitatedRows, ImageReader]:
    """Write the demonstrations of the imitation term in the policy's words.

    Args:
        settings: Which ones.
        loaded: The policy.
        seed: Decides the order in which they are drawn.
        images: Where the images of all other rows are.

    Returns:
        The rows, and where the images of all rows are.

    Raises:
        ConfigError: They cannot be imitated.
    """
    own = ImageStore(settings.images)
    try:
        written, left_out = write_demonstrations(
            settings, loaded.processor, int(loaded.model.config.image_token_id), own
        )
    except DemonstrationsUnusableError as error:
        raise ConfigError(f"the imitation term has no demonstrations: {error}") from error
    for reason, count in sorted(left_out.items()):
        log.warning("%d demonstrations are not imitated: %s", count, reason)
    return ImitatedRows(written, seed), ImagesInOrder((own, images))
