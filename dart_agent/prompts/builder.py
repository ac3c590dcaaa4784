"""From an observation and a history to one model call.

Role: presets and `PromptBuilder`. Rule: a prompt is a pure function of instruction, history and screenshot; the messages name their images
by position and carry no pixels. A preset is one of the four below, with our own wording, or an action format by its name
(`dart_envs.action_formats`), with the wording that its checkpoints were trained with. Non-goals: chat templates and tokens (the engine's).

    tiny     one user turn: image, instruction, the last actions        a model made here; every token counts
    qwen2    user: rules and instruction; then image / answer in turns  Qwen2-VL and the first UI-TARS: coordinates in thousandths
    uitars   the same                                                   UI-TARS-1.5 and other Qwen2.5-VL models: pixels of the picture
    qwen     system: rules; user: instruction, past actions, image      Qwen3-VL: coordinates in thousandths
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AfterValidator

from dart_agent.prompts.history import History, HistorySettings, Turn
from dart_envs.action_formats import ActionFormat, ParsedAnswer, ParseError, format_names, make_format
from dart_envs.action_formats.uitars import SCROLL_CLICKS, format_action, parse
from dart_envs.observations.geometry import Coordinates, PointMap, model_size, smart_size
from dart_envs.observations.transforms import resize_image
from dart_envs.types import Action, Observation, RgbImage

Message = Mapping[str, Any]

_RULES = f"""You operate a computer by looking at its screen and using mouse and keyboard.
Answer with one line that begins with "Thought:" and one line that begins with "Action:". One action per answer, from this list:

click(start_box='(x,y)')
left_double(start_box='(x,y)')
right_single(start_box='(x,y)')
drag(start_box='(x,y)', end_box='(x,y)')
scroll(start_box='(x,y)', direction='down')  # or up, left, right; {SCROLL_CLICKS} wheel clicks, or amount='3'
type(content='text')  # write \\n for Enter, \\' for a quote
hotkey(key='ctrl s')  # keys pressed together
wait()
finished(content='')  # the task is done
call_user()  # the task cannot be done
"""
_PIXELS = "x and y are pixels of the picture, from its top left corner."
_THOUSANDTHS = "x and y run from 0 to 1000 along the width and the height of the picture."


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """How prompts look, and how their answers are read.

    images: pictures per prompt, the present one included, where `history` is None. past_actions: how many earlier answers are repeated as
    text (None: all; a format decides by itself). multiple, min_pixels, max_pixels: model-input images have sides of this multiple and as
    many pixels; without min_pixels a screen is never enlarged. format: how a checkpoint is asked and answers; None: our own wording, in
    UI-TARS' language. history: which turns a prompt shows; None: the last `images` screenshots and all answers. notes: text behind the
    rules, which the prompt `tiny` has not.
    """

    preset: str
    images: int
    past_actions: int | None
    multiple: int
    max_pixels: int
    coordinates: Coordinates = "pixels"
    min_pixels: int | None = None
    format: ActionFormat | None = None
    history: HistorySettings | None = None
    notes: str = ""

    def picture_wh(self, screen_wh: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the model's input for a screen of (width, height)."""
        if self.min_pixels is None:
            return model_size(screen_wh, multiple=self.multiple, max_pixels=self.max_pixels)
        return smart_size(screen_wh, multiple=self.multiple, min_pixels=self.min_pixels, max_pixels=self.max_pixels)

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts at which an answer ends besides the end of the turn."""
        return () if self.format is None else self.format.stop

    def parse(self, answer: str, points: PointMap, pointer: tuple[int, int]) -> ParsedAnswer | ParseError:
        """What an answer performs, or why it performs nothing; never raises. pointer: where the mouse is, in screen pixels."""
        return parse(answer, points) if self.format is None else self.format.parse(answer, points, pointer)

    def write(self, action: Action, points: PointMap, *, thought: str = "") -> str:
        """The answer that is read as this action. Raises ActionError where the format cannot express it."""
        if self.format is None:
            return format_action(action, points, thought=thought)
        return self.format.format([action], points, thought=thought)


PRESETS: Mapping[str, PromptSpec] = {
    "tiny": PromptSpec("tiny", images=1, past_actions=1, multiple=32, max_pixels=256 * 160),
    "qwen2": PromptSpec(
        "qwen2", images=5, past_actions=None, multiple=28, max_pixels=2700 * 28 * 28, coordinates="thousandths"
    ),
    "uitars": PromptSpec("uitars", images=5, past_actions=None, multiple=28, max_pixels=2700 * 28 * 28),
    "qwen": PromptSpec(
        "qwen", images=1, past_actions=None, multiple=32, max_pixels=2560 * 32 * 32, coordinates="thousandths"
    ),
}
"""The presets with our own wording."""


def preset_names() -> tuple[str, ...]:
    """Our own presets, and the action formats."""
    return (*PRESETS, *format_names())


def check_preset(name: str) -> str:
    """The name. Raises ValueError where there is no such preset."""
    if name not in preset_names():
        raise ValueError(f"there is no prompt {name!r}; there are {', '.join(preset_names())}")
    return name


PresetName = Annotated[str, AfterValidator(check_preset)]
"""The name of a preset in a configuration."""


def preset(
    name: str,
    *,
    images: int | None = None,
    history: HistorySettings | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> PromptSpec:
    """Return a preset, changed where something is given.

    Args:
        name: Its name.
        images: Pictures per prompt.
        history: Which turns a prompt shows.
        min_pixels: Least pixels of a picture.
        max_pixels: Most pixels of a picture.

    Returns:
        The preset.

    Raises:
        ValueError: There is no preset of this name, or no picture has so few or so many pixels.
    """
    spec = PRESETS.get(check_preset(name)) or _format_spec(make_format(name))
    least = spec.min_pixels if min_pixels is None else min_pixels
    most = spec.max_pixels if max_pixels is None else max_pixels
    if most < max(spec.multiple**2, least or 0):
        raise ValueError(
            f"the prompt {name} has no picture of {least or spec.multiple**2} to {most} pixels: sides are multiples of {spec.multiple}"
        )
    return replace(
        spec,
        images=spec.images if images is None else images,
        history=history or spec.history,
        min_pixels=least,
        max_pixels=most,
    )


def _format_spec(action_format: ActionFormat) -> PromptSpec:
    picture = action_format.picture
    return PromptSpec(
        action_format.name,
        images=action_format.images,
        past_actions=None,
        multiple=picture.multiple,
        max_pixels=picture.max_pixels,
        coordinates=action_format.coordinates,
        min_pixels=picture.min_pixels,
        format=action_format,
    )


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages with image place holders, the images they refer to in order, and how written points map to the screen.

    tools: what the API of the model is given beside the messages.
    """

    messages: tuple[Message, ...]
    images: tuple[RgbImage, ...]
    points: PointMap
    tools: tuple[Mapping[str, Any], ...] = ()


class PromptBuilder:
    """Builds the prompts of one episode after the other."""

    def __init__(self, spec: PromptSpec) -> None:
        self.spec = spec

    def new_history(self) -> History:
        """An empty history for an episode."""
        settings = self.spec.history or HistorySettings(policy="screens", keep=self.spec.images)
        return History(settings, summarise=getattr(self.spec.format, "summary", action_line))

    def model_image(self, screenshot: RgbImage) -> RgbImage:
        """The screenshot in the size that the model gets."""
        return resize_image(screenshot, self.spec.picture_wh((screenshot.shape[1], screenshot.shape[0])))

    def points(self, screenshot: RgbImage, model_image: RgbImage) -> PointMap:
        """How points of `model_image` map to `screenshot`."""
        return PointMap(
            (model_image.shape[1], model_image.shape[0]),
            (screenshot.shape[1], screenshot.shape[0]),
            self.spec.coordinates,
        )

    def build(self, observation: Observation, history: History) -> Prompt:
        """The prompt for the next step; the last image is the present screen."""
        return self.build_from(observation, self.model_image(observation.screenshot), history)

    def build_from(self, observation: Observation, present: RgbImage, history: History) -> Prompt:
        """The prompt for the next step, where `present` is the observation's screen in the size that the model gets."""
        shown = [turn.image for turn in history.turns if turn.image is not None]
        picture_wh = (present.shape[1], present.shape[0])
        messages = self.messages(observation.instruction, history, picture_wh)
        tools = () if self.spec.format is None else self.spec.format.tools(picture_wh)
        return Prompt(messages, (*shown, present), self.points(observation.screenshot, present), tools)

    def messages(self, instruction: str, history: History, picture_wh: tuple[int, int]) -> tuple[Message, ...]:
        """The messages of the next step's prompt; its last image is the present screen, of (width, height) `picture_wh`."""
        if history.summary:
            done = "".join(f"\n{number}. {line}" for number, line in enumerate(history.summary, 1))
            instruction = f"{instruction}\n\nDone before the turns below:{done}"
        if self.spec.format is not None:
            return self.spec.format.messages(instruction, history.turns, picture_wh)
        return _LAYOUTS[self.spec.preset](self.spec, instruction, history.turns)


def action_line(text: str) -> str:
    """The action of an answer, without its thought."""
    _, marker, action = text.partition("Action:")
    return (action if marker else text).strip()


def _image() -> Message:
    return {"type": "image"}


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def _past(spec: PromptSpec, turns: Sequence[Turn]) -> list[str]:
    kept = len(turns) if spec.past_actions is None else spec.past_actions
    return [action_line(turn.text) for turn in turns[len(turns) - min(kept, len(turns)) :]]


def _rules(spec: PromptSpec) -> str:
    coordinates = _PIXELS if spec.coordinates == "pixels" else _THOUSANDTHS
    return "\n".join([_RULES, coordinates, *([spec.notes] if spec.notes else [])])


def _tiny(spec: PromptSpec, instruction: str, turns: Sequence[Turn]) -> tuple[Message, ...]:
    shown = sum(turn.image is not None for turn in turns)
    lines = [instruction, *(f"Action: {action}" for action in _past(spec, turns))]
    return ({"role": "user", "content": [*(_image() for _ in range(shown + 1)), _text("\n".join(lines))]},)


def _uitars(spec: PromptSpec, instruction: str, turns: Sequence[Turn]) -> tuple[Message, ...]:
    messages: list[Message] = [
        {"role": "user", "content": [_text(f"{_rules(spec)}\n\nThe task: {instruction}")]},
    ]
    for turn in turns:
        if turn.image is not None:
            messages.append({"role": "user", "content": [_image()]})
        messages.append({"role": "assistant", "content": [_text(turn.text)]})
    return (*messages, {"role": "user", "content": [_image()]})


def _qwen(spec: PromptSpec, instruction: str, turns: Sequence[Turn]) -> tuple[Message, ...]:
    past = "".join(f"\n{number}. {action}" for number, action in enumerate(_past(spec, turns), 1))
    done = f"\nDone so far:{past}" if past else ""
    shown = sum(turn.image is not None for turn in turns)
    return (
        {"role": "system", "content": [_text(_rules(spec))]},
        {
            "role": "user",
            "content": [*(_image() for _ in range(shown + 1)), _text(f"The task: {instruction}{done}")],
        },
    )


_LAYOUTS = {"tiny": _tiny, "qwen2": _uitars, "uitars": _uitars, "qwen": _qwen}
