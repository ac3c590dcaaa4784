"""One integer per action, for RL code that knows `Discrete` only: the screen as a grid of cells, and a short list of keys.

    0 .. cells-1            a click in the middle of a cell, cells counted row by row
    cells .. 2 cells - 1    a double click there
    2 cells .. 3 cells - 1  a right click there
    then                    KEYS in order, the wheel up and down, waiting, DONE

The numbering of a grid never changes. There is no text: a policy types with keys or uses another space.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from dart_envs.action_spaces.base import StatelessCodec, decode_common_action, parse_int
from dart_envs.actions import LEFT, RIGHT, chord_events, clicks, decode_action
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import MoveEvent, ScrollEvent, WaitEvent

GRID = (16, 9)
"""Columns and rows."""
_CELL_CLICKS = ((LEFT, 1), (LEFT, 2), (RIGHT, 1))
KEYS: tuple[tuple[str, ...], ...] = (
    ("enter",),
    ("tab",),
    ("escape",),
    ("space",),
    ("backspace",),
    ("up",),
    ("down",),
    ("left",),
    ("right",),
    ("ctrl", "s"),
)
WHEEL_CLICKS = 3
WAIT_MS = 500


class DiscreteGridCodec(StatelessCodec):
    """Codec of `discrete-grid`; the module's docstring has the numbering.

    Args:
        resolution: (width, height) of the screen in pixels.
        columns: Columns of the grid; cells are as equal as whole pixels allow.
        rows: Rows of the grid.
    """

    def __init__(self, resolution: tuple[int, int], columns: int = GRID[0], rows: int = GRID[1]) -> None:
        self._resolution = resolution
        self._columns, self._rows = columns, rows
        self._rest: list[DecodedAction] = [DecodedAction(tuple(chord_events(keys))) for keys in KEYS]
        self._rest += [DecodedAction((ScrollEvent(dy=dy),)) for dy in (WHEEL_CLICKS, -WHEEL_CLICKS)]
        self._rest += [DecodedAction((WaitEvent(ms=WAIT_MS),)), decode_action(Action(ActionType.DONE), resolution)]
        self._space = spaces.Discrete(len(_CELL_CLICKS) * self.cells + len(self._rest))

    @property
    def cells(self) -> int:
        """Number of cells of the grid."""
        return self._columns * self._rows

    @property
    def space(self) -> spaces.Discrete:
        """One integer for each action."""
        return self._space

    def centre(self, cell: int) -> tuple[int, int]:
        """Return the middle of a cell.

        Args:
            cell: Index of the cell, row by row.

        Returns:
            (x, y) in screen pixels.
        """
        row, column = divmod(cell, self._columns)
        width, height = self._resolution
        return (2 * column + 1) * width // (2 * self._columns), (2 * row + 1) * height // (2 * self._rows)

    def decode(self, value: Any, pointer: tuple[int, int]) -> DecodedAction:
        """Read an action; see `ActionCodec.decode`."""
        own = decode_common_action(value, self._resolution)
        if own is not None:
            return own
        number = parse_int(value, 0, int(self._space.n) - 1, "An action of discrete-grid")
        which, cell = divmod(number, self.cells)
        if which >= len(_CELL_CLICKS):
            return self._rest[number - len(_CELL_CLICKS) * self.cells]
        x, y = self.centre(cell)
        return DecodedAction((MoveEvent(x=x, y=y), *clicks(*_CELL_CLICKS[which])))
