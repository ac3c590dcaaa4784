"""What can be explored: a desktop that is seen, acted on, saved and returned to.

Role: `ExplorableDesktop` is the explorer's view of a desktop; `DesktopFaultError` is what it raises. Rule: a fault costs the step in
which it happens; after it the desktop is asked to start again. Non-goals: leases (`dart_agent.explore.desktops.farm`), applications in
memory (`dart_agent.explore.desktops.simulated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from dart_agent.errors import AgentError
from dart_agent.explore.screens import ScreenView
from dart_envs.types import Action


class DesktopFaultError(AgentError):
    """A desktop that is explored failed, or has no such snapshot any more."""


class ExplorableDesktop(Protocol):
    """A desktop with the application that is explored."""

    async def observe(self) -> ScreenView:
        """What it shows, once the screen is quiet. Raises DesktopFaultError."""
        ...

    async def perform(self, actions: Sequence[Action]) -> None:
        """Perform actions in order. Raises DesktopFaultError."""
        ...

    async def restart(self) -> None:
        """Bring the application to its start, as it was when the exploration began. Raises DesktopFaultError."""
        ...

    async def save(self) -> str:
        """Take a snapshot; every desktop of the exploration can be restored to it.

        Returns:
            Its id.

        Raises:
            DesktopFaultError: It cannot be taken.
        """
        ...

    async def restore(self, snapshot: str) -> None:
        """Go back to a snapshot.

        Args:
            snapshot: Its id.

        Raises:
            DesktopFaultError: There is none of this id, or it does not restore.
        """
        ...

    async def discard(self, snapshot: str) -> None:
        """Delete a snapshot; one that is gone already is no fault. Raises DesktopFaultError."""
        ...

    async def fork(self, count: int) -> Sequence[Self]:
        """Make copies, each a desktop of its own in the same state. Raises DesktopFaultError."""
        ...

    async def aclose(self) -> None:
        """Give the desktop back."""
        ...
