"""What a click did, in words.

Role: `describe_effect` says by rules what a click opened and what appeared after it. Rule: titles and names are those that the step itself
saw before and after the click: the stored views of two screens were seen at other times, and may differ for other reasons. What the stored
picture of the screen shows already did not appear. Non-goals: names and places (`dart_agent.explore.queries.rules`).
"""

from __future__ import annotations

from dart_agent.explore.storage.records import StoredScreen, StoredStep
from dart_agent.grounding.samples import QueryKind

MAX_NAME = 60
"""Characters of a name in a query."""
NAMES_SHOWN = 2
"""How many names of what appeared are in a query."""


def describe_effect(screen: StoredScreen, step: StoredStep) -> list[tuple[QueryKind, str]]:
    """Say what a click did.

    Args:
        screen: The screen of the click.
        step: The click.

    Returns:
        Kinds and queries; none where the screen stayed the same, or what the click changed was not noted.
    """
    if step.appeared is None or step.to_screen is None or step.to_screen == step.from_screen:
        return []
    found: list[tuple[QueryKind, str]] = []
    stored = {element.name.strip() for element in screen.elements}
    names = [name for name in step.appeared if len(name) <= MAX_NAME and name not in stored][:NAMES_SHOWN]
    shown = " and ".join(f'"{name}"' for name in names)
    if step.after_window and step.after_window not in (step.before_window, screen.window):
        found.append(("functional", f'click the element that opens the window "{step.after_window[:MAX_NAME]}"'))
    elif shown:
        found.append(("functional", f"click the element that gives access to {shown}"))
    if shown:
        verb = "appear" if len(names) > 1 else "appears"
        found.append(("outcome", f"click the element after which {shown} {verb}"))
    return found
