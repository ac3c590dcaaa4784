"""The simulated trainer: takes the batches that the scheduler issues, withholds what is stale, makes versions.

Role: `SimulatedTrainer`. Rule: which rows are fresh is decided by `dart_train.curation.staleness`; a group in which no row is fresh is
refused, as the data manager does; a version counts as trained once it is published, and in mode `batch` once every worker has it.
Non-goals: when a batch is formed (`dart_train.scheduling`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dart_train.curation.staleness import trainable_ranges
from dart_train.scheduling import events
from dart_train.simulation.episodes import prompt_of
from dart_train.simulation.models import SystemModels
from dart_train.simulation.parts import SimulatedSystem
from dart_train.utilisation import TrainerActivity


def row_tokens(models: SystemModels, max_steps: int) -> list[int]:
    """Count the tokens that the trainer computes for each step of an episode.

    Args:
        models: Prompts and responses, and whether tokens of a prefix are computed once.
        max_steps: Step limit.

    Returns:
        Tokens by step.
    """
    model = models.episode
    shapes = [prompt_of(model, step) for step in range(max_steps)]
    known = [shape.reusable if models.trainer.streams else 0 for shape in shapes]
    return [shape.tokens - reused + round(model.response_tokens) for shape, reused in zip(shapes, known, strict=True)]


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """A stored trajectory with a reward.

    Attributes:
        rollout_id: Its id.
        group_id: Its group.
        ended_s: When it ended.
        rows: Oldest and newest version of each step's tokens.
        steps: Number of its steps.
    """

    rollout_id: str
    group_id: str
    ended_s: float
    rows: tuple[tuple[int, int], ...]
    steps: int


class SimulatedTrainer:
    """Trains, publishes, asks for the next batch.

    Args:
        simulation: The system.

    Attributes:
        version: Version of its weights.
    """

    def __init__(self, simulation: SimulatedSystem) -> None:
        self._simulation = simulation
        self.version = 0
        self._stored: dict[str, list[StoredRollout]] = {}
        self._batch: tuple[str, ...] = ()
        self._busy = False
        self._down = False
        self._asked = False
        self._published = False
        self._epoch = 0
        self._row_tokens = row_tokens(simulation.models, simulation.scenario.max_steps)

    def store(self, rollout: StoredRollout, *, known: bool) -> None:
        """Keep a trajectory for its group.

        Args:
            rollout: The trajectory.
            known: Whether the scheduler has the group: it is open, ready, or with the trainer.
        """
        self._simulation.record.tracker.stored(rollout.rollout_id, rollout.group_id, known=known)
        if known:
            self._stored.setdefault(rollout.group_id, []).append(rollout)

    def drop(self, group_id: str, reason: str | None) -> None:
        """Forget the trajectories of a group that cannot train.

        Args:
            group_id: The group.
            reason: Why.
        """
        rollouts = self._stored.pop(group_id, [])
        self._simulation.record.tracker.dropped(group_id, reason)
        if reason == "stale":
            self._simulation.record.withheld_rows += sum(rollout.steps for rollout in rollouts)

    def ask(self) -> None:
        """Ask for a batch, unless one is being trained on, or the trainer is down, or waits for its next question."""
        if self._busy or self._down or self._asked:
            return
        poll_s = self._simulation.models.trainer.poll_s
        if poll_s:
            self._asked = True
            self._simulation.heap.after(poll_s, self._poll)
        else:
            self._ask_now()

    def take(self, group_ids: tuple[str, ...]) -> None:
        """Begin a train step.

        Args:
            group_ids: The groups of the batch.
        """
        simulation = self._simulation
        refused: dict[str, str] = {}
        trained = withheld = 0
        staleness: list[int] = []
        ended: list[float] = []
        tokens = 0
        bound = simulation.scenario.scheduler.batch.max_staleness
        for group_id in group_ids:
            fresh = 0
            for rollout in self._stored.get(group_id, []):
                for step, (oldest, newest) in enumerate(rollout.rows):
                    spans = [(oldest, 0, 1)] if oldest == newest else [(oldest, 0, 1), (newest, 1, 2)]
                    if trainable_ranges(spans, self.version, bound):
                        fresh += 1
                        tokens += self._row_tokens[min(step, len(self._row_tokens) - 1)]
                        staleness.append(self.version - newest)
                    else:
                        withheld += 1
                ended.append(rollout.ended_s)
            trained += fresh
            if not fresh:
                refused[group_id] = "stale"
        if refused:
            simulation.decide(events.BatchRefused(simulation.heap.now_s, refused))
            self.ask()
            return
        simulation.record.tracker.taken(group_ids)
        self._batch = group_ids
        self._busy = True
        self._epoch += 1
        model = simulation.models.trainer
        simulation.record.trainer.change("trainer", TrainerActivity.TRAINING)
        facts = (self._epoch, trained, withheld, staleness, ended)
        simulation.heap.after(model.update_s + tokens / model.tokens_per_s, self._trained, facts)

    def lose(self, _: object) -> None:
        """Fail: the train step is lost, and begins again after the repair."""
        simulation = self._simulation
        self._down = True
        self._busy = False
        self._epoch += 1
        simulation.record.trainer.change("trainer", TrainerActivity.WAITING)
        simulation.heap.after(simulation.models.faults.trainer_repair_s, self._come_back)

    def workers_updated(self) -> None:
        """All workers have the newest version: where the next batch waits for them, the train step is over now."""
        if self._simulation.waits_for_workers and self._busy and self._published:
            self._finish()

    def _come_back(self, _: object) -> None:
        self._down = False
        self.ask()

    def _poll(self, _: object) -> None:
        self._asked = False
        if not self._busy and not self._down:
            self._ask_now()

    def _ask_now(self) -> None:
        simulation = self._simulation
        simulation.decide(events.BatchAsked(simulation.heap.now_s, self.version))

    def _trained(self, facts: tuple[int, int, int, list[int], list[float]]) -> None:
        epoch, trained, withheld, staleness, ended = facts
        if epoch != self._epoch:
            return
        simulation = self._simulation
        now_s = simulation.heap.now_s
        simulation.record.trainer.change("trainer", TrainerActivity.PUBLISHING)
        model = simulation.models.publish
        delay_s = model.publish_s + model.publish_s_per_gib * model.weights_gib
        lags_s = [now_s - each for each in ended]
        simulation.heap.after(delay_s, self._publish, (epoch, trained, withheld, staleness, lags_s))

    def _publish(self, facts: tuple[int, int, int, list[int], list[float]]) -> None:
        epoch, trained, withheld, staleness, lags_s = facts
        if epoch != self._epoch:
            return
        simulation = self._simulation
        simulation.record.updated(trained, withheld, staleness, lags_s, self._batch)
        self.version += 1
        simulation.record.trainer.change("trainer", TrainerActivity.WAITING)
        self._published = True
        simulation.decide(events.PolicyPublished(simulation.heap.now_s, self.version))
        simulation.publish(self.version)
        if not simulation.waits_for_workers:
            self._finish()

    def _finish(self) -> None:
        simulation = self._simulation
        self._busy = False
        self._published = False
        simulation.record.tracker.trained(self._batch)
        for group_id in self._batch:
            self._stored.pop(group_id, None)
        simulation.decide(events.BatchDone(simulation.heap.now_s, self.version))
        self.ask()
