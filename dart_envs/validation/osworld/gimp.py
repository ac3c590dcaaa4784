"""GIMP: its preferences and its Windows menu."""

from __future__ import annotations

from dart_envs.tasks.script import ActionTemplate, ElementTarget
from dart_envs.validation.osworld.actions import Oracle, click, key, pause, type_text

PREFERENCES = (click("menu", "Edit"), pause(1), *(key("up"),) * 5, key("enter"), pause(2.5))
"""What is in GIMP's menus is not in the accessibility tree; Preferences is the fifth entry from below."""
MINIMAL_UNDO = ActionTemplate(
    do="triple_click", target=ElementTarget(role="spin button", text="5", window="Preferences", at=(0.3, 0.5))
)
"""The field has no name; it is the only one that holds a five."""

ORACLES = {
    "7767eef2-56a3-4cea-8c9f-48c070c7d65b": Oracle(
        "Preferences",
        (
            *PREFERENCES,
            click("table cell", "Theme"),
            pause(1),
            click("table cell", "Light"),
            pause(1),
            click("push button", "OK"),
            pause(2),
        ),
    ),
    "7b7617bd-57cc-468e-9c91-40c4ec2bcb3d": Oracle(
        "Preferences",
        (
            *PREFERENCES,
            click("table cell", "System Resources"),
            pause(1),
            MINIMAL_UNDO,
            type_text("100\t"),
            click("push button", "OK"),
            pause(2),
        ),
    ),
    "d52d6308-ec58-42b7-a2c9-de80e4837b2b": Oracle(
        "Windows menu", (click("menu", "Windows"), pause(1), *(key("down"),) * 4, key("enter"), pause(1.5))
    ),
}
