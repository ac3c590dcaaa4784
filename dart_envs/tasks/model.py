"""The task: frozen, checked when it is loaded, identified by the hash of its content.

Role: OSWorld's JSON shape as pydantic models, with our own fields beside it. Rule: unknown fields and bad values are
`TaskError`s that name file and field; nothing here touches a desktop except through `prepare`, `evaluate` and
`oracle`. Non-goals: where tasks come from (`dart_envs.tasks.loader`, `dart_envs.tasks.suite`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from dart_envs import evaluators
from dart_envs.errors import EvaluatorError, TaskError
from dart_envs.setup import NETWORK_STEPS, check_parameters, run_steps
from dart_envs.setup.params import UploadFileParameters
from dart_envs.tasks import requirements
from dart_envs.tasks.script import TARGET_TIMEOUT_S, ActionTemplate, ScriptAction, resolve_actions
from dart_envs.types import Action, DecodedAction, Desktop, EndReason, Outcome
from dart_server.wire import EARLIEST_CLOCK, LATEST_CLOCK, DesktopShape

NOT_HASHED = frozenset({"oracle", "near_miss", "exploits", "origin", "split"})
"""Teaching aids and bookkeeping: changing them does not make another task."""


class Split(StrEnum):
    """What a task may be used for."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class TaskModel(BaseModel):
    """Base: unknown fields are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SetupStep(TaskModel):
    """One setup step; its parameters are checked by type.

    Attributes:
        type: Name of the step, such as `launch` or `write_file`.
        parameters: Its parameters; which there are depends on the type.
    """

    type: str
    parameters: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_parameters(self.type, self.parameters)
        return self


ConfigMapping = Mapping[str, Any]


class Scoring(StrEnum):
    """What judges a task at the end of an episode."""

    EVALUATOR = "evaluator"
    """Its evaluator."""
    CHECKPOINTS = "checkpoints"
    """Its evaluator, and where that is not fully satisfied, its checkpoints for partial credit."""
    NONE = "none"
    """Nothing on the desktop: the verdict is made elsewhere, and `evaluate` returns 0 for it."""


class Evaluator(TaskModel):
    """OSWorld's evaluator: one function, or parallel lists of functions joined by `conj`.

    Attributes:
        func: Name of a metric, or of several; `infeasible` for a task that cannot be done.
        result: The getter that reads what is there (`type` and its parameters); with several functions a list, one for each.
        expected: The getter or the rule that says what is right, in the same form.
        options: Options of the metric, in the same form.
        conj: How the scores of several functions are joined: `and`, all of them must be right; `or`, one of them.
        postconfig: Setup steps that run before anything is read: the post-configuration.
        config_note: A note for readers; nothing uses it.
    """

    func: str | tuple[str, ...] = Field(min_length=1)
    result: ConfigMapping | tuple[ConfigMapping | None, ...] | None = None
    expected: ConfigMapping | tuple[ConfigMapping | None, ...] | None = None
    options: ConfigMapping | tuple[ConfigMapping | None, ...] | None = None
    conj: Literal["and", "or"] = "and"
    postconfig: tuple[SetupStep, ...] = ()
    config_note: str | None = Field(default=None, alias="_config_note")

    @field_validator("result", "expected")
    @classmethod
    def _check_getter_types(cls, value: Any) -> Any:
        for config in value if isinstance(value, tuple) else (value,):
            if config and not isinstance(config.get("type"), str):
                raise ValueError("a getter needs a text field 'type'")
        return value

    @model_validator(mode="after")
    def _check_list_lengths(self) -> Self:
        count = len(self.functions)
        for name, value in (("result", self.result), ("expected", self.expected), ("options", self.options)):
            if isinstance(value, tuple) and len(value) != count:
                raise ValueError(f"{name} has {len(value)} entries for {count} functions")
            if isinstance(self.func, tuple) and isinstance(value, Mapping) and value and count > 1:
                raise ValueError(f"{name} must be a list, one entry per function")
        return self

    @cached_property
    def functions(self) -> tuple[str, ...]:
        return (self.func,) if isinstance(self.func, str) else self.func

    def _per_function(
        self, value: ConfigMapping | tuple[ConfigMapping | None, ...] | None
    ) -> tuple[ConfigMapping | None, ...]:
        listed = value if isinstance(value, tuple) else (value,) * len(self.functions)
        return tuple(config or None for config in listed)

    @cached_property
    def result_configs(self) -> tuple[ConfigMapping | None, ...]:
        return self._per_function(self.result)

    @cached_property
    def expected_configs(self) -> tuple[ConfigMapping | None, ...]:
        return self._per_function(self.expected)

    @cached_property
    def metric_options(self) -> tuple[ConfigMapping, ...]:
        return tuple(options or {} for options in self._per_function(self.options))


class Checkpoint(TaskModel):
    """A part of a task that earns credit by itself.

    Attributes:
        evaluator: What judges the part.
        weight: Its weight beside that of the task's own evaluator, which is 1.
        name: Name for reports.
    """

    evaluator: Evaluator
    weight: float = Field(default=1.0, gt=0, le=1000)
    name: str = Field(default="", max_length=200)


class Task(TaskModel):
    """One task. Fields up to `env_may_change` are OSWorld's, the rest is ours.

    Attributes:
        id: Identity of the task; in a suite `suite/family/variation`.
        instruction: What the policy is asked to do.
        config: Setup steps that prepare the desktop before the episode, in order.
        evaluator: What judges the episode at its end; left out where only a program or a judge model can say how it went
            (`dart_agent.rewards`).
        snapshot: OSWorld's name of the virtual machine's snapshot; nothing uses it here.
        source: Where the task comes from, as addresses or words; for readers.
        trajectory: OSWorld's folder of a recorded solution; nothing uses it here.
        related_apps: Applications that the task needs; an image that lacks one is refused.
        proxy: OSWorld's mark of a task whose web sites need a proxy; nothing uses it here.
        fixed_ip: OSWorld's mark of a task that needs a fixed network address; nothing uses it here.
        possibility_of_env_change: OSWorld's word for how likely the task changes with the live web; nothing uses it here.
        hint: OSWorld's hint for readers; the policy does not see it.
        env_may_change: OSWorld's mark of a task that changes with the live web; nothing uses it here.
        suite: The suite that the task belongs to; `file` for a task file in OSWorld's form.
        family: The family that generated it.
        variation: Its number in the family.
        split: What the task may be used for.
        max_steps: Actions that one episode may take. Where it is not given, a rollout of a run has the limit of the run.
        publish_setup: False where the setup is so quick that a snapshot per task is not worth its bytes: the desktop is restored to its
            booted state and set up anew each time.
        image: The desktop image that the task is made for.
        min_resolution: Smallest screen (width, height in pixels) that `prepare` accepts.
        starts_at: The desktop's time of day when the setup begins (see `dart_envs.types.SupportsClock`); None: the real one.
        checkpoints: What earns partial credit where such credit is asked for (`scored`), and nothing otherwise.
        oracle_script: Script that solves the task; only for checks and demonstrations.
        near_miss_script: Script that almost solves it and must score 0; only for checks.
        exploit_scripts: Scripts that only look as if they solved it and must score 0; only for checks.
        origin: The file that the task was read from; not part of a task file.
    """

    id: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")
    instruction: str = Field(min_length=1)
    config: tuple[SetupStep, ...] = ()
    evaluator: Evaluator = Evaluator(func=evaluators.NO_EVALUATOR)
    snapshot: str = ""
    source: str | tuple[str, ...] = ""
    trajectory: str = ""
    related_apps: tuple[str, ...] = ()
    proxy: bool = False
    fixed_ip: bool = False
    possibility_of_env_change: str = "low"
    hint: str | None = None
    env_may_change: bool = False

    suite: str = "file"
    family: str = ""
    variation: int = Field(default=0, ge=0)
    split: Split = Split.TEST
    max_steps: int = Field(default=15, ge=1, le=500)
    publish_setup: bool = True
    image: str = "basic"
    min_resolution: tuple[int, int] = (640, 400)
    starts_at: AwareDatetime | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    oracle_script: tuple[ActionTemplate, ...] = Field(default=(), alias="oracle")
    near_miss_script: tuple[ActionTemplate, ...] = Field(default=(), alias="near_miss")
    exploit_scripts: tuple[tuple[ActionTemplate, ...], ...] = Field(default=(), alias="exploits")
    origin: Path | None = Field(default=None, exclude=True)
    _scoring: Scoring = PrivateAttr(default=Scoring.EVALUATOR)

    @field_validator("config", mode="before")
    @classmethod
    def _config(cls, value: Any) -> Any:
        return () if value is None else value

    @field_validator("starts_at")
    @classmethod
    def _starts_at(cls, value: datetime | None) -> datetime | None:
        if value is not None and not EARLIEST_CLOCK <= value <= LATEST_CLOCK:
            raise ValueError(f"a desktop's clock goes from {EARLIEST_CLOCK:%Y-%m-%d} to {LATEST_CLOCK:%Y-%m-%d}")
        return value

    @model_validator(mode="after")
    def _checkpoints_have_an_end(self) -> Self:
        if self.checkpoints and not self.has_evaluator:
            raise ValueError("checkpoints earn partial credit beside an evaluator: give the task an evaluator, too")
        return self

    @property
    def has_evaluator(self) -> bool:
        """Whether the task says how it is judged."""
        return evaluators.NO_EVALUATOR not in self.evaluator.functions

    @property
    def scoring(self) -> Scoring:
        """What judges it at the end of an episode."""
        return self._scoring

    def scored(self, scoring: Scoring) -> Self:
        """Return the same task, judged in a certain way."""
        task = self.model_copy()
        task._scoring = scoring
        return task

    @property
    def active_evaluators(self) -> tuple[Evaluator, ...]:
        """What judges it on its desktop."""
        if self.scoring is Scoring.NONE:
            return ()
        parts = self.checkpoints if self.scoring is Scoring.CHECKPOINTS else ()
        return (self.evaluator, *(part.evaluator for part in parts))

    @cached_property
    def content_hash(self) -> str:
        """sha256 (hex) over everything that makes this task what it is."""
        content = self.model_dump(mode="json", by_alias=True, exclude={"origin"})
        if self.starts_at is None:
            del content["starts_at"]
        if not self.checkpoints:
            del content["checkpoints"]
        return _digest({key: value for key, value in content.items() if key not in NOT_HASHED})

    @property
    def is_osworld_task(self) -> bool:
        """Whether the task came as a file in OSWorld's form, without a suite of its own."""
        return self.suite == "file"

    @property
    def unsupported(self) -> tuple[str, ...]:
        """What this task needs that neither the builtin metrics nor OSWorld's scorer have, in words; empty when it can run."""
        judging = self.active_evaluators
        later = (step for evaluator in judging for step in evaluator.postconfig)
        steps = {step.type for step in (*self.config, *later)} & NETWORK_STEPS
        parts = dict.fromkeys(part for evaluator in judging for part in evaluators.unsupported_parts(evaluator))
        return (*(f"setup step {name!r}" for name in sorted(steps)), *parts)

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        """Identity of the prepared state (64 hex digits): image, screen, font size, steps, the files they bring along, and
        a declared clock.
        """
        return _digest(
            {
                "image_digest": image_digest,
                "resolution": list(shape.resolution),
                "font_size": shape.font_size,
                "setup": [step.model_dump(mode="json") for step in self.config],
                "assets": self._asset_digests(),
                **({"starts_at": self.starts_at.timestamp()} if self.starts_at is not None else {}),
            }
        )

    def check_runnable(self, resolution: tuple[int, int]) -> None:
        """Raise TaskError where the task needs what is not there, or a larger screen (width, height in pixels)."""
        if self.unsupported:
            raise TaskError(f"Task {self.id} cannot run: no {', no '.join(self.unsupported)}.")
        for evaluator in self.active_evaluators:
            if evaluators.INFEASIBLE in evaluator.functions:
                continue
            try:
                evaluators.choose_scorer(
                    evaluator, evaluators.parse_scorer(None), osworld_semantics=self.is_osworld_task
                )
            except EvaluatorError as error:
                raise TaskError(f"Task {self.id} cannot be judged: {error}") from error
        (width, height), (least_width, least_height) = resolution, self.min_resolution
        if width < least_width or height < least_height:
            raise TaskError(
                f"Task {self.id} needs a screen of at least {least_width}x{least_height} pixels, not {width}x{height}."
            )

    async def check_requirements(self, shape: DesktopShape, *, local_images: bool) -> None:
        """Raise TaskError or AssetError where a desktop of this shape would be leased in vain; fetches files that are missing."""
        await requirements.check_requirements(self, shape, local_images=local_images)

    async def prepare(self, desktop: Desktop) -> None:
        """Run the setup on a freshly booted desktop.

        Raises SetupError; TaskError where the task needs what is not there, or a larger screen.
        """
        self.check_runnable(desktop.resolution)
        await requirements.check_desktop_apps(self, desktop)
        await run_steps(desktop, self.config, assets=self._assets_folder, task_id=self.id)

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None, scorer: str | None = None) -> Outcome:
        """Judge the desktop as it is.

        end: how the episode ended, needed for tasks that cannot be done. scorer: auto, builtin or osworld (None: what `DART_SCORER`
        says).
        """
        if self.scoring is Scoring.NONE:
            return Outcome(0.0, {"scoring": Scoring.NONE.value})
        judge = partial(
            evaluators.evaluate,
            desktop,
            end=end,
            scorer=scorer,
            osworld_semantics=self.is_osworld_task,
            task_id=self.id,
        )
        if self.scoring is Scoring.CHECKPOINTS:
            return await evaluators.evaluate_checkpoints(judge, self.evaluator, self.checkpoints)
        return await judge(self.evaluator)

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> Sequence[Action | DecodedAction]:
        """Actions of the solution from its `step`-th on, as far as the screen shows their targets now.

        Where later targets only appear after earlier actions, perform the first action, then ask again with `step + 1`.
        Raises TaskError when the next target does not appear on the screen within `TARGET_TIMEOUT_S`.
        """
        return [play.action for play in await self.resolve_script(desktop, step=step)]

    async def resolve_script(
        self, desktop: Desktop, *, script: str = "oracle", step: int = 0
    ) -> Sequence[ScriptAction]:
        """Like `oracle`, with the name and the box of each target; also plays the other `scripts`.

        Empty past the script's end.
        """
        moves = self.scripts.get(script)
        if not moves:
            raise TaskError(f"Task {self.id} has no script {script!r}.")
        try:
            return await resolve_actions(desktop, moves[step:], timeout_s=TARGET_TIMEOUT_S)
        except LookupError as error:
            raise TaskError(f"The {script} of task {self.id} is stuck at move {step}: {error}.") from error

    @property
    def scripts(self) -> Mapping[str, tuple[ActionTemplate, ...]]:
        """Those that there are, by name: `oracle`, `near_miss`, `exploit_1`, `exploit_2`, ..."""
        exploits = {f"exploit_{number}": moves for number, moves in enumerate(self.exploit_scripts, start=1)}
        named = {"oracle": self.oracle_script, "near_miss": self.near_miss_script, **exploits}
        return {name: moves for name, moves in named.items() if moves}

    @property
    def _assets_folder(self) -> Path | None:
        return None if self.origin is None else self.origin.parent

    def _asset_digests(self) -> dict[str, str]:
        digests: dict[str, str] = {}
        for step in self.config:
            if step.type != "upload_file":
                continue
            for file in UploadFileParameters.model_validate(dict(step.parameters)).files:
                source = (self._assets_folder or Path()) / file.local_path
                try:
                    digests[file.local_path] = hashlib.sha256(source.read_bytes()).hexdigest()
                except OSError as error:
                    raise TaskError(f"Task {self.id}: cannot read its file {source}: {error.strerror}.") from error
        return digests


def _digest(value: Any) -> str:
    """sha256 over canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def parse_task(data: Any, *, name: str, origin: Path | None = None) -> Task:
    """A Task from parsed JSON. Raises TaskError naming `name` (a file or an id) and the first bad field."""
    if not isinstance(data, Mapping):
        raise TaskError(f"{name}: a task is a JSON object, not {type(data).__name__}.")
    if "origin" in data:
        raise TaskError(f"{name}: field 'origin' is not a field of a task.")
    try:
        return Task.model_validate({**data, "origin": origin})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"] if not _is_branch(part)) or "(the whole task)"
        more = "" if error.error_count() == 1 else f" (and {error.error_count() - 1} more)"
        message = str(first["msg"]).removeprefix("Value error, ").split("\n")
        reason = message[0] if len(message) < 3 else " ".join(part.strip() for part in message[:3])
        raise TaskError(f"{name}: field '{field}': {reason}{more}.") from error


def _is_branch(part: str | int) -> bool:
    """Whether a part of an error's place is pydantic's name of a union branch rather than a field."""
    return isinstance(part, str) and ("[" in part or part in ("str", "function-after"))
