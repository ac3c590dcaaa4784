r"""The reward that a user's program gives.

    stdin    one JSON object: task_id, instruction, purpose, phase, stop, end, duration_s, steps [{index, text, action, parse_error}],
             evaluator (reward and outcome of the task's evaluator; null where it has none), screenshots_png (base64, the final screen last)
    stdout   one line, a JSON object: {"reward": 0.5} with a number in [0, 1], and "details" (an object) where it likes;
             {"reward": null, "cause": "..."} says that there is no verdict
    exit     code 0

Role: runs the program once for each episode. Rule: argv only, no shell, a process group of its own that is killed after the time limit,
after the program has ended, and when the worker stops; at most `MAX_OUTPUT_BYTES` of output are read. A process in another group that holds
the outputs keeps nobody waiting. Everything else than the above is no verdict, and the cause says what it was: whether the program did not
start, took too long, failed, said too much, or said something else. The record holds what the policy wrote: a program that starts and fails
is run on a control record (`control`). Non-goals: trust; the program runs as the user of the rollout worker.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from dart_agent.rewards.control import ask_with_control
from dart_agent.rewards.settings import ProgramSettings
from dart_agent.rewards.source import EndedEpisode, EpisodeRefusedError, RewardError, Verdict, prepare_task
from dart_agent.types import RewardKind, StopReason
from dart_envs.clock import SYSTEM_CLOCK, wait_for
from dart_envs.observations.transforms import encode_png
from dart_envs.tasks import Task
from dart_envs.types import RgbImage
from dart_server.wire import Clock
from dart_server.wire.guest_answers import JsonLimit, parse_json

MAX_OUTPUT_BYTES = 65_536
"""Of standard output; of standard error the first bytes are kept and the others read and forgotten."""
_TOLD_STDERR = 300
_CHUNK_BYTES = 16_384
_REPLY_LIMIT = JsonLimit(MAX_OUTPUT_BYTES, depth=64, values=MAX_OUTPUT_BYTES)
_WAIT = {"type": "wait", "duration_s": 1.0}
_KEYS = frozenset({"reward", "details", "cause"})


class ProgramReward:
    """A user's program.

    Args:
        settings: What is run.
        clock: Clock of the time limit.
    """

    kind = RewardKind.PROGRAM

    def __init__(self, settings: ProgramSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock

    @property
    def screenshots(self) -> int:
        """How many of the latest different screens it looks at."""
        return self._settings.screenshots

    def prepare(self, task: Task) -> Task:
        """Return the task, judged by its evaluator where it has one: the program is told what that said."""
        return prepare_task(self.kind, task)

    async def reward(self, ended: EndedEpisode) -> Verdict:
        """Run the program on an episode."""
        return await ask_with_control(
            lambda: self._judge(ended, episode_record, ended.last_screens),
            lambda: self._judge(ended, control_record, partial(_black_screens, ended)),
        )

    async def _judge(
        self,
        ended: EndedEpisode,
        record_of: Callable[[EndedEpisode], dict[str, Any]],
        last_screens: Callable[[int], list[RgbImage]],
    ) -> Verdict:
        def encode() -> bytes:
            count = self.screenshots
            pngs = [encode_png(screen) for screen in (last_screens(count) if count else [])]
            record = record_of(ended) | {"screenshots_png": [base64.b64encode(png).decode("ascii") for png in pngs]}
            return json.dumps(record).encode("utf-8") + b"\n"

        return parse_reply(await self._run(await asyncio.to_thread(encode)))

    async def _run(self, record: bytes) -> bytes:
        """Standard output of one run. Raises RewardError where the program does not start, EpisodeRefusedError where it fails."""
        argv = self._settings.argv
        with tempfile.TemporaryFile() as stdin, _Output() as output, _Output() as said:
            await asyncio.to_thread(_fill, stdin, record)
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=stdin,
                    stdout=output.writer,
                    stderr=said.writer,
                    start_new_session=True,
                )
            except OSError as error:
                raise RewardError(f"{argv[0]} did not start: {error.strerror}") from None
            output.begin()
            said.begin()
            try:
                await wait_for(self._clock, self._settings.timeout_s, process.wait())
            except TimeoutError:
                raise EpisodeRefusedError(
                    f"{argv[0]} took more than {self._settings.timeout_s:g} s: make it faster, or raise reward.program.timeout_s"
                ) from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            output.finish()
            said.finish()
        if len(output.kept) > MAX_OUTPUT_BYTES:
            raise EpisodeRefusedError(f"the program wrote more than {MAX_OUTPUT_BYTES} bytes: it answers one line")
        if process.returncode != 0:
            told = said.kept.decode("utf-8", "replace").strip()[-_TOLD_STDERR:]
            raise EpisodeRefusedError(
                f"{argv[0]} ended with exit code {process.returncode}: {told or 'it said nothing'}"
            )
        return output.kept


class _Output:
    """What a program writes to one pipe: the first bytes, one more than may be written; the rest is read and forgotten.

    The pipe is the caller's: a process that the program leaves behind may hold its other end, and keeps nobody waiting.
    """

    def __init__(self) -> None:
        self.kept = b""
        self.writer = -1
        self._reader = -1

    def __enter__(self) -> Self:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)
        self._close_writer()

    def begin(self) -> None:
        """Read from now on; the program has its end of the pipe."""
        self._close_writer()
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    def finish(self) -> None:
        """Read what an ended program left in the pipe."""
        while len(self.kept) <= MAX_OUTPUT_BYTES and self._read():
            pass

    def _read(self) -> bool:
        """Read a piece, and say whether there may be more now."""
        try:
            piece = os.read(self._reader, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            asyncio.get_running_loop().remove_reader(self._reader)
        self.kept += piece[: max(0, MAX_OUTPUT_BYTES + 1 - len(self.kept))]
        return bool(piece)

    def _close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


def _fill(file: BinaryIO, content: bytes) -> None:
    """Write a file that is read from its beginning then."""
    file.write(content)
    file.seek(0)


def episode_record(ended: EndedEpisode) -> dict[str, Any]:
    """Describe an episode for a program.

    Args:
        ended: The episode.

    Returns:
        JSON values, without screenshots.
    """
    trajectory = ended.trajectory
    judged = None
    if ended.task.active_evaluators:
        judged = {"reward": trajectory.reward, "outcome": trajectory.info.get("outcome", {})}
    return {
        "task_id": trajectory.task_id,
        "instruction": ended.task.instruction,
        "purpose": trajectory.purpose.value,
        "phase": trajectory.phase,
        "stop": trajectory.stop.value,
        "end": trajectory.end.value,
        "duration_s": trajectory.duration_s,
        "steps": [
            {"index": step.index, "text": step.text, "action": step.action, "parse_error": step.parse_error}
            for step in trajectory.steps_S
        ],
        "evaluator": judged,
    }


def control_record(ended: EndedEpisode) -> dict[str, Any]:
    """Describe an episode of the same task, as long as the one that was played, in which the agent waited and then said that it is done.

    A program that is too slow for the number of steps of an honest episode is too slow for this one, too.

    Args:
        ended: The episode that was played.

    Returns:
        JSON values, without screenshots; nothing in them but the number of steps is the policy's doing.
    """
    count = max(1, len(ended.trajectory.steps_S))
    actions = [_WAIT] * (count - 1) + [{"type": "done"}]
    return episode_record(ended) | {
        "stop": StopReason.DONE.value,
        "end": StopReason.DONE.end.value,
        "duration_s": float(count),
        "steps": [
            {"index": index, "text": "", "action": action, "parse_error": None} for index, action in enumerate(actions)
        ],
        "evaluator": {"reward": 0.0, "outcome": {}} if ended.task.active_evaluators else None,
    }


def _black_screens(ended: EndedEpisode, count: int) -> list[RgbImage]:
    """As many black screens as the program would get of the episode."""
    return [np.zeros_like(screen) for screen in ended.last_screens(count)]


def parse_reply(output: bytes) -> Verdict:
    """Read the verdict of a program.

    Args:
        output: What it wrote to standard output.

    Returns:
        The verdict.

    Raises:
        EpisodeRefusedError: It is no verdict.
        RewardError: It says that there is none.
    """
    try:
        reply = parse_json(output, _REPLY_LIMIT) if len(output.decode("utf-8").strip().splitlines()) == 1 else None
    except ValueError:
        reply = None
    if not isinstance(reply, dict) or not {"reward"} <= reply.keys() <= _KEYS:
        shown = output[:_TOLD_STDERR].decode("utf-8", "replace").strip()
        raise EpisodeRefusedError(f'the program must answer one line like {{"reward": 0.5}}, and answered {shown!r}')
    reward, details = reply["reward"], reply.get("details", {})
    if reward is None:
        raise RewardError(str(reply.get("cause") or "the program gives no verdict"))
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0.0 <= reward <= 1.0:
        raise EpisodeRefusedError(f"the program must answer a reward between 0 and 1, not {reward!r}")
    if not isinstance(details, dict):
        raise EpisodeRefusedError(f"the details of a reward are a JSON object, not {details!r}")
    return Verdict(float(reward), {"program": details})
