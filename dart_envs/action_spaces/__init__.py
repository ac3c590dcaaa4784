"""The forms in which an environment takes actions: one codec per name, with a Gymnasium space and a decoder.

    canonical       Dict of type, points, text and chord (the default); also `Action`s and their JSON form
    computer_13     OSWorld's thirteen actions with WAIT, FAIL and DONE
    pyautogui       Python text, parsed against a list of allowed calls; nothing is executed but input events
    pyautogui-exec  the same text, run by Python inside the desktop as its user; for code that needs more than the list
    uitars          UI-TARS' action language, points in screen pixels
    discrete-grid   one integer: a click in a cell of a grid, a key, the wheel, waiting, the end
    normalized      one Box in [-1, 1]: pointer, buttons held, wheel, keys held, the end

`make_codec` makes a codec by name. Every sample of a codec's space can be performed. A value that cannot be performed
is refused with an `ActionError` before anything happens. Users register their own codecs under the entry point group
`dart_envs.action_spaces`, or pass a factory. Performing actions is in `dart_envs.envs.core`, model output around an
action in `dart_agent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from dart_envs.action_spaces.base import ActionCodec, CanonicalCodec, StatelessCodec
from dart_envs.action_spaces.computer_13 import Computer13Codec
from dart_envs.action_spaces.discrete_grid import DiscreteGridCodec
from dart_envs.action_spaces.normalized import NormalizedCodec
from dart_envs.action_spaces.pyautogui_text import PyautoguiCodec, PyautoguiExecCodec
from dart_envs.action_spaces.uitars_text import UitarsCodec

ENTRY_POINT_GROUP = "dart_envs.action_spaces"
CodecFactory = Callable[[tuple[int, int]], ActionCodec]
ActionSpaceLike = str | CodecFactory

CODECS: Mapping[str, CodecFactory] = {
    "canonical": CanonicalCodec,
    "computer_13": Computer13Codec,
    "pyautogui": PyautoguiCodec,
    "pyautogui-exec": PyautoguiExecCodec,
    "uitars": UitarsCodec,
    "discrete-grid": DiscreteGridCodec,
    "normalized": NormalizedCodec,
}


def make_codec(choice: ActionSpaceLike, resolution: tuple[int, int]) -> ActionCodec:
    """Make a codec for one desktop.

    Args:
        choice: Name of an action space, also of one registered under the entry point group, or a codec's factory.
        resolution: (width, height) of the screen in pixels.

    Returns:
        A new codec.

    Raises:
        ValueError: If there is no action space of that name.
    """
    if not isinstance(choice, str):
        return choice(resolution)
    factory = CODECS.get(choice)
    if factory is None:
        found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
        if choice not in found:
            raise ValueError(f"There is no action space {choice!r}; there are {', '.join([*CODECS, *sorted(found)])}.")
        factory = found[choice].load()
    return factory(resolution)


__all__ = [
    "CODECS",
    "ENTRY_POINT_GROUP",
    "ActionCodec",
    "ActionSpaceLike",
    "CodecFactory",
    "StatelessCodec",
    "make_codec",
]
