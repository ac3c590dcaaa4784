"""The recipe's sections `tasks` and `demos`: what is trained and evaluated, and the demonstrations of it.

Role: the schema of both. Non-goals: loading tasks (`dart_envs`).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel
from dart_agent.task_suites import SUITE_NAME, TaskFolderSettings
from dart_train.imitation.settings import Thoughts


class FamilyLimitSection(StrictModel):
    """What an episode of one family may use; None: as the recipe says for all.

    Attributes:
        max_steps: Step limit; at most `tasks.max_steps`.
        max_episode_tokens: Most sampled tokens.
        max_episode_s: Longest episode, in seconds after its first screenshot.
        loop_repeats: So many times may an action be taken on the same screen with no other one in between.
    """

    max_steps: int | None = Field(default=None, ge=1)
    max_episode_tokens: int | None = Field(default=None, ge=1)
    max_episode_s: float | None = Field(default=None, gt=0)
    loop_repeats: int | None = Field(default=None, ge=2)


class TaskSection(StrictModel):
    """What is trained and evaluated.

    Attributes:
        suite: Name of the task suite; with `folder`, the name that its tasks get.
        folder: Folder of task files in OSWorld's form, such as OSWorld's `evaluation_examples/examples`; its sub-folders are the families.
            None: an installed suite.
        index: JSON file that names the tasks of each family, as OSWorld's `test_all.json` does; `dart-envs tasks index` writes one of those
            that can run here. None: all files of `folder`.
        web: Whether the desktops of the farm reach the live web, which some tasks of `folder` need; otherwise such tasks are refused.
        families: Families of the suite.
        train_variations: So many variations of each family are trained on, the same for the whole run, so that tasks are run again and the
            experience pool has successes of theirs; none: all of the train split.
        held_out_families: Families that the test evaluates and nothing is trained on; none: those that the suite marks.
        max_steps: Step limit of an episode; a task that states its own `max_steps` can only lower it.
        limits: Limits of single families, in place of `max_steps` and of those of the section `rollout`: `[tasks.limits.FAMILY]`.
    """

    suite: str = Field(default="basics", pattern=SUITE_NAME)
    folder: Path | None = None
    index: Path | None = None
    web: bool = False
    families: tuple[str, ...] = Field(min_length=1)
    train_variations: int | None = Field(default=None, ge=1)
    held_out_families: tuple[str, ...] | None = None
    max_steps: int = Field(default=3, ge=1, le=200)
    limits: dict[str, FamilyLimitSection] = Field(default_factory=dict)

    @property
    def task_folder(self) -> TaskFolderSettings | None:
        """The folder as components are told of it, None where the suite is an installed one."""
        if self.folder is None:
            return None
        index = None if self.index is None else self.index.expanduser().resolve()
        return TaskFolderSettings(name=self.suite, folder=self.folder.expanduser().resolve(), index=index)

    @model_validator(mode="after")
    def _index_is_one_of_files(self) -> TaskSection:
        if self.index is not None and self.folder is None:
            raise ValueError("tasks.index names files of tasks.folder: set tasks.folder with it, or leave it out")
        return self

    @model_validator(mode="after")
    def _held_out_is_not_trained(self) -> TaskSection:
        both = sorted(set(self.families) & set(self.held_out_families or ()))
        if both:
            raise ValueError(
                f"tasks.held_out_families and tasks.families both name {', '.join(both)}: leave them out of one"
            )
        return self

    @model_validator(mode="after")
    def _limits_fit(self) -> TaskSection:
        for family, own in self.limits.items():
            if family not in self.families:
                raise ValueError(f"tasks.limits names {family!r}, which is not in tasks.families")
            if own.max_steps is not None and own.max_steps > self.max_steps:
                raise ValueError(
                    f"tasks.limits.{family}.max_steps is {own.max_steps}, more than tasks.max_steps = {self.max_steps}: raise "
                    "tasks.max_steps, and lower it for the other families"
                )
        return self


class DemoSection(StrictModel):
    """Demonstrations: of the oracle, collected on the desktops from the train split, and your own.

    Attributes:
        per_family: Demonstrations of the oracle per family, collected where there is a warm start.
        path: Folder of recorded demonstrations (`dart-envs demos record`), at any depth, of tasks of the train split; `dart-train sft` and
            the imitation term (`train.sft_coefficient`) learn from them. None: there are none.
        thoughts: `instruction`: the thought of a demonstrated answer is what the instruction calls the element that it clicks, as the warm
            start teaches it, and the element's own name where the suite has no names for elements; `target`: always its own name, which
            has to be read from the screen; `none`: answers have no thought.
    """

    per_family: int = Field(default=64, ge=0)
    path: Path | None = None
    thoughts: Thoughts = "instruction"
