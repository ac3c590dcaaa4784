"""What an action format is, what reading an answer gives, and how several actions become one step.

Role: the protocol `ActionFormat`, its values, and `read_answer`. Rule: pure functions; a text is data, so that reading one returns a
`ParseError` and never raises; a point outside the picture is refused, never moved into it. Non-goals: single formats (one module each),
what a canonical action needs (`dart_envs.actions`), which pictures and answers a prompt keeps (`dart_agent.prompts.history`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dart_envs.actions import MAX_WAIT_S, TERMINAL_ACTIONS, action_to_dict, decode_action
from dart_envs.errors import ActionError, ActionFault
from dart_envs.observations.geometry import Coordinates, PointMap, smart_size
from dart_envs.types import Action, ActionType, DecodedAction, RgbImage
from dart_server.wire import InputEvent, MoveEvent, WaitEvent

Message = Mapping[str, Any]
"""One chat message: `role`, and `content` as a list of `{"type": "text", "text": ...}` and `{"type": "image"}` parts."""
OneAction = Action | DecodedAction
"""A canonical action, or the input events of one that no `ActionType` can say: a click with a key held, a path of a drag."""

MAX_ACTIONS = 64
"""Actions of one answer."""
MAX_EVENTS = 2_000
"""Input events of one step, as the farm takes them."""
MAX_DETAIL_CHARS = 300


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why an answer performs nothing.

    Attributes:
        fault: What is wrong.
        detail: One sentence for people.
    """

    fault: ActionFault
    detail: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What an answer performs, and the thought written before it.

    Attributes:
        actions: The actions in order, in screen pixels; at least one. Nothing follows one that ends the episode.
        thought: The text before the first action.
        action: What one step performs: the only canonical action, or the input events of all actions.
    """

    actions: tuple[OneAction, ...]
    thought: str
    action: OneAction


class PastTurn(Protocol):
    """A finished step of the episode, as a prompt shows it: `dart_agent.prompts.history.Turn`."""

    @property
    def image(self) -> RgbImage | None:
        """The picture that the model saw; None where the prompt does not show it any more."""
        ...

    @property
    def text(self) -> str:
        """What the model answered."""
        ...


@dataclass(frozen=True, slots=True)
class PictureSize:
    """The sizes of pictures that a checkpoint's image processor leaves as they are.

    Attributes:
        multiple: Both sides are a multiple of this number of pixels.
        min_pixels: Least width times height.
        max_pixels: Limit of width times height.
    """

    multiple: int
    min_pixels: int
    max_pixels: int

    def fit(self, screen_wh: tuple[int, int]) -> tuple[int, int]:
        """Return the (width, height) in which a screen of (width, height) is shown; see `smart_size`."""
        return smart_size(screen_wh, multiple=self.multiple, min_pixels=self.min_pixels, max_pixels=self.max_pixels)


class ActionFormat(Protocol):
    """How one kind of checkpoint is asked and how it answers.

    A format may have a method `summary(answer) -> str`, the line that tells of an answer whose turn a prompt does not show any more;
    without it, that is what follows `Action:`.
    """

    @property
    def name(self) -> str:
        """By which recipes and commands choose the format."""
        ...

    @property
    def picture(self) -> PictureSize:
        """In which sizes screens are shown."""
        ...

    @property
    def coordinates(self) -> Coordinates:
        """What the numbers of a point mean."""
        ...

    @property
    def images(self) -> int:
        """Pictures of a prompt that the checkpoint was trained with, the present one included."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts at which an answer ends besides the end of the turn."""
        ...

    @property
    def expresses(self) -> frozenset[ActionType]:
        """The canonical actions that `format` can write."""
        ...

    def messages(self, instruction: str, turns: Sequence[PastTurn], picture_wh: tuple[int, int]) -> tuple[Message, ...]:
        """Write the prompt of the next step; its last image is the present screen.

        Args:
            instruction: What the policy is asked to do.
            turns: The finished steps, oldest first.
            picture_wh: (width, height) of the present picture.

        Returns:
            Messages with one image part for each turn that has an image, in order, and one for the present screen.
        """
        ...

    def tools(self, picture_wh: tuple[int, int]) -> tuple[Mapping[str, Any], ...]:
        """Return the tools that the API of the model, or its chat template, is given beside the messages; most formats have none.

        Args:
            picture_wh: (width, height) of the present picture.
        """
        ...

    def parse(self, answer: str, points: PointMap, pointer: tuple[int, int] = (0, 0)) -> ParsedAnswer | ParseError:
        """Read an answer; this never raises.

        Args:
            answer: The text of the answer.
            points: Maps the points of the answer to screen pixels.
            pointer: Where the mouse pointer is, in screen pixels; actions without a point happen there.

        Returns:
            What it performs, or why it performs nothing.
        """
        ...

    def format(self, actions: Sequence[Action], points: PointMap, *, thought: str = "") -> str:
        """Write the answer that `parse` reads as these actions.

        Args:
            actions: Canonical actions in screen pixels.
            points: Maps screen pixels to the points of the answer.
            thought: Text before the actions; empty leaves it out.

        Returns:
            The answer.

        Raises:
            ActionError: If the format cannot express them.
        """
        ...


def text_part(text: str) -> Message:
    """Return a text part of a message."""
    return {"type": "text", "text": text}


def image_part() -> Message:
    """Return the place holder of an image in a message."""
    return {"type": "image"}


def conversation(
    system: str, asked: str, turns: Sequence[PastTurn], answers: Sequence[str | None]
) -> tuple[Message, ...]:
    """Write a prompt in which pictures and answers take turns.

    Args:
        system: The system prompt.
        asked: The first user turn, with the first picture after it as long as that is shown.
        turns: The finished steps, oldest first.
        answers: What is repeated of the answer of each step; None leaves it out.

    Returns:
        The messages. Pictures that are not shown any more leave no turn behind.
    """
    shown = [*(turn.image is not None for turn in turns), True]
    messages: list[Message] = [
        {"role": "system", "content": [text_part(system)]},
        {"role": "user", "content": [text_part(asked), *([image_part()] if shown[0] else [])]},
    ]
    for answer, next_shown in zip(answers, shown[1:], strict=True):
        if answer is not None:
            messages.append({"role": "assistant", "content": [text_part(answer)]})
        if next_shown:
            messages.append({"role": "user", "content": [image_part()]})
    return tuple(messages)


def read_answer(
    read: Callable[[], tuple[Sequence[OneAction], str]], screen_wh: tuple[int, int]
) -> ParsedAnswer | ParseError:
    """Read an answer and make one step of its actions.

    Args:
        read: Returns the actions and the thought, or raises `ActionError`.
        screen_wh: (width, height) of the screen in pixels.

    Returns:
        What the answer performs, or why it performs nothing.
    """
    try:
        actions, thought = read()
        kept = _until_the_end(_without_moves_to_drags(actions))
        if not kept:
            raise ActionError("The answer has no action.", ActionFault.NO_ACTION)
        if len(kept) > MAX_ACTIONS:
            raise ActionError(
                f"An answer has at most {MAX_ACTIONS} actions; this one has {len(kept)}.", ActionFault.TOO_MANY
            )
        return ParsedAnswer(kept, thought, combine_actions(kept, screen_wh))
    except ActionError as error:
        detail = str(error)
        return ParseError(
            error.fault, detail if len(detail) <= MAX_DETAIL_CHARS else f"{detail[: MAX_DETAIL_CHARS - 3]}..."
        )


def combine_actions(actions: Sequence[OneAction], screen_wh: tuple[int, int]) -> OneAction:
    """Make one step of actions that are performed one after the other, with one picture at the end.

    Args:
        actions: The actions; one that ends the episode is the last.
        screen_wh: (width, height) of the screen in pixels.

    Returns:
        The only canonical action as it is, else the input events of all.

    Raises:
        ActionError: If an action cannot be performed, or all of them are too much for one step.
    """
    decoded = [action if isinstance(action, DecodedAction) else decode_action(action, screen_wh) for action in actions]
    for one in decoded:
        _check_points(one.events, screen_wh)
    events = tuple(event for one in decoded for event in one.events)
    if len(events) > MAX_EVENTS:
        raise ActionError(
            f"One step has at most {MAX_EVENTS} input events; this answer has {len(events)}.", ActionFault.TOO_MANY
        )
    waited_s = sum(event.ms for event in events if isinstance(event, WaitEvent)) / 1000
    if waited_s > MAX_WAIT_S:
        raise ActionError(
            f"One step waits at most {MAX_WAIT_S:.0f} seconds; this answer waits {waited_s:.1f}.", ActionFault.TOO_MANY
        )
    if len(actions) == 1 and isinstance(actions[0], Action):
        return actions[0]
    return DecodedAction(events, decoded[-1].end)


def _check_points(events: Sequence[InputEvent], screen_wh: tuple[int, int]) -> None:
    for event in events:
        if isinstance(event, MoveEvent) and not (0 <= event.x < screen_wh[0] and 0 <= event.y < screen_wh[1]):
            raise ActionError(
                f"The point ({event.x}, {event.y}) is outside the {screen_wh[0]}x{screen_wh[1]} screen.",
                ActionFault.OUT_OF_SCREEN,
            )


def _without_moves_to_drags(actions: Sequence[OneAction]) -> tuple[OneAction, ...]:
    """Leave out a move to where the drag after it begins: formats without a start point write a drag as these two."""
    kept: list[OneAction] = []
    for action in actions:
        before = kept[-1] if kept else None
        if (
            isinstance(action, Action)
            and isinstance(before, Action)
            and (before.type, action.type) == (ActionType.MOVE, ActionType.DRAG)
            and (before.x, before.y) == (action.x, action.y)
        ):
            kept.pop()
        kept.append(action)
    return tuple(kept)


def _until_the_end(actions: Sequence[OneAction]) -> tuple[OneAction, ...]:
    """Leave out what follows the end of the episode."""
    for index, action in enumerate(actions):
        ends = action.end is not None if isinstance(action, DecodedAction) else action.type in TERMINAL_ACTIONS
        if ends:
            return tuple(actions[: index + 1])
    return tuple(actions)


def point_to_screen(x: object, y: object, points: PointMap) -> tuple[int, int]:
    """Map a point that a model wrote to the screen.

    Args:
        x: A number.
        y: A number.
        points: Maps it to the screen.

    Returns:
        (x, y) in screen pixels.

    Raises:
        ActionError: If it is no point of the picture.
    """
    for value in (x, y):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ActionError(f"A point has two numbers, not {str(value)[:40]!r}.")
    assert isinstance(x, int | float)
    assert isinstance(y, int | float)
    screen = points.to_screen(x, y)
    if screen is None:
        width, height = points.coordinate_wh
        raise ActionError(f"A point is outside the {width}x{height} picture.", ActionFault.OUT_OF_SCREEN)
    return screen


def cannot_express(name: str, action: Action) -> ActionError:
    """Return the error of a format that has no way to write an action."""
    return ActionError(f"The format {name} cannot express {action_to_dict(action)}.")
