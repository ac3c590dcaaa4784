"""desktop-ground on a live desktop: what it says about boxes is what the desktop says, and the same seed gives the same benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from served_farm import served_farm

from dart_agent.grounding.datasets.formats import ReadableFormat, read_dataset
from dart_agent.grounding.desktop_ground.applications import find_applications
from dart_agent.grounding.desktop_ground.generate import GroundPlan, generate
from dart_agent.grounding.desktop_ground.places import is_plain
from dart_agent.grounding.samples import GroundingSample, read_image
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import SettleSpec

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(600)]
PLAN = GroundPlan(image="basic", resolution=(800, 600), applications=("zenity", "galculator"), states=7, per_screen=40)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("ground"), max_desktops=1) as url:
        yield url


async def boxes_of_the_question(url: str) -> dict[str, tuple[int, int, int, int]]:
    """Buttons of zenity's question by name, from the other form of the accessibility tree, on another desktop."""
    (zenity, _) = find_applications("basic", ("zenity", "galculator")).applications
    async with await AsyncFarmClient.connect(url) as farm, await farm.lease(PLAN.shape(), wait_s=120.0) as lease:
        await lease.exec(list(zenity.starts["question"]), detach=True)
        for _ in range(20):
            await lease.step([], SettleSpec(quiet_ms=300, cap_ms=2_000))
            found = {one.name: one for one in await lease.a11y() if one.role.replace(" ", "-") == "push-button"}
            if found:
                return {name: (one.x, one.y, one.x + one.w, one.y + one.h) for name, one in found.items()}
    raise AssertionError("zenity showed no button")


@pytest.mark.slow
async def test_a_benchmark_of_live_desktops(url: str, tmp_path: Path) -> None:
    plan = replace(PLAN, farm_url=url, least=60)
    lines: list[str] = []
    manifest = await generate(plan, tmp_path / "first", lines.append)
    assert sorted(line.partition(":")[0] for line in lines) == ["galculator", "zenity"]
    assert manifest["missing"] == {}
    samples = read_dataset(tmp_path / "first", ReadableFormat.AUTO, tmp_path).samples
    assert len(samples) == manifest["samples"] >= 60
    assert {sample.kind for sample in samples} == {"name", "functional", "positional", "visual"}
    by_image: dict[str, list[GroundingSample]] = {}
    for sample in samples:
        by_image.setdefault(sample.image, []).append(sample)
    for name, of_screen in by_image.items():
        pixels = read_image(tmp_path / "first" / name, (800, 600))
        assert not any(is_plain(pixels, sample.targets[0].boxes[0]) for sample in of_screen)
        assert len({sample.group for sample in of_screen}) == 1
    told = {
        sample.instruction: sample.targets[0].boxes[0] for sample in samples if sample.screen_id == "zenity/question"
    }
    wanted = await boxes_of_the_question(url)
    assert set(wanted) == {"Yes", "No"}
    assert {name: told[f'Click the button "{name}".'] for name in wanted} == wanted

    again = replace(plan, applications=("zenity",))
    await generate(again, tmp_path / "second", lines.append)
    first, second = (
        json.loads((tmp_path / folder / "manifest.json").read_text())["screens"] for folder in ("first", "second")
    )
    assert {name: first[name]["samples"] for name in second} == {name: second[name]["samples"] for name in second}
    questions = [
        [(sample.sample_id, sample.instruction, sample.targets) for sample in found if sample.application == "zenity"]
        for found in (samples, read_dataset(tmp_path / "second", ReadableFormat.AUTO, tmp_path).samples)
    ]
    assert questions[0] == questions[1]
    for screen in second.values():
        images = [read_image(tmp_path / folder / screen["image"]) for folder in ("first", "second")]
        assert (images[0] != images[1]).any(axis=2).mean() < 0.01  # a caret may blink
        assert np.ptp(images[0]) > 0
