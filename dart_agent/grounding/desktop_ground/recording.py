"""The screens of all applications of an image.

Role: `record_applications` walks applications on desktops of a farm. Rule: applications do not depend on each other, so that the number of
desktops changes nothing but the time. A farm or a desktop that fails costs the application that was being walked, which is told as missing
with the cause, and another desktop is leased; one that fails before an application is walked costs none. Finished applications are kept on
disk, and a second call with the same folder goes on from there. Non-goals: questions (`dart_agent.grounding.desktop_ground.benchmark`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dart_agent.errors import ConfigError
from dart_agent.grounding.desktop_ground.applications import GroundApplication, find_applications
from dart_agent.grounding.desktop_ground.kept_screens import KeptScreens
from dart_agent.grounding.desktop_ground.screen import CapturedScreen
from dart_agent.grounding.desktop_ground.walk import ApplicationMissing, snapshot_of, walk_application
from dart_envs.errors import DartEnvError, NoCapacityError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_server.wire import DesktopShape, SnapshotView

LEASE_WAIT_S = 300.0
MOST_ATTEMPTS = 3
"""Attempts in a row to lease a desktop and take its first snapshot, before applications are left to the other desktops."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """Which screens are recorded.

    Attributes:
        image: Desktop image.
        resolution: (width, height) of the screens in pixels.
        seed: Chooses states.
        applications: Names of applications; none: all of the image.
        states: Most states of one application.
        desktops: Desktops at once.
        farm_url: The farm; None: DART_FARM_URL, else the embedded one.
    """

    image: str = "desktop"
    resolution: tuple[int, int] = (1280, 800)
    seed: int = 0
    applications: tuple[str, ...] = ()
    states: int = 10
    desktops: int = 1
    farm_url: str | None = None

    def shape(self) -> DesktopShape:
        """The desktop to lease."""
        return DesktopShape(image=self.image, resolution=self.resolution)

    def screens(self) -> dict[str, Any]:
        """What decides the screens, which calls that share a folder must agree on."""
        return {"image": self.image, "resolution": list(self.resolution), "seed": self.seed, "states": self.states}


@dataclass
class RecordedApplications:
    """What was recorded.

    Attributes:
        walked: Screens by application.
        digests: Digests of the desktop images.
        missing: Causes by application that was left out.
    """

    walked: dict[str, list[CapturedScreen]] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def screens(self) -> list[CapturedScreen]:
        """All screens, by name of the application."""
        return [screen for name in sorted(self.walked) for screen in self.walked[name]]


@dataclass
class _Walk:
    """What the desktops of one call share."""

    plan: RecordPlan
    kept: KeptScreens
    progress: Callable[[str], None]
    waiting: deque[GroundApplication]
    found: RecordedApplications
    cause: DartEnvError | None = None
    """Why the latest desktop that is not replaced failed."""

    def leave_out(self, application: GroundApplication, cause: Exception) -> None:
        """Count an application as missing."""
        self.found.missing[application.name] = str(cause)
        self.progress(f"{application.name} is left out: {cause}")


async def record_applications(
    plan: RecordPlan, kept: KeptScreens, progress: Callable[[str], None]
) -> RecordedApplications:
    """Walk the applications of an image.

    Args:
        plan: What is recorded.
        kept: Keeps the screens of finished applications; those of an earlier call with the same plan are not walked again.
        progress: Called with a line per application.

    Returns:
        What was recorded.

    Raises:
        ConfigError: The plan names an unknown image or application, or what is kept was recorded with other values.
        DartEnvError: The farm gives no usable desktop while applications wait; the screens of finished applications are kept.
    """
    walk = _begin(plan, kept, find_applications(plan.image, plan.applications).applications, progress)
    try:
        if walk.waiting:
            async with await AsyncFarmClient.connect(plan.farm_url) as farm, asyncio.TaskGroup() as group:
                for _ in range(min(plan.desktops, len(walk.waiting))):
                    group.create_task(_work(farm, walk))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if walk.waiting and walk.cause is not None:
        raise walk.cause
    return walk.found


def _begin(
    plan: RecordPlan, kept: KeptScreens, applications: Sequence[GroundApplication], progress: Callable[[str], None]
) -> _Walk:
    """What is to be walked, and what an unfinished call has walked already."""
    differing = kept.differs_from(plan.screens())
    if differing:
        raise ConfigError(
            f"the folder keeps screens that were recorded with other values of {', '.join(differing)}: give the same ones, or a new folder"
        )
    kept.begin(plan.screens())
    walk = _Walk(plan, kept, progress, deque(), RecordedApplications())
    for application in applications:
        found = kept.read(application.name)
        if found is None:
            walk.waiting.append(application)
            continue
        digest, walk.found.walked[application.name] = found
        walk.found.digests.add(digest)
        progress(f"{application.name}: {len(found[1])} screens, kept by an earlier call")
    return walk


async def _work(farm: AsyncFarmClient, walk: _Walk) -> None:
    """One desktop after the other, until no application waits: another one after each failure of farm or desktop.

    After `MOST_ATTEMPTS` without a usable desktop, or where none becomes free in time, the applications are left to the other desktops.
    """
    failures = 0
    while walk.waiting:
        try:
            async with (
                await farm.lease(walk.plan.shape(), wait_s=LEASE_WAIT_S) as lease,
                snapshot_of(farm, lease) as base,
            ):
                failures = 0
                await _walk_on(farm, lease, base, walk)
        except DartEnvError as error:
            failures += 1
            if failures == MOST_ATTEMPTS or isinstance(error, NoCapacityError):
                walk.cause = error
                walk.progress(f"a desktop failed and is not replaced: {error}")
                return
            walk.progress(f"a desktop failed, and another one is leased: {error}")


async def _walk_on(farm: AsyncFarmClient, lease: AsyncLease, base: SnapshotView, walk: _Walk) -> None:
    """Walk applications on one desktop, until none waits or the desktop or its farm fails."""
    while walk.waiting:
        application = walk.waiting.popleft()
        try:
            screens = await walk_application(farm, lease, base, application, walk.plan.states, walk.plan.seed)
        except ApplicationMissing as error:
            walk.leave_out(application, error)
            continue
        except DartEnvError as error:
            walk.leave_out(application, error)
            return
        await asyncio.to_thread(walk.kept.add, application.name, lease.image_digest, screens)
        walk.found.walked[application.name] = screens
        walk.found.digests.add(lease.image_digest)
        walk.progress(f"{application.name}: {len(screens)} screens")
