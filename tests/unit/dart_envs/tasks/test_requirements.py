"""What is missing is told before a desktop is leased."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from dart_envs.assets import task_assets
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import AssetError, TaskError
from dart_envs.evaluators import GETTERS
from dart_envs.setup.applications import APPLICATION_PROGRAMS
from dart_envs.tasks import BUNDLED_SUITES, Task, load_suite, parse_task
from dart_envs.tasks.requirements import missing_apps, normalize_app_name, unreachable_files
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_server.wire import DesktopShape, ExecReply

SHAPE = DesktopShape(image="mine", resolution=(640, 400))


class LocalImagesFarm(FakeFarm):
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


async def requirements_error(of: Task, shape: DesktopShape = SHAPE) -> TaskError:
    farm = LocalImagesFarm()
    async with AsyncDesktopEnv(farm, shape=shape) as env:
        with pytest.raises(TaskError) as raised:
            await env.reset(of)
    assert not farm.leases, "a desktop was leased in vain"
    return raised.value


@pytest.mark.parametrize("app", ["VS Code", "vs_code", "vscode", "thunderbird", "libreoffice calc", "Writer"])
async def test_an_image_without_the_application_is_refused_by_name(app: str) -> None:
    said = str(await requirements_error(task(related_apps=["gimp", app])))
    assert f"needs {app}, which the image mine has not; choose the image basic, or build" in said


async def test_an_image_that_a_task_is_for_and_that_lacks_its_application_is_not_recommended() -> None:
    said = str(await requirements_error(task(related_apps=["thunderbird"], image="mine")))
    assert "which the image mine has not; choose another image" in said


@pytest.mark.parametrize("app", ["gimp", "Chrome", "vlc", "os", "picard"])
async def test_what_is_there_or_not_known_is_no_hindrance(app: str) -> None:
    async with AsyncDesktopEnv(LocalImagesFarm(), shape=SHAPE) as env:
        await env.reset(task(related_apps=[app]))


@pytest.mark.parametrize("name", sorted(BUNDLED_SUITES))
def test_what_the_bundled_suites_work_with_can_be_known(name: str) -> None:
    apps = {app for family in load_suite(name).families.values() for app in family.task(name, 0).related_apps}
    assert apps
    assert {app for app in apps if normalize_app_name(app) not in APPLICATION_PROGRAMS} == set()


async def test_images_of_another_machine_are_not_judged_by_ours() -> None:
    async with AsyncDesktopEnv(FakeFarm(), shape=SHAPE) as env:
        await env.reset(task(related_apps=["thunderbird"]))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the only programs that scripted desktops have beside the shell's own."""
    monkeypatch.setattr("dart_envs.tasks.requirements._FOUND_APPS", set())
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "echo").symlink_to("/bin/echo")
    (folder / "tr").symlink_to("/usr/bin/tr")
    return folder


def farm_with_shell(programs: Path) -> FakeFarm:
    def sh(_desktop: FakeDesktop, args: list[str], _stdin: str) -> ExecReply:
        ran = subprocess.run(
            ["/bin/sh", *args], env={"PATH": str(programs)}, capture_output=True, text=True, check=False
        )
        return ExecReply(returncode=ran.returncode, stdout=ran.stdout, stderr=ran.stderr)

    return FakeFarm(programs={"sh": sh})


def install(folder: Path, name: str) -> None:
    (folder / name).write_text("")
    (folder / name).chmod(0o755)


async def test_a_desktop_of_another_machine_is_asked_for_the_application_before_the_set_up(programs: Path) -> None:
    asks = task(
        related_apps=["vscode", "libreoffice_calc", "os"], config=[{"type": "sleep", "parameters": {"seconds": 100}}]
    )
    farm = farm_with_shell(programs)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        install(programs, "code")
        with pytest.raises(
            TaskError, match="needs libreoffice_calc, which the image mine has not; choose the image basic"
        ):
            await env.reset(asks)
        assert len(farm.leases) == 1, "what is missing is not looked for on one desktop after another"
        install(programs, "soffice")
        found = task(related_apps=["vscode", "libreoffice_calc"], publish_setup=False)
        await env.reset(found)
        (programs / "code").unlink()
        await env.reset(found)
    assert [lease.calls.count("exec") for lease in farm.leases] == [1, 1], "the same image was asked again"


def test_an_image_that_cannot_be_looked_into_is_not_judged(tmp_path: Path, image: Path) -> None:
    assert missing_apps(["gimp"], tmp_path / "absent") == ()
    (image / "manifest.json").write_text("broken")
    assert missing_apps(["thunderbird"], image) == ()
    assert normalize_app_name("libreoffice") == "libreoffice"


async def test_a_missing_file_is_told_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, Any], GETTERS), "cloud_file", None)
    url = "https://example.invalid/gold.xlsx"
    wanted = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["true"]},
        "expected": {"type": "cloud_file", "path": url, "dest": "gold.xlsx"},
    }
    error = await requirements_error(task(evaluator=wanted, suite="mine"))
    assert isinstance(error, AssetError)
    assert (error.task_id, error.url) == ("mine/one", url)


async def test_a_screen_that_is_too_small_is_told() -> None:
    assert "at least 1920x1080 pixels" in str(await requirements_error(task(min_resolution=[1920, 1080])))


async def test_an_unknown_metric_is_told() -> None:
    assert "no metric 'no_such'" in str(await requirements_error(task(evaluator={"func": "no_such"})))


def _with_files(name: str, *urls: str) -> Task:
    files = [{"url": url, "path": f"/home/user/{number}.txt"} for number, url in enumerate(urls)]
    return task(id=f"mine/{name}", config=[{"type": "download", "parameters": {"files": files}}])


def test_files_of_a_server_that_cannot_be_reached_leave_tasks_out_and_it_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DART_OFFLINE")
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.host == "gone.invalid":
            raise httpx.ConnectError("Name or service not known")
        return httpx.Response(404)

    here, there = "https://here.invalid/a.txt", "https://gone.invalid/b.txt"
    cached = _with_files("cached", "https://gone.invalid/c.txt")
    folder = tmp_path / "assets" / cached.id
    folder.mkdir(parents=True)
    (folder / task_assets(cached)[0].name).touch()
    tasks = [_with_files("reached", here), _with_files("lost", here, there), _with_files("too", there), cached, task()]
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        found = unreachable_files(tasks, client=client)
    assert set(found) == {"mine/lost", "mine/too"}
    assert "https://gone.invalid cannot be reached (Name or service not known" in found["mine/lost"]
    assert there in found["mine/lost"]
    assert asked == ["https://here.invalid/", "https://gone.invalid/"]
