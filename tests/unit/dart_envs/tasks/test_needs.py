"""What is missing is told before a desktop is leased."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from dart_envs.core import AsyncDesktopEnv
from dart_envs.errors import AssetError, TaskError
from dart_envs.evaluate import GETTERS
from dart_envs.fake import FakeFarm
from dart_envs.tasks import Task, parse_task
from dart_envs.tasks.needs import lacking_apps, normalised
from dart_server.wire import DesktopShape

SHAPE = DesktopShape(image="mine", resolution=(640, 400))


class HereFarm(FakeFarm):
    """A fake of the farm of this machine."""

    embedded = True


@pytest.fixture(autouse=True)
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "images" / "mine" / "current"
    (folder / "rootfs" / "usr" / "bin").mkdir(parents=True)
    (folder / "rootfs" / "usr" / "bin" / "gimp").touch()
    (folder / "manifest.json").write_text(json.dumps({"packages": {"chromium": "1", "vlc": "3"}}))
    monkeypatch.setenv("DART_HOME", str(tmp_path))
    monkeypatch.delenv("DART_ASSETS_DIR", raising=False)
    monkeypatch.setenv("DART_OFFLINE", "1")
    return folder


def task(**changes: Any) -> Task:
    data = {
        "id": "mine/one",
        "instruction": "Do it.",
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["true"]},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        },
    }
    return parse_task(data | changes, name="mine")


async def refusal(of: Task, shape: DesktopShape = SHAPE) -> TaskError:
    farm = HereFarm()
    async with AsyncDesktopEnv(farm, shape=shape) as env:
        with pytest.raises(TaskError) as raised:
            await env.reset(of)
    assert not farm.leases, "a desktop was leased in vain"
    return raised.value


@pytest.mark.parametrize("app", ["VS Code", "vs_code", "vscode", "thunderbird", "libreoffice calc", "Writer"])
async def test_an_image_without_the_application_is_refused_by_name(app: str) -> None:
    said = str(await refusal(task(related_apps=["gimp", app])))
    assert f"needs {app}, which the image mine has not" in said


@pytest.mark.parametrize("app", ["gimp", "Chrome", "vlc", "os", "picard"])
async def test_what_is_there_or_not_known_is_no_hindrance(app: str) -> None:
    async with AsyncDesktopEnv(HereFarm(), shape=SHAPE) as env:
        await env.reset(task(related_apps=[app]))


async def test_images_of_another_machine_are_not_judged_by_ours() -> None:
    async with AsyncDesktopEnv(FakeFarm(), shape=SHAPE) as env:
        await env.reset(task(related_apps=["thunderbird"]))


def test_an_image_that_cannot_be_looked_into_is_not_judged(tmp_path: Path, image: Path) -> None:
    assert lacking_apps(["gimp"], tmp_path / "absent") == ()
    (image / "manifest.json").write_text("broken")
    assert lacking_apps(["thunderbird"], image) == ()
    assert normalised("libreoffice") == "libreoffice"


async def test_a_missing_file_is_told_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, Any], GETTERS), "cloud_file", None)
    url = "https://example.invalid/gold.xlsx"
    wanted = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["true"]},
        "expected": {"type": "cloud_file", "path": url, "dest": "gold.xlsx"},
    }
    error = await refusal(task(evaluator=wanted, suite="mine"))
    assert isinstance(error, AssetError)
    assert (error.needed_by, error.url) == ("mine/one", url)


async def test_a_screen_that_is_too_small_is_told() -> None:
    assert "at least 1920x1080 pixels" in str(await refusal(task(min_resolution=[1920, 1080])))


async def test_an_unknown_metric_is_told() -> None:
    assert "no metric 'no_such'" in str(await refusal(task(evaluator={"func": "no_such"})))
