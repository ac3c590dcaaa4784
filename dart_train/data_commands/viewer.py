"""The page of one trajectory: one HTML file that opens anywhere and loads nothing.

Role: turn a trajectory with its provenance into `ViewedTrajectory`, and render it. Each step shows the screen that the policy saw with the
action drawn, its tokens coloured by surprisal (minus the log-prob, whose expectation is the entropy), policy version or staleness gate, its
advantage, and why it was trained on. Rule: what is redacted is nowhere in the file; a missing image is a sentence. Non-goals: choosing
trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dart_agent.data_client.image_store import BlobStorage
from dart_agent.errors import StoreError
from dart_agent.types import StepRecord, Trajectory
from dart_train.data_commands.provenance import BatchUse, StepProvenance, TrajectoryProvenance
from dart_train.data_commands.redaction import Redaction
from dart_train.report.examples import action_points, embed_image, format_action

Decode = Callable[[int], str]
"""From a token id to its text."""
FULL_SURPRISAL = 4.0
"""Nats from which a token has the strongest colour."""


@dataclass(frozen=True, slots=True)
class ViewedToken:
    """One sampled token.

    Attributes:
        text: Its text, or its number.
        surprisal: Minus its log-prob, in nats; None where it has none.
        shade: Surprisal as a fraction of `FULL_SURPRISAL`, at most 1.
        version: The policy version that sampled it, None where it is not known.
        colour: Number of that version among those of the trajectory, for a colour.
        trained: Whether it was trained on.
    """

    text: str
    surprisal: float | None
    shade: float
    version: int | None
    colour: int
    trained: bool


@dataclass(frozen=True, slots=True)
class ViewedStep:
    """One step.

    Attributes:
        number: The step's number, from 1.
        image_uri: The screen that the policy saw, as a data URI; None where there is none.
        image_wh: Its width and height in pixels.
        points: Where the action points in it, in pixels: the target, and the end of a drag.
        missing: Why there is no image.
        action: The action, formatted for display.
        text: The response.
        parse_error: Why the response was no action.
        tokens: Its tokens; none where they are redacted.
        n_tokens: How many there are.
        prompt_tokens: Length of the prompt.
        mean_surprisal: Mean of minus the log-prob of its tokens, in nats; None without log-probs.
        entropy: Mean token entropy at the trainer, in nats; None where it told none.
        advantage: The advantage of the last batch that it was in, None where there is none.
        versions: The policy versions that sampled it.
        staleness: Staleness in that batch.
        verdict: Why it was trained on, or was not.
        trained: Whether it was trained on.
        model_s: Seconds that the model took.
        env_s: Seconds that the environment took.
    """

    number: int
    image_uri: str | None
    image_wh: tuple[int, int]
    points: tuple[tuple[int, int], ...]
    missing: str
    action: str
    text: str
    parse_error: str | None
    tokens: tuple[ViewedToken, ...]
    n_tokens: int
    prompt_tokens: int
    mean_surprisal: float | None
    entropy: float | None
    advantage: float | None
    versions: str
    staleness: int | None
    verdict: tuple[str, ...]
    trained: bool
    model_s: float
    env_s: float


@dataclass(frozen=True, slots=True)
class ViewedTrajectory:
    """What the page shows.

    Attributes:
        run: Name of the run.
        trajectory: The trajectory.
        instruction: What the policy was asked to do.
        known: Why its steps were trained on.
        steps: Its steps.
        versions: The policy versions that wrote in it, in order; the colours of tokens follow this order.
        redaction: What was taken out.
    """

    run: str
    trajectory: Trajectory
    instruction: str
    known: TrajectoryProvenance
    steps: tuple[ViewedStep, ...]
    versions: tuple[int, ...]
    redaction: Redaction


def view_trajectory(
    run: str,
    trajectory: Trajectory,
    known: TrajectoryProvenance,
    instruction: str,
    images: BlobStorage,
    screen_wh: tuple[int, int],
    decode: Decode,
    redaction: Redaction,
) -> ViewedTrajectory:
    """Collect what the page of a trajectory shows.

    Args:
        run: Name of the run.
        trajectory: The trajectory, redacted already.
        known: Why its steps were trained on.
        instruction: What the policy was asked to do.
        images: Where its images are.
        screen_wh: Width and height of the desktop's screen in pixels: the coordinates of actions.
        decode: From a token id to its text.
        redaction: What was taken out.

    Returns:
        The page's contents.
    """
    versions = sorted({span.version for step in trajectory.steps_S for span in step.version_spans})
    colours = {version: number for number, version in enumerate(versions)}
    provenance = {each.index: each for each in known.steps}
    steps = tuple(
        _view_step(step, provenance.get(step.index), colours, images, screen_wh, decode, redaction)
        for step in trajectory.steps_S
    )
    return ViewedTrajectory(run, trajectory, instruction, known, steps, tuple(versions), redaction)


def write_page(viewed: ViewedTrajectory, file: Path) -> None:
    """Write the page.

    Args:
        viewed: Its contents.
        file: The file.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("dart_train.data_commands"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("trajectory.html.j2").render(view=viewed, full_surprisal=FULL_SURPRISAL)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")


def _view_step(
    step: StepRecord,
    known: StepProvenance | None,
    colours: Mapping[int, int],
    images: BlobStorage,
    screen_wh: tuple[int, int],
    decode: Decode,
    redaction: Redaction,
) -> ViewedStep:
    uses = () if known is None else known.uses
    told = next((use for use in reversed(uses) if use.trained), uses[-1] if uses else None)
    screen = _screen(step, images, screen_wh, redaction)
    versions = dict.fromkeys(span.version for span in step.version_spans)
    return ViewedStep(
        number=step.index + 1,
        image_uri=screen.uri,
        image_wh=screen.size_wh,
        points=screen.points,
        missing=screen.missing,
        action=format_action(step),
        text=step.text,
        parse_error=step.parse_error,
        tokens=() if redaction.text else _tokens(step, told, colours, decode),
        n_tokens=len(step.token_ids_T),
        prompt_tokens=len(step.prompt_ids_P),
        mean_surprisal=-sum(step.logprobs_T) / len(step.logprobs_T) if step.logprobs_T else None,
        entropy=None if told is None else told.entropy,
        advantage=None if told is None else told.advantage,
        versions=", ".join(str(version) for version in versions) or "not known",
        staleness=None if told is None else told.staleness,
        verdict=() if known is None else known.verdict,
        trained=known is not None and known.trained,
        model_s=step.model_s,
        env_s=step.env_s,
    )


def _tokens(
    step: StepRecord, use: BatchUse | None, colours: Mapping[int, int], decode: Decode
) -> tuple[ViewedToken, ...]:
    trained = use.trainable if use is not None and use.trained else ()
    ntokens = len(step.token_ids_T)
    version_T: list[int | None] = [None] * ntokens
    for span in step.version_spans:
        end = min(span.end, ntokens)  # behind the tokens are the targets of a head
        version_T[span.start : end] = [span.version] * (end - span.start)
    found = []
    for position, (token, version) in enumerate(zip(step.token_ids_T, version_T, strict=True)):
        surprisal = -step.logprobs_T[position] if step.logprobs_T else None
        found.append(
            ViewedToken(
                text=decode(token),
                surprisal=surprisal,
                shade=min(1.0, max(0.0, (surprisal or 0.0) / FULL_SURPRISAL)),
                version=version,
                colour=0 if version is None else colours[version],
                trained=any(start <= position < end for start, end in trained),
            )
        )
    return tuple(found)


class _Screen(NamedTuple):
    """A screenshot for the page, or why there is none."""

    uri: str | None = None
    size_wh: tuple[int, int] = (0, 0)
    points: tuple[tuple[int, int], ...] = ()
    missing: str = ""


def _screen(step: StepRecord, images: BlobStorage, screen_wh: tuple[int, int], redaction: Redaction) -> _Screen:
    if not step.image_sha256:
        return _Screen(missing="no screenshot is stored for this step")
    if redaction.screens:
        height, width = step.image_hw[-1]
        return _Screen(missing=f"screenshot of {width} x {height} pixels, redacted")
    try:
        pixels = images.get(step.image_sha256[-1])
    except StoreError as error:
        return _Screen(missing=f"the screenshot is missing: {error}")
    points = tuple(action_points(step, screen_wh, pixels))
    return _Screen(embed_image(pixels), (pixels.shape[1], pixels.shape[0]), points)
