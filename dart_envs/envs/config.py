"""Configuration of the environments: one set of options, defaults and checks for all of them.

`EpisodeConfig` describes how episodes run on one leased desktop; `AsyncDesktopEnv` takes it. `EnvConfig` adds what the
Gymnasium environments need: which tasks, which desktop, which farm, which action space. Both are checked when they are
made, before a desktop is leased. This module does not load tasks (`dart_envs.envs.task_sources`) and does not connect to a farm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Self, TypedDict, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from dart_envs.action_spaces import ActionSpaceLike
from dart_envs.envs.evaluation_target import EvaluateOn, parse_evaluate_on
from dart_envs.envs.task_sources import DEFAULT_IMAGE, TaskSelection
from dart_envs.errors import ActionError
from dart_envs.evaluators.scorer_choice import parse_scorer
from dart_envs.farm.base import FarmLike
from dart_envs.farm.transport import parse_address
from dart_envs.observations.views import ObservationSpec, ObservationSpecLike, make_observation_spec
from dart_server.wire import DesktopShape, SettleSpec

_M = TypeVar("_M", bound=BaseModel)

DEFAULT_SETTLE = SettleSpec(quiet_ms=100, cap_ms=2_000)
DEFAULT_OBSERVATION = ObservationSpec()
ON_ACTION_ERROR = ("raise", "noop", "penalty")


class EpisodeOptions(TypedDict, total=False):
    """Types of the keyword arguments from which an `EpisodeConfig` is built, which also documents them."""

    max_steps: int | None
    settle: SettleSpec | Mapping[str, int] | None
    observation: ObservationSpecLike
    labels: Mapping[str, str] | None
    evaluate_on: EvaluateOn | str
    scorer: str | None
    ttl_s: float
    wait_s: float
    setup_wait_s: float
    evaluate_timeout_s: float


class EnvOptions(EpisodeOptions, total=False):
    """Types of the keyword arguments from which an `EnvConfig` is built, except `task`; `EnvConfig` documents them."""

    split: str | None
    resolution: tuple[int, int] | None
    font_size: int | None
    image: str | None
    farm: str | FarmLike | None
    action_space: ActionSpaceLike
    on_action_error: str
    action_error_penalty: float


@dataclass(frozen=True, kw_only=True)
class EpisodeConfig:
    """How episodes run on one leased desktop.

    Every field also takes the looser forms of `EpisodeOptions` (names, mappings), which are converted when the config is made.

    Attributes:
        max_steps: Step budget of an episode; None keeps the budget of each task.
        settle: How long the screen must be quiet before it is observed, as a `SettleSpec` or its fields (milliseconds);
            None is the default.
        observation: What an observation holds, as an `ObservationSpec`, its fields, or names of parts: `screenshot`, and optionally one of
            `a11y`, `a11y_xml` and `a11y_table`, `terminal`, and `marks`.
        labels: Labels of the leases, which the farm shows in its list of leases.
        evaluate_on: What the end of an episode is judged on: `desktop` (the episode's own) or `copy` (a fork of it).
        scorer: `auto`, `builtin` or `osworld`; None reads the environment variable `DART_SCORER`.
        ttl_s: Seconds after the last heartbeat until the farm ends a lease.
        wait_s: Seconds to wait for a free desktop.
        setup_wait_s: Seconds to wait for a prepared state that another environment is building.
        evaluate_timeout_s: Seconds after which a running evaluator is stopped. That counts as an evaluator that raised: after the first
            action the reward is 0 where the evaluator then gives a verdict on an untouched desktop in as long, and otherwise the
            episode is masked.

    Raises:
        ValueError: If a field has a value that is not allowed; the message names the field.
        EvaluatorError: If there is no such scorer.
    """

    max_steps: int | None = None
    settle: SettleSpec = DEFAULT_SETTLE
    observation: ObservationSpec = DEFAULT_OBSERVATION
    labels: Mapping[str, str] = field(default_factory=dict)
    evaluate_on: EvaluateOn = EvaluateOn.DESKTOP
    scorer: str | None = None
    ttl_s: float = 60.0
    wait_s: float = 60.0
    setup_wait_s: float = 180.0
    evaluate_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.max_steps is not None and (not isinstance(self.max_steps, int | np.integer) or self.max_steps < 1):
            raise ValueError(
                f"max_steps is a whole number from 1 on, or None for the task's own, not {self.max_steps!r}."
            )
        for name, lowest in (
            ("ttl_s", "above 0"),
            ("wait_s", "from 0 on"),
            ("setup_wait_s", "from 0 on"),
            ("evaluate_timeout_s", "above 0"),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not (value >= 0 if lowest == "from 0 on" else value > 0):
                raise ValueError(f"{name} is a number of seconds {lowest}, not {value!r}.")
        if self.scorer is not None:
            parse_scorer(self.scorer)
        self._set(settle=_make_settle(self.settle), observation=make_observation_spec(self.observation))
        self._set(labels=_make_labels(self.labels), evaluate_on=parse_evaluate_on(self.evaluate_on))

    def _set(self, **converted: object) -> None:
        """Replace fields of this frozen instance by their converted values."""
        for name, value in converted.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_options(cls, base: Self | None, options: Mapping[str, Any], other_names: Sequence[str] = ()) -> Self:
        """Build a config from the keyword arguments of an environment.

        Args:
            base: The config whose fields hold where `options` has none; None is the defaults.
            options: Values by field name, in any form that the fields take.
            other_names: Names of the environment's further arguments, for the message about an unknown name.

        Returns:
            A new, checked config.

        Raises:
            ValueError: If a name is unknown (the message lists the known ones) or a value is not allowed.
            EvaluatorError: If there is no such scorer.
        """
        known = sorted({*other_names, *(one.name for one in fields(cls))})
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                suggestion = f" Did you mean {near[0]}?" if near else ""
                raise ValueError(f"There is no option {name!r}; the options are {', '.join(known)}.{suggestion}")
        return replace(base if base is not None else cls(), **options)


@dataclass(frozen=True, kw_only=True)
class EnvConfig(EpisodeConfig):
    """All options of `DartOSWorldEnv` and `DartVectorEnv`: those of `EpisodeConfig`, and tasks, desktop, farm and action space.

    Attributes:
        task: What episodes play. A task id (`basics/family/variation`), a suite or family, the path of a task file or of a folder of them,
            a task object, the content of a task file, or a sequence of these, from which each `reset` draws one by its seed; None is the
            suite `basics`. Or a sampler: a callable that takes the episode's `numpy.random.Generator` and returns a task.
        split: `train`, `validation` or `test`, for suites and families; None takes all tasks.
        resolution: (width, height) of the screen in pixels; None takes the screen that the tasks are made for.
        font_size: Size of the desktop's font in points; None takes the size that the tasks are made for, if `resolution`
            and `image` are None too, else that of the image.
        image: Name of the desktop image; None takes the image that the tasks are made for, or the sampler's attribute
            `image` (without one, `basic`).
        farm: URL of a farm, or an object with the methods of `FarmLike`; None takes `DART_FARM_URL`, and without that the embedded
            farm, which is started on demand.
        action_space: `canonical`, `computer_13`, `pyautogui`, `pyautogui-exec`, `uitars`, `discrete-grid` or `normalized`
            (see `dart_envs.action_spaces`), the name of a registered codec, or a codec's factory.
        on_action_error: What `step` does with an action that is outside the action space or that the desktop refuses: `raise`
            raises `ActionError`, and the step does not count. With `noop` the step counts, nothing is performed, and
            `info["action_error"]` is the sentence. `penalty` is `noop` with `action_error_penalty` taken from the reward.
        action_error_penalty: What `penalty` subtracts, from 0 on.

    Raises:
        ValueError: If a field has a value that is not allowed; the message names the field.
        EvaluatorError: If there is no such scorer.
        FarmError: If `farm` is text but not the address of a farm.
    """

    task: TaskSelection = None
    split: str | None = "train"
    resolution: tuple[int, int] | None = None
    font_size: int | None = None
    image: str | None = None
    farm: str | FarmLike | None = None
    action_space: ActionSpaceLike = "canonical"
    on_action_error: str = "raise"
    action_error_penalty: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = self.desktop_shape(DesktopShape(image=DEFAULT_IMAGE))
        if self.resolution is not None:
            self._set(resolution=shape.resolution)
        if self.on_action_error not in ON_ACTION_ERROR:
            raise ValueError(f"on_action_error is one of {', '.join(ON_ACTION_ERROR)}, not {self.on_action_error!r}.")
        if not isinstance(self.action_error_penalty, int | float) or not self.action_error_penalty >= 0:
            raise ValueError(f"action_error_penalty is a number from 0 on, not {self.action_error_penalty!r}.")
        if isinstance(self.farm, str):
            parse_address(self.farm)
        elif self.farm is not None and not hasattr(self.farm, "lease"):
            raise ValueError(
                f"farm is the URL of a farm, an object with FarmLike's methods, or None, not {self.farm!r}."
            )

    def rejected_action(self, error: ActionError) -> tuple[float, dict[str, Any]]:
        """Return what an action that was not performed adds to the step in its place.

        Args:
            error: Why it was not performed.

        Returns:
            An addition to the reward, and to `info`.
        """
        penalty = self.action_error_penalty if self.on_action_error == "penalty" else 0.0
        return -penalty, {"action_error": str(error)}

    def desktop_shape(self, made_for: DesktopShape) -> DesktopShape:
        """Return the desktop to lease.

        Args:
            made_for: The desktop that the tasks are made for, which holds where this config names nothing else.

        Returns:
            The desktop.

        Raises:
            ValueError: If a part is not allowed.
        """
        font_size = self.font_size
        if font_size is None and self.resolution is None and self.image in (None, made_for.image):
            font_size = made_for.font_size
        image = made_for.image if self.image is None else self.image
        return make_shape(image, made_for.resolution if self.resolution is None else self.resolution, font_size)


def make_shape(image: str, resolution: tuple[int, int], font_size: int | None) -> DesktopShape:
    """Check the parts of a desktop's shape and put them together.

    Args:
        image: Name of the desktop image.
        resolution: (width, height) of the screen in pixels, from 64×64 to 7680×4320.
        font_size: Size of the desktop's font in points; None keeps that of the image.

    Returns:
        The desktop to ask the farm for.

    Raises:
        ValueError: If a part is not allowed; the message names it.
    """
    try:
        width, height = (int(side) for side in resolution)
    except (TypeError, ValueError):
        width = height = 0
    if not (64 <= width <= 7680 and 64 <= height <= 4320):
        raise ValueError(f"resolution is (width, height) in pixels, 64×64 to 7680×4320, not {resolution!r}.")
    return _validate_model(DesktopShape, {"image": image, "resolution": (width, height), "font_size": font_size}, "")


def _make_settle(settle: SettleSpec | Mapping[str, int] | None) -> SettleSpec:
    if settle is None:
        return DEFAULT_SETTLE
    if not isinstance(settle, SettleSpec | Mapping):
        raise ValueError(f"settle is a SettleSpec, its fields, or None, not {settle!r}.")
    return settle if isinstance(settle, SettleSpec) else _validate_model(SettleSpec, settle, "settle.")


def _make_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    if labels is not None and not isinstance(labels, Mapping):
        raise ValueError(f"labels is a mapping of text to text, or None, not {labels!r}.")
    return dict(labels or {})


def _validate_model(model: type[_M], values: Mapping[str, Any], prefix: str) -> _M:
    """Build a wire model; raise `ValueError` about the first field at fault, in one sentence."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = prefix + ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{name}: {first['msg'].lower()}, not {first['input']!r}.") from None
