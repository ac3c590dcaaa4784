"""pyautogui text as an action space: read as input events (`pyautogui`), or run inside the desktop (`pyautogui-exec`).

This module has the text spaces and both codecs. The texts `WAIT`, `DONE` and `FAIL` are actions too, as OSWorld's
agents write them. A Markdown fence around the code is removed. The caller chooses the executed form by its own name,
and its steps report the code's result in `info["code"]`. The calls that can be read are in `pyautogui_calls`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from gymnasium import Space

from dart_envs.action_formats.pyautogui_calls import MAX_CODE_LENGTH, parse_calls
from dart_envs.action_spaces.base import StatelessCodec, TextActionSpace, decode_common_action
from dart_envs.actions import decode_action
from dart_envs.errors import ActionError
from dart_envs.spaces import SAMPLE_KEYS, UnicodeText, reject_masks
from dart_envs.types import Action, ActionType, DecodedAction

_CODE_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
_WORDS = {"WAIT": ActionType.WAIT, "DONE": ActionType.DONE, "FAIL": ActionType.FAIL}


class PyautoguiTextSpace(TextActionSpace):
    """Texts that can be performed on a screen; samples are one call, or one of the three words.

    Args:
        resolution: (width, height) of the screen in pixels.
        seed: Seeds the samples.
    """

    def __init__(self, resolution: tuple[int, int], *, seed: int | np.random.Generator | None = None) -> None:
        self._texts = UnicodeText()
        super().__init__(resolution, self._texts, seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a text.

        Args:
            mask: Must be None.
            probability: Must be None.

        Returns:
            One call of pyautogui, or `WAIT`, `DONE` or `FAIL`.
        """
        reject_masks(mask, probability)
        x, y = (int(self.np_random.integers(side)) for side in self.resolution)
        key = SAMPLE_KEYS[int(self.np_random.integers(len(SAMPLE_KEYS)))]
        clicks = int(self.np_random.integers(-5, 6))
        choices = (
            f"pyautogui.click({x}, {y})",
            f"pyautogui.moveTo({x}, {y})",
            f"pyautogui.rightClick({x}, {y})",
            f"pyautogui.doubleClick({x}, {y})",
            f"pyautogui.dragTo({x}, {y}, button='left')",
            f"pyautogui.scroll({clicks}, {x}, {y})",
            f"pyautogui.press({key!r})",
            f"pyautogui.hotkey('ctrl', {key!r})",
            f"pyautogui.write({self._texts.sample()!r})",
            *_WORDS,
        )
        return choices[int(self.np_random.integers(len(choices)))]

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text that can be performed."""
        try:
            return isinstance(x, str) and parse_text(x, self.resolution, (0, 0)) is not None
        except ActionError:
            return False


def strip_code_fence(text: str) -> str:
    """Remove a Markdown fence and the space around the code."""
    fenced = _CODE_FENCE.fullmatch(text)
    return (fenced.group(1) if fenced else text).strip()


def parse_text(text: str, resolution: tuple[int, int], pointer: tuple[int, int]) -> DecodedAction:
    """Read what a text performs.

    Args:
        text: Python text, or one of the three words.
        resolution: (width, height) of the screen in pixels.
        pointer: Pointer position, in screen pixels.

    Returns:
        What to perform.

    Raises:
        ActionError: If the text cannot be performed.
    """
    code = strip_code_fence(text)
    if code in _WORDS:
        return decode_action(Action(_WORDS[code]), resolution)
    return DecodedAction(tuple(parse_calls(code, resolution, pointer)))


class PyautoguiCodec(StatelessCodec):
    """Codec of `pyautogui`: texts, OSWorld's `{"command": text}`, and `Action`s.

    Args:
        resolution: (width, height) of the screen in pixels.
    """

    def __init__(self, resolution: tuple[int, int]) -> None:
        self._resolution = resolution
        self._space = PyautoguiTextSpace(resolution)

    @property
    def space(self) -> Space[Any]:
        """The texts that can be performed."""
        return self._space

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action; see `ActionCodec.decode`."""
        return decode_common_action(value, self._resolution) or parse_text(_text(value), self._resolution, pointer)


class PyautoguiExecCodec(PyautoguiCodec):
    """Codec of `pyautogui-exec`: any Python text, which runs inside the desktop as its user.

    Args:
        resolution: (width, height) of the screen in pixels.
    """

    def __init__(self, resolution: tuple[int, int]) -> None:
        super().__init__(resolution)
        self._code_space = PythonTextSpace(resolution)

    @property
    def space(self) -> Space[Any]:
        """The texts that are short enough."""
        return self._code_space

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action; see `ActionCodec.decode`."""
        own = decode_common_action(value, self._resolution)
        if own is not None:
            return own
        code = strip_code_fence(_text(value))
        if code in _WORDS:
            return decode_action(Action(_WORDS[code]), self._resolution)
        if len(code) > MAX_CODE_LENGTH or "\0" in code:
            raise ActionError(f"Code has at most {MAX_CODE_LENGTH} characters and no NUL.")
        return DecodedAction(code=code)


class PythonTextSpace(PyautoguiTextSpace):
    """Any text up to the length limit; samples are calls of pyautogui."""

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text without NUL up to the length limit."""
        return isinstance(x, str) and len(x) <= MAX_CODE_LENGTH and "\0" not in x


def _text(value: Any) -> str:
    text = value.get("command") if isinstance(value, dict) and set(value) == {"command"} else value
    if not isinstance(text, str):
        raise ActionError(f"An action of this space is Python text, not {type(value).__name__}.")
    return text
