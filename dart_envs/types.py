"""Data types of the environment package: actions, observations, outcomes, and why an episode ended.

Env, tasks, policy and runner pass these values to each other. They are frozen, have no behaviour beyond validation, do
no I/O and need no heavy imports. Task definitions are in `dart_envs.tasks`, wire models in `dart_server.wire`.

Coordinates are integer screen pixels, origin top left, x to the right, y down. Images are uint8 RGB arrays `[H, W,
3]`.
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

from dart_server.wire import (
    A11yElement,
    DesktopShape,
    EvidenceAnswer,
    EvidenceHeader,
    EvidenceQuery,
    ExecReply,
    FrameHeader,
    FrameSpec,
    InputEvent,
    SettleSpec,
)

RgbImage = NDArray[np.uint8]
"""Screenshot, uint8 [H, W, 3]."""


class ActionType(StrEnum):
    """The types of canonical actions. The page "Actions and keys" of the reference has the fields that each needs."""

    CLICK = "click"
    """Click the left button at (x, y)."""
    DOUBLE_CLICK = "double_click"
    """Click the left button twice at (x, y)."""
    TRIPLE_CLICK = "triple_click"
    """Click the left button three times at (x, y)."""
    RIGHT_CLICK = "right_click"
    """Click the right button at (x, y)."""
    MIDDLE_CLICK = "middle_click"
    """Click the middle button at (x, y)."""
    MOVE = "move"
    """Move the pointer to (x, y)."""
    DRAG = "drag"
    """Press the left button at (x, y), move to (x2, y2), and release it there."""
    SCROLL = "scroll"
    """Turn the wheel at (x, y)."""
    TYPE = "type"
    """Type a text where the focus is."""
    KEY = "key"
    """Press keys together, and release them in reverse order."""
    WAIT = "wait"
    """Do nothing for a time."""
    DONE = "done"
    """End the episode: the task is solved."""
    FAIL = "fail"
    """End the episode: the task cannot be solved."""


@dataclass(frozen=True, slots=True)
class Action:
    """A canonical action.

    The fields that are set depend on `type` (`dart_envs.actions` checks them).

    Attributes:
        type: What the action does.
        x: Target in screen pixels, for the clicks, move, drag and scroll.
        y: Target in screen pixels, as `x`.
        x2: End of a drag in screen pixels.
        y2: End of a drag in screen pixels.
        dx: Wheel clicks to the right.
        dy: Wheel clicks up.
        text: Text to type.
        keys: Names of keys that are pressed together and released in reverse order, such as `("ctrl", "s")` or `("enter",)`. A name
            is one character, or one of `dart_envs.key_names.NAMED_KEYS`, which the page "Actions and keys" of the reference lists.
        duration_s: Length of a wait in seconds.
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
    """What one step performs, whatever action space it was written in.

    Attributes:
        events: Input events in order.
        end: DONE or FAIL, where the action ends the episode.
        code: Python that runs inside the desktop as its user, before the events.
    """

    events: tuple[InputEvent, ...] = ()
    end: ActionType | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy may see.

    Attributes:
        screenshot: uint8 `[H, W, 3]`.
        instruction: What the policy is asked to do.
        a11y: The showing elements of the accessibility tree; None unless asked for.
        terminal: Text of the focused terminal window; None unless asked for.
        a11y_xml: The accessibility tree in OSWorld's XML form; None unless asked for.
        pointer: Position of the mouse pointer, (x, y) in screen pixels. The screenshot does not show the pointer.
    """

    screenshot: RgbImage
    instruction: str
    a11y: tuple[A11yElement, ...] | None = None
    terminal: str | None = None
    a11y_xml: str | None = None
    pointer: tuple[int, int] = (0, 0)


class EndReason(StrEnum):
    """Why an episode ended: `terminated` reasons belong to the task, `truncated` ones to limits and faults."""

    DONE = "done"
    """terminated: the policy ended with DONE; evaluated."""
    FAIL = "fail"
    """terminated: the policy ended with FAIL, because the task cannot be done; evaluated."""
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
    """Verdict of an evaluator.

    Attributes:
        reward: In [0, 1].
        details: What the evaluator examined.
    """

    reward: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One transition.

    Attributes:
        observation: What the policy may see after the step.
        reward: 0.0 until the evaluator ran, then in [0, 1].
        terminated: Whether the task ended the episode.
        truncated: Whether a limit or a fault ended the episode.
        end: Why the episode ended; set exactly when terminated or truncated.
        info: Further results of the step.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    end: EndReason | None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frame:
    """A screenshot with the header that the guest sent with it.

    Attributes:
        image: uint8 `[H, W, 3]`.
        header: Size, encoding and cursor position.
    """

    image: RgbImage
    header: FrameHeader


class Desktop(Protocol):
    """What setup steps, getters and oracles may do to a live desktop.

    The lease client and the scripted fake implement it. Every method raises a subclass of
    `dart_envs.errors.DesktopError`. A program that fails inside does not raise (`ExecReply.returncode`).
    """

    @property
    def resolution(self) -> tuple[int, int]:
        """(width, height) of the screen in pixels."""
        ...

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform input events, wait until the screen settled, and return the frame.

        Args:
            events: What to perform, in order.
            settle: How long the screen must be quiet before the frame is taken; None takes it at once.
            frame: How the frame is encoded, and whether the cursor is drawn; None is raw RGB without the cursor.

        Returns:
            The screenshot with its header.
        """
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
        """Run a program inside the desktop.

        Args:
            argv: The program and its arguments.
            timeout_s: Seconds until the program is stopped.
            user: `user` (the desktop's user) or `root`.
            env: Environment variables beside those of the session.
            stdin: Text for the program's standard input.
            detach: Whether the program goes on after the call.

        Returns:
            Exit status and output.
        """
        ...

    async def read_file(self, path: str) -> bytes | None:
        """Read a file inside the desktop.

        Args:
            path: Path inside the desktop.

        Returns:
            The content, or None when there is no such file.
        """
        ...

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside the desktop as the desktop's user; missing parent directories are created.

        Args:
            path: Path inside the desktop.
            content: The content.
            mode: Permission bits.
        """
        ...

    async def a11y(self) -> list[A11yElement]:
        """Return the showing elements of the accessibility tree."""
        ...

    async def activate_window(self, title: str, *, strict: bool = False) -> bool:
        """Raise and focus the first window with a title.

        Args:
            title: The title, or a part of it.
            strict: Whether the title must be equal.

        Returns:
            False when there is no such window.
        """
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the host saw of a desktop at one moment.

    Attributes:
        header: The answers, one for each query.
        contents: The contents of files, one after the other.
    """

    header: EvidenceHeader
    contents: bytes

    @classmethod
    def parse(cls, message: bytes) -> Evidence:
        """Return the evidence of a binary message (`EvidenceHeader` describes it).

        Args:
            message: The whole message.

        Raises:
            ValueError: If it is something else.
        """
        begin = 4 + int.from_bytes(message[:4], "big")
        if len(message) < begin:
            raise ValueError(f"a header of {begin - 4} bytes does not fit into a message of {len(message)}")
        return cls(EvidenceHeader.model_validate_json(message[4:begin]), message[begin:])

    @property
    def answers(self) -> list[EvidenceAnswer]:
        """The answers, in the order of the queries."""
        return self.header.answers

    def content(self, answer: EvidenceAnswer) -> bytes:
        """Return the content of a file.

        Args:
            answer: The answer to a `FileQuery` that has no error.

        Raises:
            ValueError: If the answer has no content.
        """
        if answer.offset is None or answer.content_nbytes is None:
            raise ValueError("this answer has no content")
        return self.contents[answer.offset : answer.offset + answer.content_nbytes]


@runtime_checkable
class SupportsEvidence(Protocol):
    """A desktop that somebody outside can look into: a lease, where the farm's provider can."""

    async def evidence(self, queries: Sequence[EvidenceQuery]) -> Evidence:
        """Return what the host sees of the desktop at one moment; no program of the desktop takes part in the answer.

        Args:
            queries: What is asked.

        Returns:
            The answers, in the order of the queries.

        Raises:
            FarmError: With code `capability_missing` where nobody can look from outside.
        """
        ...


@runtime_checkable
class SupportsClock(Protocol):
    """A task with a time of day of its own; any `TaskLike` may be one as well."""

    @property
    def starts_at(self) -> datetime | None:
        """Time of day in the desktop when the setup begins, with a time zone; None is the real time.

        From there it goes on, for the desktop, for programs started later and for the evaluator. It stands still while
        the prepared state is a snapshot.
        """
        ...


@runtime_checkable
class SupportsRequirements(Protocol):
    """A task that can check what it needs before a desktop is leased; any `TaskLike` may be one as well."""

    async def check_requirements(self, shape: DesktopShape, *, local_images: bool) -> None:
        """Check that nothing is missing that the task needs.

        Args:
            shape: The desktop that will be leased.
            local_images: Whether desktops are made from this host's images.

        Raises:
            TaskError: If something is missing.
        """
        ...


@runtime_checkable
class SupportsTunnel(Protocol):
    """A desktop whose ports can be reached from this host: a lease."""

    def tunnel(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """Open a local port that leads to a TCP port inside the desktop, for as long as the context is open.

        Args:
            port: The port inside the desktop.

        Returns:
            A context whose value is the local (host, port).
        """
        ...


class TaskLike(Protocol):
    """What an episode needs of a task; implemented by `dart_envs.tasks.Task` and by tasks that users write.

    Rewards come from `evaluate` alone. The coroutines `prepare`, `evaluate` and `oracle` keep no state between
    episodes.
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
        """Whether the prepared state is worth a shared snapshot; False where the setup is so quick that every reset runs it."""
        ...

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        """Return the identity of the prepared state; tasks with the same key share their snapshot.

        Args:
            image_digest: Digest of the desktop image.
            shape: Image, resolution and font size of the desktop.

        Returns:
            64 hexadecimal digits.
        """
        ...

    async def prepare(self, desktop: Desktop) -> None:
        """Run the setup on a freshly booted desktop.

        Args:
            desktop: The desktop.

        Raises:
            SetupError: If a step fails.
        """
        ...

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        """Judge the desktop as it is.

        An environment with a scorer passes it as the further keyword argument `scorer`.

        Args:
            desktop: The desktop.
            end: How the episode ended, which matters for tasks that cannot be done.

        Returns:
            The verdict; what the policy corrupted is an `Outcome` of 0.

        Raises:
            EvaluatorError: If there is no verdict.
        """
        ...

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> Sequence[Action | DecodedAction]:
        """Return the solution from one action on, as far as the screen shows its targets now.

        Args:
            desktop: The desktop.
            step: Number of actions of the solution that were performed already.

        Returns:
            The next actions; empty when the solution is complete.
        """
        ...
