"""The page of canonical actions: their types, their fields, and the names of keys.

Role: tables from `dart_envs.actions` and `dart_envs.key_names`. Rule: a test compares the names with those in the code. Non-goals: other
action spaces (`docs/envs.md`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from dart_docs.fields import field_meanings
from dart_docs.markdown import code, table
from dart_envs.actions import ACTION_SPECS, MAX_KEYS, MAX_TEXT_LENGTH, MAX_WAIT_S, MAX_WHEEL_CLICKS
from dart_envs.key_names import KEY_ALIASES, KEY_GROUPS
from dart_envs.types import Action, ActionType

_ON_SCREEN = "integer, on the screen"
_WHEEL = f"integer from -{MAX_WHEEL_CLICKS} to {MAX_WHEEL_CLICKS}"
LIMITS: Mapping[str, str] = {
    **dict.fromkeys(("x", "y", "x2", "y2"), _ON_SCREEN),
    **dict.fromkeys(("dx", "dy"), _WHEEL),
    "text": f"text of at most {MAX_TEXT_LENGTH} characters",
    "keys": f"tuple of 1 to {MAX_KEYS} names, no name twice",
    "duration_s": f"number from 0 to {MAX_WAIT_S:g}",
}
"""What a value of a field must satisfy."""


def actions_page() -> str:
    """Render the page."""
    names = [field.name for field in fields(Action) if field.name != "type"]
    meanings, purposes = field_meanings(Action), field_meanings(ActionType)
    types = (
        (
            code(f"ActionType.{kind.name}"),
            code(kind.value),
            _list(name for name in names if name in ACTION_SPECS[kind].fields) or "none",
            purposes[kind.name],
        )
        for kind in ActionType
    )
    aliases: dict[str, list[str]] = {}
    for written, key in KEY_ALIASES.items():
        aliases.setdefault(key, []).append(written)
    return "".join(
        (
            "# Actions and keys\n\n",
            "This page is for people who write a policy. After it you know every canonical action, its fields, and every name of a "
            'key. `dart_envs.Action(ActionType.KEY, keys=("ctrl", "s"))` is such an action. The other forms in which a policy may '
            "act stand in [Action spaces](../envs.md#action-spaces).\n\n",
            "## Action types\n\n",
            "An action has exactly the fields of its type. A field that the type does not have stays away.\n\n",
            table(("type", "in JSON", "fields", "what it does"), types),
            "## Fields\n\n",
            "Points are in screen pixels, (0, 0) is the upper left corner.\n\n",
            table(("field", "value", "meaning"), ((code(name), LIMITS[name], meanings[name]) for name in names)),
            "## Keys\n\n",
            "A key is one of these names, in lower case, or any single printable character, such as `a`, `A`, `7` or `+`.\n\n",
            table(("keys", "names"), ((group, _list(keys)) for group, keys in KEY_GROUPS.items())),
            "## Other names of keys\n\n",
            "Text of models is read more freely: in any case, and with these names of X11 and of browsers. A canonical action does not "
            "take them.\n\n",
            table(("key", "other names"), ((code(key), _list(written)) for key, written in aliases.items())),
        )
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)
