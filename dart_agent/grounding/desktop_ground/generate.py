"""The whole benchmark: desktops, files, manifest.

Role: `generate` walks the applications of an image on desktops of a farm and writes a folder; `write_benchmark` writes one from screens.
Rule: the folder appears with `manifest.json` last, so that a folder without it is not complete; what was asked is checked before a desktop
is leased. Applications do not depend on each other, so that the number of desktops changes nothing but the time. A farm or a desktop that
fails costs the application that was being walked, which the manifest names with the cause, and another desktop is leased; finished
applications are on disk until the benchmark is complete, and a second call with the same folder goes on from there. Non-goals: which
questions there are (`dart_agent.grounding.desktop_ground.benchmark`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dart_agent.errors import AgentError, ConfigError
from dart_agent.grounding.datasets.formats import SAMPLES_FILE
from dart_agent.grounding.desktop_ground.applications import GroundApplication, find_applications
from dart_agent.grounding.desktop_ground.benchmark import NOVEL, SPLITS, BenchmarkScreen, make_benchmark
from dart_agent.grounding.desktop_ground.kept_screens import KeptScreens
from dart_agent.grounding.desktop_ground.screen import CapturedScreen
from dart_agent.grounding.desktop_ground.walk import ApplicationMissing, snapshot_of, walk_application
from dart_agent.grounding.samples import write_samples
from dart_envs.errors import DartEnvError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.observations.annotated_screens import write_file_atomically
from dart_envs.observations.transforms import encode_png
from dart_server.wire import DesktopShape, SnapshotView

log = logging.getLogger(__name__)

MANIFEST, IMAGES = "manifest.json", "images"
NAME = "desktop-ground"
LEASE_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class GroundPlan:
    """What to generate.

    Attributes:
        image: Desktop image.
        resolution: (width, height) of the screens in pixels.
        seed: Chooses states, questions, splits and novel applications.
        applications: Names of applications; none: all of the image.
        states: Most states of one application.
        per_screen: Most questions about one screen.
        least: Least questions of the benchmark; None: what the image is known to give.
        desktops: Desktops at once.
        farm_url: The farm; None: DART_FARM_URL, else the embedded one.
    """

    image: str = "desktop"
    resolution: tuple[int, int] = (1280, 800)
    seed: int = 0
    applications: tuple[str, ...] = ()
    states: int = 10
    per_screen: int = 24
    least: int | None = None
    desktops: int = 1
    farm_url: str | None = None

    def shape(self) -> DesktopShape:
        """The desktop to lease."""
        return DesktopShape(image=self.image, resolution=self.resolution)

    def screens(self) -> dict[str, Any]:
        """What decides the screens, which calls that share a folder must agree on."""
        return {"image": self.image, "resolution": list(self.resolution), "seed": self.seed, "states": self.states}


def check_folder(folder: Path, plan: GroundPlan) -> None:
    """Check that a benchmark can be written to a folder.

    Args:
        folder: The folder.
        plan: What is to be generated.

    Raises:
        ConfigError: It has files already, other than those that an unfinished call with the same plan kept.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    differing = (
        None
        if not folder.is_dir() or (folder / MANIFEST).exists()
        else KeptScreens(folder).differs_from(plan.screens())
    )
    if differing is None:
        raise ConfigError(f"{folder} is not empty: give a new folder")
    if differing:
        raise ConfigError(
            f"{folder} holds screens of an unfinished benchmark with other values of {', '.join(differing)}: give the same ones, or a "
            "new folder"
        )


@dataclass
class _Walk:
    """What the desktops of one call share."""

    plan: GroundPlan
    kept: KeptScreens
    progress: Callable[[str], None]
    waiting: deque[GroundApplication]
    walked: dict[str, list[CapturedScreen]]
    digests: set[str]
    missing: dict[str, str] = field(default_factory=dict)

    def leave_out(self, application: GroundApplication, cause: Exception) -> None:
        """Count an application as missing."""
        self.missing[application.name] = str(cause)
        self.progress(f"{application.name} is left out: {cause}")


async def generate(plan: GroundPlan, folder: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Walk the applications and write the benchmark.

    Args:
        plan: What to generate.
        folder: A new folder, or that of an unfinished call with the same plan.
        progress: Called with a line per application.

    Returns:
        The manifest.

    Raises:
        ConfigError: The plan is wrong, or the folder has other files.
        AgentError: There are fewer questions than asked for; the screens are kept.
        DartEnvError: The farm has no desktop; the screens of finished applications are kept.
    """
    chosen = find_applications(plan.image, plan.applications)
    check_folder(folder, plan)
    kept = KeptScreens(folder)
    walk = _begin(plan, kept, chosen.applications, progress)
    try:
        if walk.waiting:
            async with await AsyncFarmClient.connect(plan.farm_url) as farm, asyncio.TaskGroup() as group:
                for _ in range(min(plan.desktops, len(walk.waiting))):
                    group.create_task(_work(farm, walk))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    screens = [screen for name in sorted(walk.walked) for screen in walk.walked[name]]
    benchmark = make_benchmark(screens, plan.seed, per_screen=plan.per_screen)
    count, least = sum(len(screen.samples) for screen in benchmark), plan.least or chosen.least
    if count < least:
        again = f"; the same command walks {', '.join(sorted(walk.missing))} again" if walk.missing else ""
        raise AgentError(
            f"{len(walk.walked)} applications gave {count} questions, fewer than {least}: raise --per-screen, lower --least, or give a new "
            f"folder and more --states{again}. The screens are kept in {folder}"
        )
    told = {
        **plan.screens(),
        "image_digests": sorted(walk.digests),
        "per_screen": plan.per_screen,
        "missing": walk.missing,
    }
    shutil.rmtree(folder / IMAGES, ignore_errors=True)  # what a call left that was killed while it wrote
    manifest = write_benchmark(folder, benchmark, told)
    kept.discard()
    return manifest


def _begin(
    plan: GroundPlan, kept: KeptScreens, applications: Sequence[GroundApplication], progress: Callable[[str], None]
) -> _Walk:
    """What is to be walked, and what an unfinished call has walked already."""
    kept.begin(plan.screens())
    walk = _Walk(plan, kept, progress, deque(), {}, set())
    for application in applications:
        found = kept.read(application.name)
        if found is None:
            walk.waiting.append(application)
            continue
        digest, walk.walked[application.name] = found
        walk.digests.add(digest)
        progress(f"{application.name}: {len(found[1])} screens, kept by an earlier call")
    return walk


async def _work(farm: AsyncFarmClient, walk: _Walk) -> None:
    """One desktop after the other, until no application waits: another one after each failure of farm or desktop."""
    while walk.waiting:
        async with (
            await farm.lease(walk.plan.shape(), wait_s=LEASE_WAIT_S) as lease,
            snapshot_of(farm, lease) as base,
        ):
            await _walk_on(farm, lease, base, walk)


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
        walk.walked[application.name] = screens
        walk.digests.add(lease.image_digest)
        walk.progress(f"{application.name}: {len(screens)} screens")


def write_benchmark(folder: Path, benchmark: Sequence[BenchmarkScreen], told: dict[str, Any]) -> dict[str, Any]:
    """Write images, samples and the manifest.

    Args:
        folder: The folder.
        benchmark: The screens with their samples.
        told: What the manifest says besides counts.

    Returns:
        The manifest.
    """
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    for one in benchmark:
        write_file_atomically(folder / one.image, encode_png(one.screen.pixels))
    samples = [sample for one in benchmark for sample in one.samples]
    for split in SPLITS:
        write_samples(folder / f"{split}.jsonl", (sample for sample in samples if sample.group == split))
    write_samples(folder / SAMPLES_FILE, samples)
    manifest: dict[str, Any] = {
        "name": NAME,
        **told,
        "samples": len(samples),
        "novel": sorted({sample.application for sample in samples if sample.group == NOVEL}),
        "screens": {
            one.screen.screen_id: {"split": one.split, "image": one.image, "samples": len(one.samples)}
            for one in benchmark
        },
        "by_split": dict(Counter(sample.group for sample in samples)),
        "by_kind": dict(Counter(sample.kind for sample in samples)),
        "by_element_type": dict(Counter(sample.element_type for sample in samples)),
        "by_application": dict(Counter(sample.application for sample in samples)),
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    write_file_atomically(folder / MANIFEST, text.encode())
    return manifest
