"""`DesktopEnv`: OSWorld's environment class, as its run scripts and agents use it, on a leased desktop.

It has the same constructor arguments, a `reset(task_config=...)` that returns an observation only, a `step` that
returns a 4-tuple, `evaluate`, and the attributes that agents and evaluators read. An argument whose meaning cannot be
kept is refused, not ignored. There is a fixed pause only where one is asked for, because a step waits until the screen
has settled. The core (`dart_envs.envs.core`) judges the end of an episode: a fault of the farm raises, and a desktop
that the agent broke scores 0. OSWorld's own providers and images do not exist here: `provider_name` is accepted and has
no effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import gymnasium as gym

from dart_envs.action_spaces import make_codec
from dart_envs.envs.a11y_xml import TREE_LIMIT
from dart_envs.envs.config import EnvConfig, make_shape
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.evaluation_target import EvaluateOn, check_alive, check_outcome, evaluation_desktop
from dart_envs.errors import DartEnvError, DesktopError, DesktopFailedError, EvaluatorError, GuestError, TaskError
from dart_envs.farm.base import FarmLike, LeaseLike
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.loop import EventLoopThread
from dart_envs.observations.transforms import encode_png
from dart_envs.osworld.controllers import PythonController, SetupController
from dart_envs.setup import run_steps
from dart_envs.tasks.model import SetupStep, Task, parse_task
from dart_envs.types import ActionType, DecodedAction, EndReason, Observation, Outcome, StepResult
from dart_server.wire import FaultOwner
from dart_server.wire.guest_answers import MalformedAnswer, parse_object

ACTION_SPACES = {
    "computer_13": "computer_13",
    "pyautogui": "pyautogui-exec",
    "claude_computer_use": "pyautogui-exec",
    "autoglm_computer_use": "pyautogui-exec",
}
"""OSWorld's action spaces by ours: its pyautogui is run by Python inside the desktop."""
SERVER_PORT, CHROMIUM_PORT, VNC_PORT, VLC_PORT = 5000, 9222, 8006, 8080
NO_LIMIT = 10**9
EVALUATE_TIMEOUT_S = 600.0
COPY_WAIT_S = 5.0
"""How long a copy to judge is waited for where the farm has no free desktop."""
_Step = tuple[dict[str, Any], float, bool, dict[str, Any]]


class DesktopEnv(gym.Env[dict[str, Any], Any]):
    """OSWorld's environment on one desktop at a time.

    Args:
        provider_name: No effect: every desktop is a lease of the farm.
        region: No effect.
        path_to_vm: No effect.
        snapshot_name: No effect.
        action_space: `pyautogui` (Python text, run inside the desktop), `computer_13`, `claude_computer_use` or
            `autoglm_computer_use`.
        cache_dir: Kept for code that reads it.
        screen_size: (width, height) in pixels.
        headless: No effect.
        require_a11y_tree: Whether observations have the accessibility tree.
        require_terminal: Whether observations have the terminal's text.
        os_type: Must be `Ubuntu`.
        enable_proxy: Must be False: desktops have no network.
        client_password: Kept for code that reads it.
        image: Name of the desktop image.
        farm: As `EnvConfig.farm`.
        **_ignored: Arguments of newer versions of OSWorld; no effect.

    Attributes:
        config: The options in force.
        shape: The desktop to lease.
        controller: Calls to the desktop's HTTP server.
        setup_controller: Performs setup steps.
        action_history: The actions of the episode.
        instruction: What the agent is asked to do; None without a task.
        task_id: Id of the task; None without a task.

    Raises:
        ValueError: If an argument has a value that is not allowed.
        FarmError: If `farm` is text but not the address of a farm.
    """

    def __init__(
        self,
        provider_name: str = "dart",
        region: str | None = None,
        path_to_vm: str | None = None,
        snapshot_name: str = "init_state",
        action_space: str = "pyautogui",
        cache_dir: str = "cache",
        screen_size: tuple[int, int] = (1920, 1080),
        headless: bool = True,
        require_a11y_tree: bool = True,
        require_terminal: bool = False,
        os_type: str = "Ubuntu",
        enable_proxy: bool = False,
        client_password: str = "password",
        *,
        image: str = "desktop",
        farm: str | FarmLike | None = None,
        **_ignored: Any,
    ) -> None:
        if action_space not in ACTION_SPACES:
            raise ValueError(f"action_space is one of {', '.join(ACTION_SPACES)}, not {action_space!r}.")
        if os_type != "Ubuntu":
            raise ValueError(f"os_type is Ubuntu, not {os_type!r}: desktops here run Linux.")
        if enable_proxy:
            raise ValueError("enable_proxy must be False: desktops here have no network.")
        self.provider_name, self.region, self.path_to_vm = provider_name, region, path_to_vm
        self.snapshot_name, self.headless, self.os_type = snapshot_name, headless, os_type
        self.cache_dir_base = self.cache_dir = cache_dir
        self.client_password = client_password
        self.require_a11y_tree, self.require_terminal = require_a11y_tree, require_terminal
        self.screen_width, self.screen_height = screen_size
        self.config = EnvConfig(
            resolution=screen_size,
            image=image,
            farm=farm,
            action_space=ACTION_SPACES[action_space],
            max_steps=NO_LIMIT,
            evaluate_timeout_s=EVALUATE_TIMEOUT_S,
            labels={"purpose": "osworld"},
        )
        self.shape = make_shape(image, screen_size, self.config.font_size)
        self.action_space = action_space  # type: ignore[assignment]  # OSWorld's agents read the name here
        self._codec = make_codec(self.config.action_space, self.shape.resolution)
        self.controller = PythonController(lambda: self._address(SERVER_PORT))
        self.setup_controller = SetupController(self._perform)
        self.action_history: list[Any] = []
        self.instruction: str | None = None
        self.task_id: str | None = None
        self.vm_platform, self.vm_machine = "Linux", "x86_64"
        self.vlc_password = "password"
        self.current_use_proxy = False
        self._step_no = 0
        self._task: Task | None = None
        self._broken_cause: str | None = None
        self._end: ActionType | None = None
        """DONE or FAIL, where the last action was one of them."""
        self._judged_end: StepResult | None = None
        self._last_observation: Observation | None = None
        """What was seen after the last action that was performed; None before the first one."""
        self._loop = EventLoopThread.shared()
        self._own_farm: AsyncFarmClient | None = None
        self._core: AsyncDesktopEnv | None = None
        self._tunnels = AsyncExitStack()
        self._addresses: dict[int, tuple[str, int]] = {}
        self._tunnel_lease: LeaseLike | None = None

    # Episodes.

    def reset(  # type: ignore[override]
        self,
        task_config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Bring the desktop to the start of a task and observe.

        Args:
            task_config: Content of a task file; None is a clean desktop without a task.
            seed: Recorded only.
            options: Not used.

        Returns:
            The first observation.

        Raises:
            TaskError: If the task is wrong or something that it needs is missing.
            DartEnvError: As `AsyncDesktopEnv.reset`.
        """
        self.action_history.clear()
        self._step_no, self._broken_cause, self._end = 0, None, None
        self._judged_end = self._last_observation = None
        config = dict(task_config) if task_config is not None else _EMPTY_TASK
        task = parse_task(config | {"image": self.shape.image}, name=str(config.get("id", "task_config")))
        self._task = task if task_config is not None else None
        self.task_id = task.id if task_config is not None else None
        self.instruction = task.instruction if task_config is not None else None
        self._loop.run(self._reset(task, seed))
        self._codec.reset()
        return self._get_obs()

    async def _reset(self, task: Task, seed: int | None) -> None:
        if self._core is None:
            farm = self.config.farm
            if farm is None or isinstance(farm, str):
                farm = self._own_farm = await AsyncFarmClient.connect(farm)
            self._core = AsyncDesktopEnv(farm, shape=self.shape, config=self.config)
        await self._core.reset(task, seed)

    def step(self, action: Any, pause: float = 0.0) -> _Step:  # type: ignore[override]
        """Perform an action, wait until the screen has settled, and observe.

        DONE and FAIL only end the episode; `evaluate` judges it. An episode whose desktop the agent broke is done, too, and
        `info["broke_desktop"]` says how.

        Args:
            action: An action of the action space, or `WAIT`, `DONE` or `FAIL`.
            pause: Seconds to wait after the screen has settled.

        Returns:
            Observation, 0.0, done, and info.

        Raises:
            ActionError: If the action cannot be performed.
            DartEnvError: If the farm failed, or no episode is running.
        """
        core = self._running_core()
        decoded = self._codec.decode(action, core.pointer)
        self._step_no += 1
        self.action_history.append(action)
        if decoded.end is not None:
            self._end = decoded.end
            return self._observed_step(done=True, info={decoded.end.value: True})
        self._codec.commit()
        result = self._loop.run(core.step(decoded))
        self._end, self._last_observation = None, result.observation
        if result.end is EndReason.BROKE_DESKTOP:
            return self._broken_step(str(result.info.get("cause")), {})
        if result.end is not None:
            raise DartEnvError(f"The episode ended by a fault of the farm: {result.info.get('cause')}.")
        if pause > 0:
            time.sleep(pause)
        return self._observed_step(done=False, info=dict(result.info))

    def _observed_step(self, *, done: bool, info: dict[str, Any]) -> _Step:
        """Observe and return the answer to an action."""
        try:
            return self._get_obs(), 0.0, done, info
        except DesktopError as error:
            cause = self._loop.run(self._broken_by_agent(error))
            if cause is None:
                raise
            return self._broken_step(cause, info)

    def _broken_step(self, cause: str, info: dict[str, Any]) -> _Step:
        """Return the answer to an action after which the desktop is broken, with the last screenshot."""
        assert self._last_observation is not None
        self._broken_cause = cause
        parts = {"screenshot": encode_png(self._last_observation.screenshot), "accessibility_tree": None}
        observation = parts | {"terminal": None, "instruction": self.instruction}
        return observation, 0.0, True, info | {"broke_desktop": cause}

    async def _broken_by_agent(self, error: DesktopError) -> str | None:
        """Return how the agent broke the desktop; None where the fault is not the agent's, as before its first action.

        A desktop that lives and does not do what is asked was broken by the agent, as in the core.
        """
        if self._last_observation is None:
            return None
        if isinstance(error, GuestError):
            try:
                await check_alive(self._lease())
            except DesktopFailedError as death:
                return death.cause if death.fault_owner is FaultOwner.POLICY else None
            return f"{error.code}: {error}"
        if isinstance(error, DesktopFailedError) and error.fault_owner is FaultOwner.POLICY:
            return error.cause
        return None

    def evaluate(self) -> float:
        """Judge the desktop as it is, after its screen was quiet for some time.

        After DONE or FAIL the desktop itself is judged, once, and the episode is over. Before them a copy is judged, so that
        the episode goes on, or the desktop itself where no copy can be had within some seconds.

        Returns:
            The reward, in [0, 1]; 0 where the agent broke the desktop.

        Raises:
            EvaluatorError: If there is no verdict.
            TaskError: If there is no task.
            DartEnvError: If the farm failed, or no episode is running.
        """
        return self.evaluate_outcome().reward

    def evaluate_outcome(self) -> Outcome:
        """Judge the desktop as `evaluate` does, with details.

        Returns:
            The verdict. `evaluated_on` in its details says what was judged, unless the episode was over.

        Raises:
            EvaluatorError: If there is no verdict.
            TaskError: If there is no task.
            DartEnvError: If the farm failed, or no episode is running.
        """
        if self._task is None:
            raise TaskError("There is no task to evaluate; give reset() a task_config.")
        if self._broken_cause is not None:
            return Outcome(0.0, {"broke_desktop": self._broken_cause})
        if self._judged_end is not None or self._end is not None:
            return self._judge_end()
        return self._loop.run(self._judge_running(self._task))

    def _judge_end(self) -> Outcome:
        """Return the verdict of an episode that ended with DONE or FAIL."""
        if self._judged_end is None:
            self._judged_end = self._loop.run(self._running_core().step(DecodedAction(end=self._end)))
        info = self._judged_end.info
        match self._judged_end.end:
            case EndReason.BROKE_DESKTOP:
                return Outcome(0.0, {"broke_desktop": info["cause"]})
            case EndReason.EVALUATOR_ERROR:
                raise EvaluatorError(f"There is no verdict ({info['cause']}).")
            case EndReason.FARM_FAULT:
                raise DartEnvError(f"The episode ended by a fault of the farm: {info['cause']}.")
        return Outcome(self._judged_end.reward, info["outcome"])

    async def _judge_running(self, task: Task) -> Outcome:
        """Judge an episode that goes on."""
        core, lease = self._running_core(), self._lease()
        try:
            await core.settle_for_verdict()
            await check_alive(lease)
        except DesktopError as error:
            return await self._broken_outcome(error)
        try:
            async with asyncio.timeout(self.config.evaluate_timeout_s):
                async with evaluation_desktop(lease, EvaluateOn.COPY, COPY_WAIT_S) as (desktop, evaluated_on):
                    outcome = await task.evaluate(desktop, end=EndReason.DONE)
                    check_outcome(outcome)
                    if outcome.reward > 0.0:
                        await check_alive(desktop)
        except TimeoutError:
            raise EvaluatorError(f"The evaluator took more than {self.config.evaluate_timeout_s:g} s.") from None
        except DesktopFailedError as error:
            return await self._broken_outcome(error)
        return replace(outcome, details={**outcome.details, "evaluated_on": evaluated_on})

    async def _broken_outcome(self, error: DesktopError) -> Outcome:
        """Return the verdict on a desktop that the agent broke; raise the error where the fault is not the agent's."""
        cause = await self._broken_by_agent(error)
        if cause is None:
            raise error
        return Outcome(0.0, {"broke_desktop": cause})

    def render(self, mode: str = "rgb_array") -> bytes | None:  # type: ignore[override]
        """Return the screen.

        Args:
            mode: Must be `rgb_array`.

        Returns:
            PNG bytes, as OSWorld returns them; None where the request failed.

        Raises:
            ValueError: If the mode is another one.
        """
        if mode != "rgb_array":
            raise ValueError(f"mode is rgb_array, not {mode!r}.")
        return self.controller.get_screenshot()

    def close(self) -> None:
        """Give the desktop back. Idempotent."""
        self._loop.run(self._aclose())

    async def _aclose(self) -> None:
        await self._close_tunnels()
        core, self._core = self._core, None
        farm, self._own_farm = self._own_farm, None
        if core is not None:
            await core.aclose()
        if farm is not None:
            await farm.aclose()

    # Where things are.

    @property
    def vm_ip(self) -> str:
        """Host of all ports below."""
        return self._address(SERVER_PORT)[0]

    @property
    def server_port(self) -> int:
        """Port of OSWorld's server inside the desktop."""
        return self._address(SERVER_PORT)[1]

    @property
    def chromium_port(self) -> int:
        """Chrome's debugging port, where one is open inside the desktop."""
        return self._address(CHROMIUM_PORT)[1]

    @property
    def vnc_port(self) -> int:
        """A VNC server's web port, where one is open inside the desktop."""
        return self._address(VNC_PORT)[1]

    @property
    def vlc_port(self) -> int:
        """Port of VLC's web interface, where one is open inside the desktop."""
        return self._address(VLC_PORT)[1]

    @property
    def vm_screen_size(self) -> dict[str, int]:
        """`width` and `height`, pixels."""
        return {"width": self.screen_width, "height": self.screen_height}

    def start_recording(self) -> None:
        """Begin a recording of the screen."""
        self.controller.start_recording()

    def end_recording(self, dest: str) -> None:
        """End the recording and write it.

        Args:
            dest: Path of the MP4 file on this host.
        """
        self.controller.end_recording(dest)

    # Inside.

    def _running_core(self) -> AsyncDesktopEnv:
        if self._core is None:
            raise DartEnvError("No episode is running; call reset() first.")
        return self._core

    def _lease(self) -> LeaseLike:
        lease = self._running_core().lease
        if lease is None:
            raise DartEnvError("The desktop was lost; call reset().")
        return lease

    def _address(self, port: int) -> tuple[str, int]:
        return self._loop.run(self._tunnel(port))

    async def _tunnel(self, port: int) -> tuple[str, int]:
        """Return the local address of a port of the current lease, opened when it is first asked for."""
        lease = self._lease()
        if lease is not self._tunnel_lease:
            await self._close_tunnels()
            self._tunnel_lease = lease
        if port not in self._addresses:
            self._addresses[port] = await self._tunnels.enter_async_context(lease.tunnel(port))
        return self._addresses[port]

    async def _close_tunnels(self) -> None:
        self._addresses.clear()
        self._tunnel_lease = None
        await self._tunnels.aclose()

    def _perform(self, config: Sequence[Mapping[str, Any]]) -> None:
        steps = [SetupStep.model_validate(dict(step)) for step in config]
        self._loop.run(run_steps(self._lease(), steps))

    def _get_obs(self) -> dict[str, Any]:
        return self._loop.run(self._observe())

    async def _observe(self) -> dict[str, Any]:
        lease = self._lease()
        picture = await lease.guest("GET", "/screenshot")
        tree = await lease.guest("GET", "/accessibility") if self.require_a11y_tree else None
        terminal = await lease.terminal() if self.require_terminal else None
        return {
            "screenshot": picture.content if picture.status == 200 else None,
            "accessibility_tree": _tree(tree.content) if tree is not None and tree.status == 200 else None,
            "terminal": terminal,
            "instruction": self.instruction,
        }


_EMPTY_TASK: dict[str, Any] = {
    "id": "none",
    "instruction": "Nothing.",
    "evaluator": {"func": "infeasible"},
    "publish_setup": False,
}


def _tree(content: bytes) -> str | None:
    try:
        answer = parse_object(content, TREE_LIMIT)
    except MalformedAnswer:
        return None
    return str(answer["AT"]) if "AT" in answer else None
