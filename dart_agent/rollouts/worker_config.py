"""Configuration file of a rollout worker: `python -m dart_agent.rollouts.worker --config FILE`.

Role: one schema, shared with whoever writes the file. Rule: unknown keys and settings that disagree are errors before anything starts;
imports no heavy library. Non-goals: what to run (the data manager hands out work).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from dart_agent.chat_api.policy_endpoint import PolicyEndpointSettings, declare_tool
from dart_agent.data_client.address import DataManagerAddress
from dart_agent.errors import ConfigError
from dart_agent.grounding.acting.settings import PointerSettings, check_pointer, tell_of_targets
from dart_agent.prompts.builder import PromptSpec
from dart_agent.prompts.settings import PromptSettings
from dart_agent.rewards.settings import RewardSettings
from dart_agent.rollouts.episode import EpisodeSettings, OnParseError
from dart_agent.rollouts.limits import EpisodeLimits, FamilyLimits
from dart_agent.strict_model import StrictModel, format_validation_error
from dart_agent.task_suites import TaskFolderSettings
from dart_server.wire import DesktopShape, SettleSpec

ACTION_TIMEOUT_S = 10.0
"""A worker that is told to end waits so long for a running action, so that its step is stored and the episode goes on elsewhere."""
PARK_TIMEOUT_S = 20.0
"""Limit of parking an episode for a worker that ends. One that goes on waits as long as the clients of its farm and of its source do."""
ABANDON_TIMEOUT_S = 5.0
"""Limit of giving a rollout back for a worker that ends. One that goes on waits as long as the client of its source does."""
DISCARD_TIMEOUT_S = 2.5
"""Limit of asking the data manager whether it names a snapshot, and of deleting one that it does not name."""
STOP_TIMEOUT_S = ACTION_TIMEOUT_S + PARK_TIMEOUT_S + ABANDON_TIMEOUT_S + 2 * DISCARD_TIMEOUT_S
"""So long after it was told to end, a worker has left all its rollouts; then it gives its desktops back."""

PolicyKind = Literal["vllm", "endpoint", "oracle", "random", "blank", "transformers"]


class PartialSettings(StrictModel):
    """Partial rollouts: steps are stored as they happen, and unfinished episodes are continued.

    enabled: False: an episode that does not end here leaves nothing and is played anew. park: what a parked episode's desktop becomes: a
    snapshot, or a lease that is kept for its TTL.
    """

    enabled: bool = False
    park: Literal["snapshot", "lease"] = "snapshot"


class WorkerConfig(PromptSettings, DataManagerAddress):
    """One rollout worker: how many desktops, which policy, where results go.

    name: stable across restarts; what an earlier worker of this name still held is handed out again at once. addresses: file with the
    inference workers' places (policies `vllm` and `blank`). endpoint: where the model is (policy `endpoint`). images: directory or URL of
    the image store. screens: where annotated screens of demonstrations go (policy `oracle` only). farm_url: None: DART_FARM_URL or the
    embedded farm. on_parse_error, parse_retries: what an answer that performs nothing leads to. limits: what an episode may use beside its
    turns. reward: where rewards come from. task_folder: folder of task files that is a suite in this run. family_limits: by family, in
    place of `limits`. partial: whether unfinished episodes are kept. pointer: finds the targets that the policy describes (policies
    `vllm`, `endpoint`, and `transformers`, where its backbone is the policy). folder: has the folders `rejected` and `acting` with refused
    trajectories and marks of actions under way; None: beside `images`.
    """

    name: str = Field(default="rollout-0", min_length=1, max_length=128)
    policy: PolicyKind
    desktops: int = Field(default=4, ge=1, le=256)
    shape: DesktopShape = DesktopShape()
    settle: SettleSpec = SettleSpec(quiet_ms=100, cap_ms=2_000)
    farm_url: str | None = None
    images: Path | str
    folder: Path | None = None
    addresses: Path | None = None
    endpoint: PolicyEndpointSettings | None = None
    pointer: PointerSettings | None = None
    screens: Path | None = None
    metrics: Path | None = None
    on_parse_error: OnParseError = OnParseError.NO_ACTION
    parse_retries: int = Field(default=2, ge=1, le=16)
    limits: EpisodeLimits = EpisodeLimits()
    reward: RewardSettings = RewardSettings()
    family_limits: dict[str, FamilyLimits] = Field(default_factory=dict)
    task_folder: TaskFolderSettings | None = None
    partial: PartialSettings = PartialSettings()
    seed: int = 0
    idle_poll_s: float = Field(default=0.2, gt=0)
    heartbeat_s: float = Field(default=10.0, gt=0)

    @property
    def prompt_spec(self) -> PromptSpec:
        """How its prompts look; with a pointer, they say that targets may be described, with a vendor's API, they declare its tool."""
        spec = declare_tool(super().prompt_spec, self.endpoint)
        return spec if self.pointer is None else tell_of_targets(spec)

    @property
    def local_folder(self) -> Path:
        """Where what only this worker needs is kept."""
        return Path(self.images).parent if self.folder is None else self.folder

    @property
    def episode_settings(self) -> EpisodeSettings:
        """How its episodes run."""
        return EpisodeSettings(on_parse_error=self.on_parse_error, parse_retries=self.parse_retries, limits=self.limits)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.folder is None and "://" in str(self.images):
            raise ValueError("`images` is a URL, so give `folder`, a directory of this host")
        if self.policy in ("vllm", "blank") and self.addresses is None:
            raise ValueError(f"policy {self.policy} needs `addresses`, the file that names the inference workers")
        if (self.policy == "endpoint") != (self.endpoint is not None):
            raise ValueError("policy endpoint needs `endpoint`, where the model is, and no other policy has it")
        check_pointer(self.policy, self.pointer, super().prompt_spec)
        declare_tool(super().prompt_spec, self.endpoint)
        if self.policy != "oracle" and self.screens is not None:
            raise ValueError(
                "`screens` is for the policy oracle only: no other episode may look at the accessibility tree"
            )
        return self


def load_worker_config(path: Path) -> WorkerConfig:
    """Read the file. Raises ConfigError with the key's path."""
    try:
        return WorkerConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {format_validation_error(error)}") from error
