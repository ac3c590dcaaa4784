"""Action formats: how a checkpoint is asked for actions and how its answers become canonical actions.

    uitars-1.5          UI-TARS-1.5, `Action: click(start_box=...)`, pixels of the picture
    dart-gui            DART-GUI-7B: the same language, the prompt of DART's rollouts
    qwen2.5-vl          Qwen2.5-VL, `computer_use` tool calls, pixels of the picture
    qwen3-vl            Qwen3-VL, `computer_use` tool calls, 0 to 1000
    openai-computer     OpenAI's `computer` tool: batches of actions in `computer_call` items, pixels of the screen
    anthropic-computer  Anthropic's computer toolset: `tool_use` blocks, pixels of a screen of at most 1280x720
    osworld-pyautogui   programs of pyautogui calls as OSWorld's agents write them, pixels of the screen

`make_format` gives a format by name. Users add their own under the entry point group `dart_envs.action_formats`: the entry is a
class or a factory without arguments. A format has one module; this package performs no actions and keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from dart_envs.action_formats.anthropic_computer import AnthropicComputerFormat
from dart_envs.action_formats.base import ActionFormat, ParsedAnswer, ParseError
from dart_envs.action_formats.openai_computer import OpenaiComputerFormat
from dart_envs.action_formats.osworld_pyautogui import OsworldPyautoguiFormat
from dart_envs.action_formats.qwen import Qwen3VlFormat, Qwen25VlFormat
from dart_envs.action_formats.uitars_prompts import DartGuiFormat, Uitars15Format

ENTRY_POINT_GROUP = "dart_envs.action_formats"

FORMATS: Mapping[str, Callable[[], ActionFormat]] = {
    "uitars-1.5": Uitars15Format,
    "dart-gui": DartGuiFormat,
    "qwen2.5-vl": Qwen25VlFormat,
    "qwen3-vl": Qwen3VlFormat,
    "openai-computer": OpenaiComputerFormat,
    "anthropic-computer": AnthropicComputerFormat,
    "osworld-pyautogui": OsworldPyautoguiFormat,
}


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, those of entry points included."""
    return (*FORMATS, *sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)))


def make_format(name: str) -> ActionFormat:
    """Make a format.

    Args:
        name: Its name.

    Returns:
        The format.

    Raises:
        ValueError: If there is none of that name.
    """
    if name in FORMATS:
        return FORMATS[name]()
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            made: ActionFormat = entry.load()()
            return made
    raise ValueError(f"there is no action format {name!r}; there are {', '.join(format_names())}")


__all__ = [
    "ENTRY_POINT_GROUP",
    "FORMATS",
    "ActionFormat",
    "ParseError",
    "ParsedAnswer",
    "format_names",
    "make_format",
]
