"""The example trajectories of a report: which ones are shown, and their screenshots as small images.

Role: chooses episodes of one phase and reads their steps and images. Rule: at most `SUCCESSES` + `FAILURES` trajectories of `MAX_STEPS`
steps each, every image at most `MAX_SIDE_PX` wide and high and `MAX_IMAGE_BYTES` long, so that the page stays small; a missing
image becomes a sentence. Non-goals: the page (`dart_train.report.page`).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import EpisodeResult
from dart_agent.errors import StoreError
from dart_agent.types import StepRecord, Trajectory
from dart_envs import tasks
from dart_envs.actions import first_point
from dart_envs.errors import DartEnvError
from dart_envs.observations.transforms import scale_point
from dart_envs.success import SUCCESS_AT, is_success
from dart_envs.types import RgbImage
from dart_train.report.page import Example, ExampleStep

SUCCESSES = 2
FAILURES = 2
MAX_STEPS = 10
MAX_SIDE_PX = 640
MAX_IMAGE_BYTES = 150_000
JPEG_QUALITY = 80
MARK_RADIUS_PX = 8


def choose_examples(results: Sequence[EpisodeResult], success_at: float = SUCCESS_AT) -> list[EpisodeResult]:
    """Choose the episodes to show.

    Args:
        results: Episodes of one phase that have a reward.
        success_at: Least reward of a success.

    Returns:
        Up to `SUCCESSES` successful episodes, then up to `FAILURES` failed ones, of different families where there are several.
    """
    succeeded = [result for result in results if is_success(result.reward, success_at)]
    failed = [result for result in results if not is_success(result.reward, success_at)]
    return _of_different_families(succeeded, SUCCESSES) + _of_different_families(failed, FAILURES)


def _of_different_families(results: Sequence[EpisodeResult], count: int) -> list[EpisodeResult]:
    first_of_family = {result.family: result for result in reversed(results)}
    first_ids = {result.rollout_id for result in first_of_family.values()}
    return sorted(results, key=lambda result: result.rollout_id not in first_ids)[:count]


async def read_examples(
    client: DataManagerClient,
    phase: str,
    results: Sequence[EpisodeResult],
    screen_wh: tuple[int, int],
    success_at: float = SUCCESS_AT,
) -> list[Example]:
    """Read the trajectories of a phase that `choose_examples` chooses.

    Args:
        client: The data manager.
        phase: Name of the phase.
        results: Its episodes that have a reward.
        screen_wh: Width and height of the desktops' screens in pixels: the coordinates of actions.
        success_at: Least reward of a success.

    Returns:
        The examples, successful ones first.
    """
    chosen = choose_examples(results, success_at)
    wanted = {result.rollout_id for result in chosen}
    found: dict[str, Trajectory] = {}
    if wanted:
        async for trajectory in client.trajectories(phase):
            if trajectory.rollout_id in wanted:
                found[trajectory.rollout_id] = trajectory
            if len(found) == len(wanted):
                break
    return [
        _example(client, found[result.rollout_id], result.family, screen_wh, success_at)
        for result in chosen
        if result.rollout_id in found
    ]


def _example(
    client: DataManagerClient,
    trajectory: Trajectory,
    family: str,
    screen_wh: tuple[int, int],
    success_at: float = SUCCESS_AT,
) -> Example:
    steps = trajectory.steps_S
    shown = steps if len(steps) <= MAX_STEPS else (*steps[: MAX_STEPS // 2], *steps[-(MAX_STEPS - MAX_STEPS // 2) :])
    succeeded = is_success(trajectory.reward, success_at)
    return Example(
        title=f"{'Success' if succeeded else 'Failure'} · {family}",
        instruction=find_instruction(trajectory),
        reward=trajectory.reward or 0.0,
        succeeded=succeeded,
        end=trajectory.end.value,
        steps_S=[_example_step(client, step, screen_wh) for step in shown],
        omitted_steps=len(steps) - len(shown),
    )


def find_instruction(trajectory: Trajectory) -> str:
    """Find what the policy was asked to do.

    Args:
        trajectory: The trajectory.

    Returns:
        The recorded instruction, else that of the task, else a sentence.
    """
    recorded = trajectory.info.get("instruction")
    if isinstance(recorded, str):
        return recorded
    try:
        return tasks.load(trajectory.task_id).instruction
    except DartEnvError:
        return f"(the instruction of {trajectory.task_id} is not known any more)"


def _example_step(client: DataManagerClient, step: StepRecord, screen_wh: tuple[int, int]) -> ExampleStep:
    action = format_action(step)
    if not step.image_sha256:
        return ExampleStep(step.index + 1, None, "no screenshot is stored for this step", step.text, action)
    try:
        pixels = client.images.get(step.image_sha256[-1])
    except StoreError as error:
        return ExampleStep(step.index + 1, None, f"the screenshot is missing ({error})", step.text, action)
    clicked = next(iter(action_points(step, screen_wh, pixels)), None)
    return ExampleStep(step.index + 1, embed_image(pixels, clicked), "", step.text, action)


def format_action(step: StepRecord) -> str:
    """Format the action of a step for display.

    Args:
        step: The step.

    Returns:
        The type of the action and its arguments, or why there is none.
    """
    if step.action is None:
        return f"no action ({step.parse_error or 'the response has none'})"
    if step.action.get("type") == "batch":
        return "; ".join(_format_record(record) for record in step.action["actions"])
    return _format_record(step.action)


def _format_record(record: Mapping[str, Any]) -> str:
    arguments = [f"{key}={value!r}" for key, value in record.items() if key != "type" and value is not None]
    return f"{record.get('type', '?')}({', '.join(arguments)})"


def embed_image(pixels: RgbImage, click_xy: tuple[int, int] | None = None) -> str:
    """Make a bounded image for a page that loads nothing.

    Args:
        pixels: The image, uint8 [H, W, 3].
        click_xy: Where the policy clicked in it, in pixels; a ring is drawn there.

    Returns:
        A data URI: a PNG, or a JPEG where the PNG is longer than `MAX_IMAGE_BYTES`.
    """
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX))
    if click_xy is not None:
        height, width = pixels.shape[:2]
        x, y = click_xy[0] * image.width // width, click_xy[1] * image.height // height
        draw = ImageDraw.Draw(image)
        for radius, colour in ((MARK_RADIUS_PX + 1, "white"), (MARK_RADIUS_PX, "red"), (MARK_RADIUS_PX - 1, "red")):
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour)
    media, data = "png", _encode(image, "PNG", optimize=True)
    while len(data) > MAX_IMAGE_BYTES:
        if media == "jpeg":
            image.thumbnail((image.width // 2, image.height // 2))
        media, data = "jpeg", _encode(image, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/{media};base64,{base64.b64encode(data).decode('ascii')}"


def _encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def action_points(step: StepRecord, screen_wh: tuple[int, int], pixels: RgbImage) -> list[tuple[int, int]]:
    """Find where the action of a step points.

    Args:
        step: The step.
        screen_wh: Width and height of the desktop's screen in pixels: the coordinates of actions.
        pixels: The image that the policy saw, uint8 [H, W, 3].

    Returns:
        Points in pixels of the image: the target, and the end of a drag; empty for an action without coordinates.
    """
    if step.action is None:
        return []
    points = [first_point(step.action), (step.action.get("x2"), step.action.get("y2"))]
    size_wh = (pixels.shape[1], pixels.shape[0])
    return [
        scale_point((point[0], point[1]), screen_wh, size_wh)
        for point in points
        if point is not None and isinstance(point[0], int) and isinstance(point[1], int)
    ]
