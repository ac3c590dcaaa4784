"""The whole benchmark: desktops, files, manifest.

Role: `generate` writes a folder from the applications of an image; `write_benchmark` writes one from screens. Rule: the folder appears with
`manifest.json` last, so that a folder without it is not complete; what was asked is checked before a desktop is leased. Screens of
finished applications are on disk until the benchmark is complete. Non-goals: which questions there are
(`dart_agent.grounding.desktop_ground.benchmark`), how applications are walked (`dart_agent.grounding.desktop_ground.recording`).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_agent.errors import AgentError, ConfigError
from dart_agent.grounding.datasets.formats import SAMPLES_FILE
from dart_agent.grounding.desktop_ground.applications import find_applications
from dart_agent.grounding.desktop_ground.benchmark import NOVEL, SPLITS, BenchmarkScreen, make_benchmark
from dart_agent.grounding.desktop_ground.kept_screens import KeptScreens
from dart_agent.grounding.desktop_ground.recording import RecordPlan, record_applications
from dart_agent.grounding.samples import write_samples
from dart_envs.observations.annotated_screens import write_file_atomically
from dart_envs.observations.transforms import encode_png

MANIFEST, IMAGES = "manifest.json", "images"
NAME = "desktop-ground"


@dataclass(frozen=True, slots=True)
class GroundPlan(RecordPlan):
    """What to generate; the seed also chooses questions, splits and novel applications.

    Attributes:
        per_screen: Most questions about one screen.
        least: Least questions of the benchmark; None: what the image is known to give.
    """

    per_screen: int = 24
    least: int | None = None


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
    found = await record_applications(plan, kept, progress)
    benchmark = make_benchmark(found.screens, plan.seed, per_screen=plan.per_screen)
    count, least = sum(len(screen.samples) for screen in benchmark), plan.least or chosen.least
    if count < least:
        again = f"; the same command walks {', '.join(sorted(found.missing))} again" if found.missing else ""
        raise AgentError(
            f"{len(found.walked)} applications gave {count} questions, fewer than {least}: raise --per-screen, lower --least, or give a "
            f"new folder and more --states{again}. The screens are kept in {folder}"
        )
    told = {
        **plan.screens(),
        "image_digests": sorted(found.digests),
        "per_screen": plan.per_screen,
        "missing": found.missing,
    }
    shutil.rmtree(folder / IMAGES, ignore_errors=True)  # what a call left that was killed while it wrote
    manifest = write_benchmark(folder, benchmark, told)
    kept.discard()
    return manifest


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
