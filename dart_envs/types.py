"""Carriers of the environment package: actions, observations, outcomes, and why an episode ended.

Role: the values that env, tasks, policy and runner pass to each other. Rule: frozen, no behaviour beyond
validation, no I/O, no heavy imports. Non-goals: task definitions (`dart_envs.tasks`), wire models
(`dart_server.wire`).

Coordinates are integer screen pixels, origin top left, x to the right, y down. Images are uint8 RGB arrays
[H, W, 3].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dart_server.wire import A11yElement, DesktopShape, ExecReply, FrameHeader, FrameSpec, InputEvent, SettleSpec

RgbImage = NDArray[np.uint8]
"""Screenshot, uint8 [H, W, 3]."""


class ActionType(StrEnum):
    """The closed set of canonical actions."""

    CLICK = "click"
    DOUBLE_CLICK = "double_click"
    TRIPLE_CLICK = "triple_click"
    RIGHT_CLICK = "right_click"
    MIDDLE_CLICK = "middle_click"
    MOVE = "move"
    DRAG = "drag"
    SCROLL = "scroll"
    TYPE = "type"
    KEY = "key"
    WAIT = "wait"
    DONE = "done"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Action:
    """The one canonical action. Which fields are set depends on `type` (checked in `dart_envs.actions`).

    x, y: target in screen pixels (click, double_click, triple_click, right_click, middle_click, move, drag,
    scroll). x2, y2: end of a drag. dx, dy: wheel clicks (positive dy scrolls up). text: what to type. keys:
    pressed together, released in reverse. duration_s: length of a wait.
    """

    type: ActionType
    x: int | None = None
    y: int | None = None
    x2: int | None = None
    y2: int | None = None
    dx: int = 0
    dy: int = 0
    text: str = ""
    keys: tuple[str, ...] = ()
    duration_s: float = 1.0


@dataclass(frozen=True, slots=True)
class DecodedAction:
    """What one step performs, whatever action space it was written in: `events` in order; or `code`, Python that runs inside the desktop as
    its user; then the end of the episode when `end` is DONE or FAIL."""

    events: tuple[InputEvent, ...] = ()
    end: ActionType | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy may see: pixels and the instruction; the other two only when asked for."""

    screenshot: RgbImage
    instruction: str
    a11y: tuple[A11yElement, ...] | None = None
    terminal: str | None = None
    a11y_xml: str | None = None
    """The accessibility tree in OSWorld's XML form."""


class EndReason(StrEnum):
    """Why an episode ended. `terminated` reasons are the task's word, `truncated` ones are ours."""

    DONE = "done"
    """terminated: the policy said it is done; evaluated."""
    FAIL = "fail"
    """terminated: the policy said the task cannot be done; evaluated."""
    MAX_STEPS = "max_steps"
    """truncated: the step budget is used up; evaluated."""
    BROKE_DESKTOP = "broke_desktop"
    """terminated: the policy broke the desktop from the inside (memory, pids, disk, log-out, killed session);
    scores 0."""
    FARM_FAULT = "farm_fault"
    """truncated: the farm or the host failed; no reward, masked from training."""
    EVALUATOR_ERROR = "evaluator_error"
    """truncated: the evaluator raised; no reward, masked from training."""
    CANCELLED = "cancelled"
    """truncated: the caller stopped the episode; no reward."""

    @property
    def masked(self) -> bool:
        """True where the episode carries no verdict about the policy and must not train it."""
        return self in {EndReason.FARM_FAULT, EndReason.EVALUATOR_ERROR, EndReason.CANCELLED}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdict of an evaluator: `reward` in [0, 1] and what it looked at."""

    reward: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One transition. `reward` is 0.0 until the evaluator ran. `end` is set exactly when terminated or
    truncated."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    end: EndReason | None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frame:
    """A screenshot with the header that the guest sent with it."""

    image: RgbImage
    header: FrameHeader


class Desktop(Protocol):
    """What setup steps, getters and oracles may do to a live desktop. Implemented by the lease client and by
    the scripted fake.

    Every method raises a `dart_envs.errors.DesktopError` subclass; a program that fails inside is data
    (`ExecReply.returncode`).
    """

    @property
    def resolution(self) -> tuple[int, int]:
        """Width and height in pixels."""
        ...

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform input events, wait until the screen settled, return the frame. frame: how it travels, and whether the cursor is drawn;
        raw RGB without one unless told otherwise."""
        ...

    async def exec(
        self,
        argv: list[str],
        *,
        timeout_s: float = 30.0,
        user: str = "user",
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        detach: bool = False,
    ) -> ExecReply:
        """Run a program inside the desktop."""
        ...

    async def read_file(self, path: str) -> bytes | None:
        """Content of a file inside the desktop, None when there is none."""
        ...

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside the desktop as the desktop's user; parents are made."""
        ...

    async def a11y(self) -> list[A11yElement]:
        """The showing elements of the accessibility tree."""
        ...

    async def activate_window(self, title: str, *, strict: bool = False) -> bool:
        """Raise and focus the first window whose title contains (or equals) `title`; False when there is
        none."""
        ...


@runtime_checkable
class SupportsClock(Protocol):
    """A task that has a time of day of its own; any `TaskLike` may be one as well."""

    @property
    def starts_at(self) -> datetime | None:
        """What time of day it is in the desktop when the setup begins, with its time zone; None: the real one.

        From there it goes on, for the desktop, for programs started later and for the evaluator alike. While the
        prepared state is a snapshot it stands still.
        """
        ...


@runtime_checkable
class SupportsRequirements(Protocol):
    """A task that can tell before a desktop is leased that it would be leased in vain; any `TaskLike` may be one as well."""

    async def check_requirements(self, shape: DesktopShape, *, local_images: bool) -> None:
        """Raise `TaskError` where something is missing. local_images: desktops are made of this machine's images."""
        ...


@runtime_checkable
class SupportsTunnel(Protocol):
    """A desktop whose ports can be reached from here: a lease."""

    def tunnel(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """Return a context whose value is the (host, port) on this machine that leads to the desktop's `port`."""
        ...


class SetupStepLike(Protocol):
    """A setup step as a task carries it; implemented by `dart_envs.tasks.model.SetupStep`."""

    @property
    def type(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...


class EvaluatorLike(Protocol):
    """What judges a task, as parallel sequences, one entry per function; implemented by `dart_envs.tasks.model.Evaluator`."""

    @property
    def functions(self) -> Sequence[str]: ...

    @property
    def result_configs(self) -> Sequence[Mapping[str, Any] | None]: ...

    @property
    def expected_configs(self) -> Sequence[Mapping[str, Any] | None]: ...

    @property
    def metric_options(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def conj(self) -> str: ...

    @property
    def postconfig(self) -> Sequence[SetupStepLike]:
        """What is done on the desktop before it is looked at."""
        ...


class TaskLike(Protocol):
    """What an episode needs of a task; implemented by `dart_envs.tasks.Task` and by anything a user writes.

    Rewards come from `evaluate` alone. None of the three coroutines keeps state between episodes.
    """

    @property
    def id(self) -> str:
        """Stable name, `suite/family/variation` for bundled tasks."""
        ...

    @property
    def instruction(self) -> str:
        """What the policy is asked to do."""
        ...

    @property
    def max_steps(self) -> int:
        """Step budget of one episode."""
        ...

    @property
    def publish_setup(self) -> bool:
        """Whether the prepared state is worth a shared snapshot; False: the setup is so quick that every
        reset runs it on the booted base."""
        ...

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        """Identity of the prepared state (64 hex digits); tasks that share it share their snapshot."""
        ...

    async def prepare(self, desktop: Desktop) -> None:
        """Run the setup on a freshly booted desktop. Raises `SetupError`."""
        ...

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        """Judge the desktop as it is; `end` says how the episode ended, which matters for tasks that cannot
        be done.

        Raises `EvaluatorError`; what the policy corrupted is an `Outcome` of 0.
        """
        ...

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> Sequence[Action | DecodedAction]:
        """The solution from its `step`-th action on, as far as the screen shows its targets now; empty when
        it is complete."""
        ...
