"""`gym.make("DartOSWorld-v0")`: tasks on a live desktop as a Gymnasium environment.

Role: `DartOSWorldEnv`, a synchronous face of `AsyncDesktopEnv`. Rule: nothing is leased before the first
`reset`, everything is given back by `close`, by garbage collection and at interpreter exit; whatever is
returned is fresh memory and deterministic but for pixels. Non-goals: several desktops at once
(`dart_envs.envs.vector`), model text (`dart_agent`).
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from dart_envs.action_spaces import ActionSpaceLike, make_codec
from dart_envs.envs.core import DEFAULT_SETTLE, AsyncDesktopEnv
from dart_envs.envs.evaluation_target import EvaluateOn, parse_evaluate_on
from dart_envs.envs.task_sources import TaskSelection, load_task, select_tasks
from dart_envs.errors import DartEnvError, FarmError
from dart_envs.evaluators.scorer_choice import scorer_named
from dart_envs.farm.base import FarmLike, LeaseLike
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.live import LiveWindow, SupportsLiveView
from dart_envs.farm.loop import EventLoopThread
from dart_envs.farm.transport import parse_address
from dart_envs.observations.views import ObservationEncoder, ObservationSpecLike, make_observation_spec
from dart_envs.types import Action, DecodedAction, Outcome, RgbImage, TaskLike
from dart_server.wire import DesktopShape, SettleSpec

log = logging.getLogger(__name__)
_M = TypeVar("_M", bound=BaseModel)

OBSERVATION = ("screenshot",)
RESET_OPTIONS = ("task",)


class DartOSWorldEnv(gym.Env[dict[str, Any], Any]):
    """One desktop, one task after another.

    task: a task id (`basics/family/variation`), a suite or family, the path of a task file or of a folder of them, a task object, the
    content of a task file, or a sequence of these; None plays the bundled suite. Each `reset` draws one by the seed, or takes
    `options={"task": …}`. Or a sampler: a callable that gets the episode's `numpy.random.Generator` and answers with a task. split:
    `train`, `validation` or `test`, for suites and families. max_steps: overrides the tasks' own budget.
    resolution: (width, height), pixels. font_size: points; None keeps the image's. image: name of the desktop
    image; None takes the one that the tasks are made for, or that the sampler's attribute `image` names (`basic` without one).
    farm: URL of a farm (default: `DART_FARM_URL`, else the embedded farm, started on demand), or an
    object with `FarmLike`'s methods. settle: how long the screen must be quiet before it is looked at, a
    `SettleSpec` or its fields. observation: names of parts (`screenshot`, and if wanted one of `a11y`, `a11y_xml`, `a11y_table`,
    `terminal`, `marks`), or an `ObservationSpec` or its fields, for another size or form.
    render_mode: `rgb_array`: `render()` gives the last screenshot; `human`: the first `reset` opens the farm's live view of the desktop
    in a browser, or prints its address where there is no display.

    action_space: `canonical`, `computer_13`, `pyautogui`, `pyautogui-exec`, `uitars`, `discrete-grid`,
    `normalized` (see `dart_envs.action_spaces`), or a codec's factory. evaluate_on: `desktop` or `copy`, what an episode's end is judged
    on.
    scorer: `auto`, `builtin` or `osworld`; None leaves it to `DART_SCORER`.

    Actions: elements of `action_space`, or `dart_envs.Action`s whatever the space. Reward: 0.0 until the
    evaluator ran, which happens once, at DONE, FAIL or the last step. `info["end"]` says why an episode
    ended; where `info["masked"]` is true there is no verdict to learn from.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "human"], "render_fps": 2}  # type: ignore[misc]

    def __init__(
        self,
        task: TaskSelection = None,
        split: str = "train",
        max_steps: int | None = None,
        resolution: tuple[int, int] = (1920, 1080),
        font_size: int | None = None,
        image: str | None = None,
        farm: str | FarmLike | None = None,
        render_mode: str | None = None,
        settle: SettleSpec | Mapping[str, int] | None = None,
        observation: ObservationSpecLike = OBSERVATION,
        labels: Mapping[str, str] | None = None,
        action_space: ActionSpaceLike = "canonical",
        evaluate_on: EvaluateOn | str = EvaluateOn.DESKTOP,
        scorer: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode is None, rgb_array or human, not {render_mode!r}.")
        self.render_mode = render_mode
        self.tasks = select_tasks(task, split)
        self.shape = make_shape(image or self.tasks.image, resolution, font_size)
        self._codec = make_codec(action_space, self.shape.resolution)
        self.action_space = self._codec.space
        self._observation_encoder = ObservationEncoder(make_observation_spec(observation), self.shape.resolution)
        self.observation_space = self._observation_encoder.space
        self._core_options = make_core_options(
            self.shape, max_steps, settle, self._observation_encoder.spec.parts, labels, evaluate_on, scorer
        )
        self._farm = validate_farm(farm)
        self._session: _EnvSession | None = None
        self._screen: RgbImage | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode. `options={"task": id or task}` picks the task. Raises `SetupError`, `FarmError`
        or `DesktopError` when no desktop could be brought to the task's start."""
        super().reset(seed=seed)
        check_reset_options(options, RESET_OPTIONS)
        chosen = (options or {}).get("task")
        task = self.tasks.draw(self.np_random) if chosen is None else load_task(chosen)
        held = self._open_session()
        observation, info = held.loop.run(held.core.reset(task, seed))
        if self.render_mode == "human":
            held.loop.run(held.show())
        self._codec.reset()
        self._screen = observation.screenshot
        return self._observation_encoder.encode(observation), dict(info)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Perform one action. Raises `ActionError` for one outside the action space; the episode then goes
        on."""
        if self._session is None:
            raise DartEnvError("No episode is running; call reset() first.")
        decoded = self._codec.decode(action, self._session.core.pointer)
        self._codec.commit()
        result = self._session.loop.run(self._session.core.step(decoded))
        self._screen = result.observation.screenshot
        element = self._observation_encoder.encode(result.observation)
        return element, float(result.reward), result.terminated, result.truncated, dict(result.info)

    def evaluate(self) -> Outcome:
        """The evaluator's verdict on the desktop as it is now, at any step: dense rewards. It runs on a copy, so that the
        episode goes on undisturbed. Errors as of `AsyncDesktopEnv.evaluate`."""
        if self._session is None:
            raise DartEnvError("No episode is running; call reset() first.")
        return self._session.loop.run(self._session.core.evaluate())

    def oracle(self, step: int = 0) -> list[Action | DecodedAction]:
        """The running task's solution from its `step`-th action on, as far as the screen shows its targets
        now (empty when complete).

        For demonstrations and tests: perform the first action, then ask again with `step + 1`.
        """
        held, task = self._session, self.current_task
        if held is None or task is None or held.core.lease is None:
            raise DartEnvError("No episode is running; call reset() first.")
        return list(held.loop.run(_oracle(task, held.core.lease, step)))

    def render(self) -> NDArray[np.uint8] | None:
        """The last screenshot, uint8 [H, W, 3]; no new one is taken."""
        if self.render_mode != "rgb_array":
            return None
        if self._screen is None:
            width, height = self.shape.resolution
            return np.zeros((height, width, 3), dtype=np.uint8)
        return self._screen.copy()

    @property
    def current_task(self) -> TaskLike | None:
        """The task of the running or last episode."""
        return None if self._session is None else self._session.core.task

    @property
    def timings_s(self) -> dict[str, float]:
        """How long the parts of the last `reset` or `step` took, seconds."""
        return {} if self._session is None else dict(self._session.core.timings_s)

    def close(self) -> None:
        """Give the desktop back and disconnect. Idempotent; the next `reset` would take a desktop again."""
        held, self._session = self._session, None
        if held is not None:
            held.close()

    def _open_session(self) -> _EnvSession:
        if self._session is None or self._session.pid != os.getpid():
            self._session = _EnvSession(self._farm, self._core_options)
            weakref.finalize(self, _EnvSession.close_quietly, self._session)
        return self._session


class _EnvSession:
    """What an env holds outside itself: a connection and a leased desktop, on the process's event loop."""

    def __init__(self, farm: str | FarmLike | None, core_options: Mapping[str, Any]) -> None:
        self.pid = os.getpid()
        self.loop = EventLoopThread.shared()
        self._own_farm: FarmLike | None = None
        if farm is None or isinstance(farm, str):
            farm = self._own_farm = self.loop.run(AsyncFarmClient.connect(farm))
        self.core = AsyncDesktopEnv(farm, **core_options)
        self._window: LiveWindow | None = None
        self._closed = False

    async def show(self) -> None:
        """Let a person see the leased desktop, once for each lease. Raises `FarmError` where the farm has no live view."""
        lease = self.core.lease
        if not isinstance(lease, SupportsLiveView):
            raise FarmError("This farm has no live view; use render_mode rgb_array.", code="capability_missing")
        self._window = self._window or LiveWindow()
        await self._window.show(lease)

    def close(self) -> None:
        if not self._closed and self.pid == os.getpid():
            self._closed = True
            self.loop.run(self._aclose())

    def close_quietly(self) -> None:
        """`close` for the garbage collector and the end of the interpreter: nobody is there to catch
        anything."""
        if self._closed or self.pid != os.getpid():
            return
        try:
            if self.loop.is_current():
                self._closed = True
                self.loop.submit(self._aclose())
            else:
                self.close()
        except (DartEnvError, RuntimeError) as error:
            log.warning("A desktop could not be given back and its lease will expire: %s", error)

    async def _aclose(self) -> None:
        await self.core.aclose()
        if self._window is not None:
            await self._window.aclose()
        if self._own_farm is not None:
            await self._own_farm.aclose()


def make_shape(image: str, resolution: tuple[int, int], font_size: int | None) -> DesktopShape:
    """The desktop that is asked for. Raises `ValueError` with the field at fault."""
    try:
        width, height = (int(side) for side in resolution)
    except (TypeError, ValueError):
        width = height = 0
    if not (64 <= width <= 7680 and 64 <= height <= 4320):
        raise ValueError(f"resolution is (width, height) in pixels, 64×64 to 7680×4320, not {resolution!r}.")
    return _validate_model(DesktopShape, {"image": image, "resolution": (width, height), "font_size": font_size}, "")


def make_settle(settle: SettleSpec | Mapping[str, int] | None) -> SettleSpec:
    """The settling to use: the one given, as a spec or as its fields, or the default. Raises `ValueError` with the field at fault."""
    if settle is None:
        return DEFAULT_SETTLE
    return settle if isinstance(settle, SettleSpec) else _validate_model(SettleSpec, settle, "settle.")


def _validate_model(model: type[_M], fields: Mapping[str, Any], prefix: str) -> _M:
    """The model of these fields. Raises `ValueError` about the first one at fault, in one sentence."""
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = prefix + ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{field}: {first['msg'].lower()}, not {first['input']!r}.") from None


def make_core_options(
    shape: DesktopShape,
    max_steps: int | None,
    settle: SettleSpec | Mapping[str, int] | None,
    parts: Sequence[str],
    labels: Mapping[str, str] | None,
    evaluate_on: EvaluateOn | str,
    scorer: str | None,
) -> dict[str, Any]:
    """Arguments of `AsyncDesktopEnv`, checked before there is one. Raises `ValueError`, and `EvaluatorError` for an unknown scorer."""
    if max_steps is not None and (not isinstance(max_steps, int | np.integer) or max_steps < 1):
        raise ValueError(f"max_steps is a whole number from 1 on, or None for the task's own, not {max_steps!r}.")
    if scorer is not None:
        scorer_named(scorer)
    return {
        "shape": shape,
        "max_steps": max_steps,
        "settle": make_settle(settle),
        "observation": parts,
        "labels": labels,
        "evaluate_on": parse_evaluate_on(evaluate_on),
        "scorer": scorer,
    }


def validate_farm(farm: str | FarmLike | None) -> str | FarmLike | None:
    """The farm as it was given. Raises `FarmError` for an address that is none, `ValueError` for what is no farm."""
    if isinstance(farm, str):
        parse_address(farm)
    elif farm is not None and not hasattr(farm, "lease"):
        raise ValueError(f"farm is the URL of a farm, an object with FarmLike's methods, or None, not {farm!r}.")
    return farm


def check_reset_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> None:
    """Raise `ValueError` for an option of `reset` that would be passed over."""
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        raise ValueError(f"reset has no option {', '.join(unknown)}; its options are {', '.join(known)}.")


async def _oracle(task: TaskLike, lease: LeaseLike, step: int) -> list[Action | DecodedAction]:
    return list(await task.oracle(lease, step=step))
