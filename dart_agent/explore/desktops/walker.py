"""A desktop on its way through the graph of an exploration.

Role: `Walker` is where one desktop stands, what it shows there, and where it is going. Rule: the explorer alone changes it. Non-goals: the
desktop itself (`dart_agent.explore.desktops.base`), what is done next (`dart_agent.explore.explorer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.desktops.base import ExplorableDesktop
from dart_agent.explore.reach import WayBack
from dart_agent.explore.screens import ScreenView

HISTORY_STEPS = 8


@dataclass
class Walker:
    """A desktop on its way.

    Attributes:
        number: Of the desktop, from 0.
        desktop: It.
        screen_id: Where it stands; None: the application was left, or it is not known.
        view: What it shows there.
        shown: What it shows that can be done, by key.
        image_sha256: Its screenshot.
        arrived_by: How it came there, as in `ExploreStepTable`.
        way: Known actions that are still to be done to get where it goes, with the screens that they lead to.
        goal: The screen that the chooser wants it to go to; None where it goes for another reason, or nowhere.
        way_back: What is being done to show absent candidates again.
        trying: Screen and candidate of an action that has begun and is not stored yet.
        faults: Its own faults in a row.
        history: Its latest steps in words, the oldest first.
    """

    number: int
    desktop: ExplorableDesktop
    screen_id: int | None = None
    view: ScreenView | None = None
    shown: Mapping[str, CandidateAction] = field(default_factory=dict)
    image_sha256: str = ""
    arrived_by: str = "restart"
    way: deque[tuple[str, int]] = field(default_factory=deque)
    goal: int | None = None
    way_back: WayBack | None = None
    trying: tuple[int, CandidateAction] | None = None
    faults: int = 0
    history: deque[str] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS))
