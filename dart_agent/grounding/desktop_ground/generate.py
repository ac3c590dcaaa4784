"""The whole benchmark: desktops, files, manifest.

Role: `generate` walks the applications of an image on desktops of a farm and writes a folder; `write_benchmark` writes one from screens.
Rule: the folder appears with `manifest.json` last, so that a folder without it is not complete; what was asked is checked before a desktop
is leased. Applications do not depend on each other, so that the number of desktops changes nothing but the time. Non-goals: which questions
there are (`dart_agent.grounding.desktop_ground.benchmark`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_agent.errors import AgentError, ConfigError
from dart_agent.grounding.datasets.formats import SAMPLES_FILE
from dart_agent.grounding.desktop_ground.applications import GroundApplication, find_applications
from dart_agent.grounding.desktop_ground.benchmark import NOVEL, SPLITS, BenchmarkScreen, make_benchmark
from dart_agent.grounding.desktop_ground.screen import CapturedScreen
from dart_agent.grounding.desktop_ground.walk import ApplicationMissing, snapshot_of, walk_application
from dart_agent.grounding.samples import write_samples
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.observations.annotated_screens import write_file_atomically
from dart_envs.observations.transforms import encode_png
from dart_server.wire import DesktopShape

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
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


def check_folder(folder: Path) -> None:
    """Check that a benchmark can be written to a folder.

    Args:
        folder: The folder.

    Raises:
        ConfigError: It has files already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: give a new folder")


async def generate(plan: GroundPlan, folder: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Walk the applications and write the benchmark.

    Args:
        plan: What to generate.
        folder: A new folder.
        progress: Called with a line per application.

    Returns:
        The manifest.

    Raises:
        ConfigError: The plan is wrong, or the folder has files.
        AgentError: There are fewer questions than asked for; the folder is not written.
        DartEnvError: The farm or a desktop failed.
    """
    chosen = find_applications(plan.image, plan.applications)
    check_folder(folder)
    waiting = deque(chosen.applications)
    walked: dict[str, list[CapturedScreen]] = {}
    missing: dict[str, str] = {}
    digests: set[str] = set()
    try:
        async with await AsyncFarmClient.connect(plan.farm_url) as farm, asyncio.TaskGroup() as group:
            for _ in range(min(plan.desktops, len(waiting))):
                group.create_task(_work(farm, plan, waiting, walked, missing, digests, progress))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    screens = [screen for name in sorted(walked) for screen in walked[name]]
    benchmark = make_benchmark(screens, plan.seed, per_screen=plan.per_screen)
    count, least = sum(len(screen.samples) for screen in benchmark), plan.least or chosen.least
    if count < least:
        raise AgentError(
            f"{len(walked)} applications gave {count} questions, fewer than {least}: raise --states or --per-screen, or lower --least"
        )
    told = {
        "image": plan.image,
        "image_digests": sorted(digests),
        "resolution": list(plan.resolution),
        "seed": plan.seed,
        "states": plan.states,
        "per_screen": plan.per_screen,
        "missing": missing,
    }
    return write_benchmark(folder, benchmark, told)


async def _work(
    farm: AsyncFarmClient,
    plan: GroundPlan,
    waiting: deque[GroundApplication],
    walked: dict[str, list[CapturedScreen]],
    missing: dict[str, str],
    digests: set[str],
    progress: Callable[[str], None],
) -> None:
    """One desktop: it walks the next application until none waits."""
    async with await farm.lease(plan.shape(), wait_s=LEASE_WAIT_S) as lease, snapshot_of(farm, lease) as base:
        digests.add(lease.image_digest)
        while waiting:
            application = waiting.popleft()
            try:
                screens = await walk_application(farm, lease, base, application, plan.states, plan.seed)
            except ApplicationMissing as error:
                missing[application.name] = str(error)
                progress(str(error))
                continue
            walked[application.name] = screens
            progress(f"{application.name}: {len(screens)} screens")


def write_benchmark(folder: Path, benchmark: Sequence[BenchmarkScreen], told: dict[str, Any]) -> dict[str, Any]:
    """Write images, samples and the manifest.

    Args:
        folder: The folder.
        benchmark: The screens with their samples.
        told: What the manifest says besides counts.

    Returns:
        The manifest.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
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
