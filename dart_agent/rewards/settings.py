"""Which source gives which episodes their rewards, and how programs and judge models are asked.

Role: the schema, shared by recipe and rollout worker. Rule: a source has its table, and a table has a source that uses it; imports no heavy
library. Non-goals: asking (`program`, `judge`).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from dart_agent.chat_api.endpoint_policy import EndpointSettings
from dart_agent.strict_model import StrictModel
from dart_agent.types import Purpose, RewardKind
from dart_envs.success import SUCCESS_AT

_INTERPRETER = re.compile(r"(python|node|ruby|perl|ba|z)?(sh)?[\d.]*")
"""Programs whose first argument names the program."""


class ProgramSettings(StrictModel):
    """A user's program that says what an episode is worth (`dart_agent.rewards.program`).

    Attributes:
        argv: The program and its arguments; no shell reads them.
        timeout_s: Seconds until it is killed.
        screenshots: Latest different screens that it is given as PNG; 0: none.
    """

    argv: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=60.0, gt=0)
    screenshots: int = Field(default=0, ge=0, le=16)

    @property
    def identity(self) -> str:
        """The program's name and a digest of `argv`, which tells programs apart and gives no path or argument away."""
        names = [Path(part).name for part in self.argv]
        named_by_interpreter = len(names) > 1 and _INTERPRETER.fullmatch(names[0]) and not names[1].startswith("-")
        digest = hashlib.sha256("\0".join(self.argv).encode()).hexdigest()
        return f"{names[1] if named_by_interpreter else names[0]} (argv sha256 {digest[:12]})"


class JudgeSettings(EndpointSettings):
    """A judge model behind an OpenAI-compatible endpoint (`dart_agent.rewards.judge`).

    Attributes:
        base_url: Such as `https://host/v1`.
        model: Its name there.
        api_key_variable: Name of the environment variable that holds the key; None: no key is sent.
        attempt_timeout_s: Seconds of one request.
        deadline_s: Seconds for all attempts at one verdict.
        max_attempts: Requests for one verdict, where the endpoint fails.
        screenshots: Latest different screens that it sees; the final one is always among them.
        max_tokens: Longest answer, in tokens.
    """

    screenshots: int = Field(default=3, ge=1, le=16)
    max_tokens: int = Field(default=1024, ge=16)


class RewardSettings(StrictModel):
    """Where rewards come from.

    Attributes:
        source: What rewards training rollouts: `evaluator`, the task's own; `checkpoints`, the same with partial credit for the task's
            checkpoints; `program`, a program of yours; `judge`, a model that looks at the last screenshots.
        evaluation: What judges evaluations and demonstrations, by the same names; one source for all of them.
        success_at: Least reward of a success, in every rate, in curation and in reports.
        program: The program of the source `program`.
        judge: The model of the source `judge`.
    """

    source: RewardKind = RewardKind.EVALUATOR
    evaluation: RewardKind = RewardKind.EVALUATOR
    success_at: float = Field(default=SUCCESS_AT, gt=0, le=1)
    program: ProgramSettings | None = None
    judge: JudgeSettings | None = None

    @model_validator(mode="after")
    def _sources_have_their_tables(self) -> Self:
        used = {self.source, self.evaluation}
        for kind, table in ((RewardKind.PROGRAM, self.program), (RewardKind.JUDGE, self.judge)):
            if kind in used and table is None:
                example = 'argv = ["/path/to/program"]' if kind is RewardKind.PROGRAM else "base_url and model"
                raise ValueError(f"the source {kind.value!r} needs the table [reward.{kind.value}] with {example}")
            if table is not None and kind not in used:
                raise ValueError(
                    f"the table [reward.{kind.value}] is used by nothing: set source or evaluation to {kind.value!r}, or leave it out"
                )
        return self

    def kind_for(self, purpose: Purpose) -> RewardKind:
        """Return what judges episodes of a purpose.

        Args:
            purpose: The purpose.
        """
        return self.source if purpose is Purpose.TRAIN else self.evaluation

    def described(self, kind: RewardKind) -> dict[str, Any]:
        """Describe a source for a record: what two rewards must share to be compared.

        Args:
            kind: The source.

        Returns:
            Its name, with the model of a judge or the identity of a program.
        """
        by = None
        if kind is RewardKind.JUDGE and self.judge is not None:
            by = self.judge.model
        elif kind is RewardKind.PROGRAM and self.program is not None:
            by = self.program.identity
        return {"reward_source": kind.value, "reward_by": by, "success_at": self.success_at}
